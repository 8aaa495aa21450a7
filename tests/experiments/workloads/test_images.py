"""Sets of images: their files, splits and batches, pinned to the bit."""

import dataclasses
import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads import images
from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.images import ImageData, load
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.workload import ACCURACY
from tests.experiments.image_files import idx, write_cifar, write_fashion
from tests.experiments.tiny import tiny_workload
from tests.experiments.workloads.digest import digest
from tests.support.refusals import rejects


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return load("digits")


def test_digits_split_is_fixed_stratified_and_disjoint(digits: ImageData) -> None:
    (test_images, test_labels), (train_images, labels) = digits.test, digits.train
    assert test_images.shape[1:] == train_images.shape[1:] == (1, 8, 8)
    assert len(labels) + len(test_labels) == 1797
    tested, trained = map(torch.bincount, (test_labels, labels))
    assert torch.all((tested / (tested + trained) - 0.2).abs() < 0.01)
    # Of the first five zeros of the file, four are to train on, and the fifth is for the test.
    bunch = load_digits()
    zeros = bunch.images[bunch.target == 0]
    assert np.array_equal(test_images[test_labels == 0][0, 0].numpy(), zeros[4])


def test_cifar10_reader_returns_the_bytes_of_the_files(tmp_path: Path) -> None:
    files = write_cifar(tmp_path, "cifar10")
    data = load("cifar10", tmp_path)
    (train_images, labels), (test_images, _) = data.train, data.test
    assert (train_images.shape, test_images.shape) == ((15, 3, 32, 32), (3, 3, 32, 32))
    second = files["data_batch_2.bin"]
    assert labels[3:6].tolist() == second[:, 0].tolist() == [1, 2, 3]
    # record 1 of the file, green plane, row 2, column 5
    assert train_images[4, 1, 2, 5] == second[1, 1 + 1024 + 2 * 32 + 5]


def test_cifar100_reader_takes_the_fine_label(tmp_path: Path) -> None:
    files = write_cifar(tmp_path, "cifar100")
    data = load("cifar100", tmp_path)
    assert data.classes == 100
    assert data.train[1].tolist() == [90, 91, 92]
    assert data.test[0][0].flatten().tolist() == files["test.bin"][0, 2:].tolist()


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_fashion_is_read(tmp_path: Path, packed: bool) -> None:
    arrays = write_fashion(tmp_path, packed=packed)
    data = load("fashion-mnist", tmp_path)
    for tensor, array in zip((*data.train, *data.test), arrays.values(), strict=True):
        assert np.array_equal(tensor.reshape(array.shape).numpy(), array)
    assert data.train[0].shape == (20, 1, 28, 28) and data.train[0].dtype == torch.uint8
    pixels = arrays["train-images-idx3-ubyte"].astype(np.float64)
    assert [*map(float, data.moments)] == pytest.approx([pixels.mean(), pixels.std()])


def test_without_a_folder_fashion_is_debians(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fashion(tmp_path / "fashion-mnist")
    monkeypatch.setattr(images, "DEBIAN", tmp_path)
    assert len(find(WorkloadConfig(data="fashion-mnist", train_size=10)).train) == 10


@pytest.mark.parametrize(
    "name, missing, source",
    [
        ("cifar10", "data_batch_3.bin", "download cifar-10-binary.tar.gz"),
        ("cifar100", "test.bin", "download cifar-100-binary.tar.gz"),
        ("fashion-mnist", "t10k-labels-idx1-ubyte", "install Debian's package"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, name: str, missing: str, source: str) -> None:
    write_fashion(tmp_path) if name == "fashion-mnist" else write_cifar(tmp_path, name)
    for path in tmp_path.glob(f"{missing}*"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"missing {missing}; {source}.*--data-dir"):
        load(name, tmp_path)


LABELS, IMAGES = "train-labels-idx1-ubyte.gz", "train-images-idx3-ubyte.gz"
ZEROS, RECORD = np.zeros((20, 28, 28)), np.zeros((1, 3073), dtype=np.uint8)
RECORD[0, 0] = 10


@pytest.mark.parametrize(
    "name, content, message",
    [
        (IMAGES, gzip.compress(idx(ZEROS))[:-20], "expected a whole gzip file"),
        (IMAGES, gzip.compress(idx(ZEROS)[:-1]), "whole records of 784 bytes, got 15695 bytes"),
        (IMAGES, gzip.compress(idx(ZEROS[0])), "begin with '00000802"),
        (IMAGES, gzip.compress(idx(np.zeros((98, 8, 8)))), "begin with '000008030000006200000008"),
        (LABELS, gzip.compress(idx(ZEROS[1:, 0, 0])), "for 20 images, got 19 labels"),
        (
            LABELS,
            gzip.compress(idx(ZEROS[:, 0, 0] + 10)),
            r"expected labels 0\.\.9 .* labels up to 10",
        ),
        ("test_batch.bin", RECORD.tobytes(), r"expected labels 0\.\.9 .* labels up to 10"),
        ("test_batch.bin", RECORD.tobytes() + b"x", "whole records of 3073 bytes, got 3074 bytes"),
        ("test_batch.bin", b"", "whole records of 3073 bytes, got 0 bytes"),
    ],
    ids="cut short pieces shape labels label record long empty".split(),
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write_fashion(tmp_path)
    write_cifar(tmp_path, "cifar10")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: .*{message}"):
        load("cifar10" if name.endswith("bin") else "fashion-mnist", tmp_path)


test_other_names_are_refused = rejects(
    load, [("mnist", "expected one of digits, digits32, fashion-mnist, cifar10, cifar100, got 'mn")]
)


def test_images_are_shifted_with_zeros_and_the_chosen_ones_flipped(digits: ImageData) -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)
    both = images.shift_images(image.expand(2, 1, 3, 3), torch.tensor([[1, 0], [0, -1]]))
    assert both[0, 0].tolist() == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]
    assert both[1, 0].tolist() == [[2, 3, 0], [5, 6, 0], [8, 9, 0]]
    flat = dataclasses.replace(digits, max_shift=0, flip=True)
    plain, flipped = (
        images.image_workload(flat, WorkloadConfig(model="mlp1", augment=augment))
        .train.plan(0, 0)(0, 64)[0]
        for augment in (False, True)
    )  # fmt: skip
    both = torch.stack([(flipped == x).flatten(1).all(1) for x in (plain, plain.flip(-1))])
    assert both.any(0).all() and not both.all(1).any()


# If one of these digests changes, so do the figures of every run.
TRAIN = {
    ("digits", False): "67349d85765091ba", ("digits", True): "ca53eade919564e1",
    ("digits32", False): "9f48453cc6eec38b", ("digits32", True): "2ae343865d67f54e",
}  # fmt: skip
TEST = {"digits": "b2a92070be2dfaa8", "digits32": "79b7a92d6e9bdafa"}


@pytest.mark.parametrize("data, augment", TRAIN)
def test_training_batches_are_pinned(data: str, augment: bool) -> None:
    train = find(WorkloadConfig(data=data, augment=augment)).train
    plan = train.plan(3, 2)
    batches = [plan(step, 64) for step in range(23)]
    assert sum(len(batch[0]) for batch in batches) == len(train) == 1442
    assert digest(*[tensor for batch in batches for tensor in batch]) == TRAIN[data, augment]


@pytest.mark.parametrize("data", TEST)
def test_test_batches_are_pinned(data: str) -> None:
    test = find(WorkloadConfig(data=data)).test
    assert [len(labels) for _, labels in test] == [256, 99]
    assert digest(*[tensor for batch in test for tensor in batch]) == TEST[data]


def test_loss_and_accuracy() -> None:
    work = tiny_workload(WorkloadConfig(model="cnn1", width=2))
    torch.manual_seed(0)
    model = work.model()
    x, labels = work.train.plan(0, 0)(0, 9)
    output = model(x)
    outcome = work.loss(model, (x, labels))
    assert torch.equal(outcome.losses, cross_entropy(output, labels, reduction="none"))
    assert int(outcome.sums["accuracy"]) == int((output.argmax(1) == labels).sum())
    with torch.no_grad():
        sums = work.measure(model.eval(), (x, labels))
        assert torch.equal(sums["loss"], cross_entropy(model(x), labels, reduction="sum"))
    assert work.score({"loss": 3.0, "accuracy": 6.0}, 12) == {
        "test_loss": 0.25, "test_accuracy": 0.5
    }  # fmt: skip
    assert (work.name, work.metric) == ("tiny", ACCURACY)

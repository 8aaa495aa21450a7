"""The sets of images, their readers, the plan of an epoch, and its batches, pinned to the bit."""

import dataclasses
import itertools
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
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.workload import ACCURACY
from tests.experiments.tiny import tiny_workload
from tests.experiments.workloads.digest import digest
from tests.loops import each
from tests.support.trainings import write_cifar


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return load("digits")


def test_digits_split_is_fixed_stratified_and_disjoint(digits: ImageData) -> None:
    assert digits.shape == (1, 8, 8)
    assert len(digits.train_labels) + len(digits.test_labels) == 1797
    tested, trained = map(torch.bincount, (digits.test_labels, digits.train_labels))
    assert torch.all((tested / (tested + trained) - 0.2).abs() < 0.01)
    # Of the first five zeros of the file, four are to train on, and the fifth is for the test.
    bunch = load_digits()
    zeros = bunch.images[bunch.target == 0]
    assert np.array_equal(digits.test_images[digits.test_labels == 0][0, 0].numpy(), zeros[4])


def test_cifar10_reader_returns_the_bytes_of_the_files(tmp_path: Path) -> None:
    files = write_cifar(tmp_path, "cifar10")
    data = load("cifar10", tmp_path)
    assert data.train_images.shape == (15, 3, 32, 32)
    assert data.test_images.shape == (3, 3, 32, 32)
    second = files["data_batch_2.bin"]
    assert data.train_labels[3:6].tolist() == second[:, 0].tolist() == [1, 2, 3]
    # record 1 of the file, green plane, row 2, column 5
    assert data.train_images[4, 1, 2, 5] == second[1, 1 + 1024 + 2 * 32 + 5]


def test_cifar100_reader_takes_the_fine_label(tmp_path: Path) -> None:
    files = write_cifar(tmp_path / "cifar-100-binary", "cifar100")
    data = load("cifar100", tmp_path)
    assert data.classes == 100
    assert data.train_labels.tolist() == [90, 91, 92]
    assert data.test_images[0].flatten().tolist() == files["test.bin"][0, 2:].tolist()


def test_wrong_files_of_cifar_are_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path, "cifar10")
    rows, test = np.zeros((1, 3073), dtype=np.uint8), tmp_path / "test_batch.bin"
    rows[0, 0] = 10
    for content, message in (
        (rows.tobytes(), r"expected labels 0\.\.9, got 10"),
        (rows.tobytes() + b"x", "whole number of 3073-byte records, got 3074 bytes"),
    ):
        test.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load("cifar10", tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    message = r"missing data_batch_3\.bin; download .*--data-dir"
    with pytest.raises(FileNotFoundError, match=message):
        load("cifar10", tmp_path)
    known = "digits, digits32, fashion-mnist, cifar10, cifar100"
    with pytest.raises(ValueError, match=f"expected one of {known}, got 'mnist'"):
        load("mnist")


def test_images_are_shifted_with_zeros_and_the_chosen_ones_flipped(digits: ImageData) -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)
    both = images.shift_images(image.expand(2, 1, 3, 3), torch.tensor([[1, 0], [0, -1]]))
    assert both[0, 0].tolist() == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]
    assert both[1, 0].tolist() == [[2, 3, 0], [5, 6, 0], [8, 9, 0]]
    flat = dataclasses.replace(digits, max_shift=0, flip=True)
    plain, flipped = (flat.training_set(augment).plan(0, 0).batch(0, 64)[0] for augment in (0, 1))
    both = torch.stack([(flipped == x).flatten(1).all(1) for x in (plain, plain.flip(-1))])
    assert both.any(0).all() and not both.all(1).any()


# If one of these digests changes, so do the figures of every run.
TRAIN = {
    ("digits", False): "67349d85765091ba", ("digits", True): "ca53eade919564e1",
    ("digits32", False): "9f48453cc6eec38b", ("digits32", True): "2ae343865d67f54e",
}  # fmt: skip
TEST = {"digits": "b2a92070be2dfaa8", "digits32": "79b7a92d6e9bdafa"}


@each("data, augment", TRAIN)
def test_training_batches_are_pinned(data: str, augment: bool) -> None:
    train = find(WorkloadConfig(data=data, augment=augment)).train
    plan = train.plan(3, 2)
    batches = [plan.batch(step, 64) for step in range(23)]
    assert sum(len(batch[0]) for batch in batches) == len(train) == 1442
    assert digest(*[tensor for batch in batches for tensor in batch]) == TRAIN[data, augment]


@each("data", TEST)
def test_test_batches_are_pinned(data: str) -> None:
    test = find(WorkloadConfig(data=data)).test
    assert [len(labels) for _, labels in test] == [256, 99]
    assert digest(*[tensor for batch in test for tensor in batch]) == TEST[data]


def test_a_test_set_is_a_sequence_and_seeds_of_streams_are_pinned() -> None:
    test = tiny_workload(WorkloadConfig(), test=300).test
    assert [len(x) for x, _ in test[::-1]] == [44, 256]
    assert torch.equal(test[-1][0], test[1][0])
    with pytest.raises(IndexError):
        test[2]
    # If this seed changes, so do the figures of every run.
    assert stream_seed(0, "epoch", 0) == 5326116194759978245
    places = itertools.product(range(3), ("epoch", "test"), range(3))
    assert len({stream_seed(*place) for place in places}) == 18
    assert 0 <= stream_seed(0, "init") < 2**63


def test_loss_and_accuracy() -> None:
    work = tiny_workload(WorkloadConfig(model="cnn1", width=2))
    torch.manual_seed(0)
    model = work.model()
    images, labels = work.train.plan(0, 0).batch(0, 9)
    output = model(images)
    outcome = work.loss(model, (images, labels))
    assert torch.equal(outcome.losses, cross_entropy(output, labels, reduction="none"))
    assert int(outcome.sums["accuracy"]) == int((output.argmax(1) == labels).sum())
    with torch.no_grad():
        sums = work.measure(model.eval(), (images, labels))
        assert torch.equal(sums["loss"], cross_entropy(model(images), labels, reduction="sum"))
    sums = {"loss": torch.tensor(3.0), "accuracy": torch.tensor(6.0)}
    assert work.score(sums, 12) == {"test_loss": 0.25, "test_accuracy": 0.5}
    assert (work.name, work.metric) == ("tiny", ACCURACY)


def test_the_usual_model_is_resnet8_and_fewer_classes_have_smaller_networks() -> None:
    model = find(WorkloadConfig(width=2)).model()
    assert type(model).__name__ == "ResNet"
    assert (model.stem.out_channels, model.head.out_features) == (2, 10)
    work = find(WorkloadConfig(classes=3, train_size=31, model="cnn1"))
    assert work.model().head.out_features == 3
    labels = work.train.plan(0, 0).batch(0, 100)[1]
    assert torch.bincount(labels).tolist() == [11, 10, 10]
    assert max(int(labels.max()) for _, labels in work.test) == 2
    # Fewer images are normalised alike.
    whole, part = (find(WorkloadConfig(train_size=n)).test for n in (0, 20))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole, part, strict=True))

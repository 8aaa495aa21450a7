"""Fashion-MNIST from its files, its denoising, and the network that denoises."""

import gzip
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads import images
from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.images import load, load_fashion
from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.workload import Workload
from tests.loops import each
from tests.support.trainings import goes_on_alike


def idx(array: np.ndarray) -> bytes:
    """An idx file of bytes: 0, 0, 8, the number of dimensions, the dimensions, the elements."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_fashion(folder: Path, counts: tuple[int, int] = (20, 10), *, packed: bool = True):
    """Synthetic files with random pixels, each label once in ten; returns the arrays by name."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for number, (part, count) in enumerate(zip(("train", "t10k"), counts, strict=True)):
        pixels = np.random.default_rng(number).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = ((np.arange(count) + number) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            name = f"{part}-{kind}-ubyte"
            arrays[name] = array
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / name).write_bytes(idx(array))
    return arrays


@each("packed, inside", [(True, ""), (False, "fashion-mnist"), (True, "FashionMNIST/raw")])
def test_files_are_read_plain_or_packed(tmp_path: Path, packed: bool, inside: str) -> None:
    folder = tmp_path / f"{packed}{inside}"
    arrays = write_fashion(folder / inside, packed=packed)
    train, test = load_fashion(folder)
    for tensor, array in zip((*train, *test), arrays.values(), strict=True):
        assert np.array_equal(tensor.reshape(array.shape).numpy(), array)
    assert train[0].shape == (20, 1, 28, 28) and train[0].dtype == torch.uint8
    data = load("fashion-mnist", folder)
    pixels = arrays["train-images-idx3-ubyte"].astype(np.float64)
    assert [*map(float, data.moments)] == pytest.approx([pixels.mean(), pixels.std()])


def test_without_a_folder_they_are_debians(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "DEBIAN", tmp_path / "nowhere")
    message = r"missing train-images-idx3-ubyte, .*apt install dataset-fashion-mnist.*--data-dir"
    with pytest.raises(FileNotFoundError, match=message):
        find(WorkloadConfig(data="fashion-mnist"))
    write_fashion(tmp_path)
    monkeypatch.setattr(images, "DEBIAN", tmp_path)
    assert len(find(WorkloadConfig(data="fashion-mnist", train_size=10)).train) == 10
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="missing t10k-labels-idx1-ubyte; install"):
        find(WorkloadConfig(data="fashion-denoise", data_dir=str(tmp_path)))


LABELS, IMAGES = "train-labels-idx1-ubyte.gz", "train-images-idx3-ubyte.gz"
ZEROS = np.zeros(20, dtype=np.uint8)


@each(
    "name, content, message",
    [
        (IMAGES, gzip.compress(idx(np.zeros((20, 28, 28))))[:-20], "expected a whole gzip file"),
        (IMAGES, gzip.compress(idx(np.zeros((20, 28, 28)))[:-1]), "15680 bytes of images .*15679"),
        (IMAGES, gzip.compress(idx(np.zeros((20, 8, 8)))), r"28 x 28.*got shape \(20, 8, 8\)"),
        (IMAGES, gzip.compress(idx(np.zeros((19, 28, 28)))), "as many as labels .* and 20 labels"),
        (LABELS, gzip.compress(idx(ZEROS + 10)), r"expected labels 0\.\.9, got 10"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write_fashion(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: .*{message}"):
        load_fashion(tmp_path)


def made(folder: Path, **settings: object) -> Workload:
    write_fashion(folder)
    return find(WorkloadConfig(data="fashion-denoise", data_dir=str(folder), **settings))


def test_noise_depends_on_seed_epoch_and_step(tmp_path: Path) -> None:
    work = made(tmp_path)
    clean = load_fashion(tmp_path)[0][0].float() / 255
    (noisy, target), again = (work.train.plan(3, 1).batch(0, 8) for _ in range(2))
    assert torch.equal(noisy, again[0]) and noisy.dtype == torch.float32
    assert all(any(torch.equal(image, each_one) for each_one in clean) for image in target)
    assert float((noisy - target).std()) == pytest.approx(0.05, rel=0.05)
    for place in ((3, 1, 1), (3, 2, 0), (4, 1, 0)):
        other = work.train.plan(*place[:2]).batch(place[2], 8)
        assert not torch.equal(other[0] - other[1], noisy - target)
    # The test's noise is the same for all runs.
    some = made(tmp_path, train_size=10)
    assert len(some.train) == 10 and torch.equal(some.test[0][0], work.test[0][0])
    with pytest.raises(ValueError, match="classes: means nothing for fashion-denoise"):
        made(tmp_path, classes=3)


def test_the_network_begins_as_the_identity_and_its_figure_is_the_psnr(tmp_path: Path) -> None:
    work = made(tmp_path)
    model = work.model()
    noisy, clean = work.test[0]
    with torch.no_grad():
        assert torch.equal(model(noisy), noisy)
        loss = work.measure(model, work.test[0])["loss"].item()
        figures = work.score({"loss": loss}, len(clean))
    error = np.mean((noisy.numpy().astype(np.float64) - clean.numpy()) ** 2)
    assert figures["test_loss"] == pytest.approx(error, rel=1e-5)
    assert figures["test_psnr"] == pytest.approx(10 * math.log10(1 / error), rel=1e-5)
    assert work.score({"loss": 0.0}, 1)["test_psnr"] == math.inf


def test_the_network_has_the_levels_of_a_u_net() -> None:
    task = Task("denoising", (1, 28, 28), 1)
    model = build_model("unet", task)
    shapes = [tuple(m.weight.shape[:2]) for m in model.modules() if isinstance(m, nn.Conv2d)]
    down = [(8, 1), (8, 8), (16, 8), (16, 16), (32, 16), (32, 32)]
    assert shapes == [*down, (8, 24), (8, 8), (16, 48), (16, 16), (1, 8)]
    x = torch.randn(2, 1, 28, 28)
    nn.init.normal_(model.head.weight)
    with torch.no_grad():
        # By hand, level by level.
        pool, relu = nn.MaxPool2d(2), torch.relu
        one = relu(model.first(relu(model.stem(x))))
        two = model.down[0](pool(one))
        three = model.down[1](pool(two))
        twice = lambda y: y.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)  # noqa: E731
        two = model.up[1](torch.cat([twice(three), two], dim=1))
        one = model.up[0](torch.cat([twice(two), one], dim=1))
        assert torch.equal(model(x), x + model.head(one))
    assert build_model("unet1", task, width=3)(x).shape == x.shape
    with pytest.raises(ValueError, match=r"2\^\(depth - 1\) must divide the sides 28 x 28"):
        build_model("unet4", task)


@pytest.mark.parametrize("data", ["fashion-mnist", "fashion-denoise"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(data: str, tmp_path: Path) -> None:
    write_fashion(tmp_path / "files", (12, 4))
    config = RunConfig.of(
        data=data, data_dir=str(tmp_path / "files"), width=1, batch=8, epochs=2, optimizer="adam",
        augment=data == "fashion-mnist",
    )  # fmt: skip
    goes_on_alike(partial(Trainer, config), tmp_path, 3, workload=find(config.workload))

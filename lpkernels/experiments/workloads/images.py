"""Sets of small images to classify: scikit-learn's digits, and from files Fashion-MNIST and CIFAR.

Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv 1708.07747) has 60,000 and 10,000 grey images of
clothes of 28 x 28 in four files of MNIST's layout: two zero bytes, the type of the elements (8: one
byte), the number of dimensions, each dimension as four bytes, most significant first, then the
elements in row-major order. CIFAR's "binary version" (https://www.cs.toronto.edu/~kriz/cifar.html)
is records of one label, in CIFAR-100 a coarse one and the label, and 3 x 32 x 32 pixels.
"""

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.supervised import Labelled, classification, every_nth
from lpkernels.experiments.workloads.workload import Batch, Change, Workload
from lpkernels.formats.elsewhere import nearest

# Debian's package dataset-fashion-mnist puts its folder here.
DEBIAN = Path("/usr/share/datasets")


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set with a fixed split.

    train, test: images (N, C, H, W) uint8, and their labels (N,) int64.
    max_shift, flip: of augmented training images: pixels in each direction, and left to right.
    """

    name: str
    classes: int
    train: Labelled
    test: Labelled
    max_shift: int = 0
    flip: bool = False

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the training pixels, (1, C, 1, 1) float32, computed in float64 from
        the histogram: the same on any threads."""
        channels = self.train[0].transpose(0, 1).flatten(1)
        counts = torch.stack([torch.bincount(pixels, minlength=256) for pixels in channels])
        values = torch.arange(256, dtype=torch.float64)
        total = counts.sum(dim=1)
        mean = (counts * values).sum(dim=1) / total
        std = ((counts * values**2).sum(dim=1) / total - mean**2).sqrt().clamp_min(1e-6)
        return mean.float().reshape(1, -1, 1, 1), std.float().reshape(1, -1, 1, 1)

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 (N, C, H, W) -> float32, of mean 0 and deviation 1 over the training set."""
        mean, std = self.moments
        return (images.float() - mean) / std


def image_workload(data: ImageData, config: WorkloadConfig) -> Workload:
    """The classification of `data`, as the settings say.

    However many images the settings keep, all are normalised by the moments of the whole training
    set, so that the test images of all runs are the same numbers.

    Raises: ValueError: a model that is unknown or for other data, or a setting that asks for more
        than there is.
    """

    def change(count: int, generator: Generator, seed: int, epoch: int) -> Change:
        if not config.augment:
            return lambda step, places, images, labels: (data.normalise(images), labels)
        most = data.max_shift
        shifts = torch.randint(-most, most + 1, (count, 2), generator=generator)
        flips = torch.rand(count, generator=generator) < 0.5 * data.flip

        def augmented(step: int, places: slice, images: Tensor, labels: Tensor) -> Batch:
            images = shift_images(images, shifts[places])
            flipped = flips[places].reshape(-1, 1, 1, 1)
            return data.normalise(torch.where(flipped, images.flip(-1), images)), labels

        return augmented

    images, labels = data.test
    test = data.normalise(images), labels
    return classification(
        data.name, train=data.train, test=test, classes=data.classes, config=config, change=change
    )


def workload(config: WorkloadConfig) -> Workload:
    return image_workload(load(config.data, config.data_dir), config)


def load(name: str, folder: str | Path = "") -> ImageData:
    """The data set called `name`.

    Args:
        name: "digits" (bundled with scikit-learn), "digits32" (the same with each pixel repeated to
            4 x 4: longer sums over the same images), "fashion-mnist", "cifar10" or "cifar100".
        folder: holds the files, plain or with .gz, itself or in the folder that they usually have;
            "": where Debian's package puts Fashion-MNIST. Digits ignore it.
    Raises:
        ValueError: unknown name, or a file that is truncated, of another layout or size, or does
            not fit to the others.
        FileNotFoundError: a file is absent; the message says which and where to get it.
    """
    if name in ("digits", "digits32"):
        return _digits(name, 4 if name == "digits32" else 1)
    if name not in _SOURCES:
        names = nearest(name, ["digits", "digits32", *_SOURCES])
        raise ValueError(f"data: expected one of {names}, got {name!r}")
    source = _SOURCES[name]
    files = _files(name, folder or DEBIAN)
    train, test = (
        _labelled(source, part) for part in (files[: len(source.train)], files[len(source.train) :])
    )
    # A mirrored garment is a garment, and a mirrored photograph a photograph.
    return ImageData(name, source.classes, train, test, source.max_shift, flip=True)


def _digits(name: str, scale: int) -> ImageData:
    """1797 images of 8x8, 17 grey levels; each fifth image of a class, in file order, is test.

    With `scale` every pixel becomes a square of that side.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(np.asarray(bunch.images, dtype=np.uint8)).unsqueeze(1)
    images = images.repeat_interleave(scale, dim=2).repeat_interleave(scale, dim=3)
    labels = torch.from_numpy(np.asarray(bunch.target, dtype=np.int64))
    test = every_nth(5, labels)
    train, tested = ((images[part], labels[part]) for part in (~test, test))
    # Digits are not symmetric, so no flip; they fill the frame, so a shift of one pixel at most.
    return ImageData(name, 10, train, tested, max_shift=scale)


class _Source(NamedTuple):
    """A data set that is read from files.

    train, test: the names of their files.
    read: the pixels (N, C, H, W) and the labels (N,) of such files, uint8.
    classes, max_shift: as of `ImageData`.
    folders: in which the files usually lie.
    advice: where to get them.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    read: Callable[[Sequence[Path]], tuple[np.ndarray, np.ndarray]]
    classes: int
    max_shift: int
    folders: tuple[str, ...]
    advice: str


def _fashion(files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = _records(files[0], 28 * 28, (28, 28)), _records(files[1], 1, ())
    if len(images) != len(labels):
        raise ValueError(
            f"{files[0]}: expected as many images as labels in {files[1].name}, got {len(images)} "
            f"images and {len(labels)} labels; take all four files from one place"
        )
    return images.reshape(-1, 1, 28, 28), labels[:, 0]


def _cifar(files: Sequence[Path], label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """The last label of a record counts."""
    rows = np.concatenate([_records(file, label_bytes + 3 * 32 * 32) for file in files])
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


def _records(file: Path, size: int, sides: tuple[int, ...] | None = None) -> np.ndarray:
    """The records of a file, (N, size) uint8.

    sides: of each record in a file of MNIST's layout; None: the file has no head.
    Raises: ValueError: the file is cut short, empty or of another layout.
    """
    raw = file.read_bytes()
    try:
        raw = gzip.decompress(raw) if file.suffix == ".gz" else raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{file}: {error}; expected a whole gzip file, fetch it again") from error
    start = 0 if sides is None else 8 + 4 * len(sides)
    count, rest = divmod(max(0, len(raw) - start), size)
    head = b""
    if sides is not None:
        dimensions = b"".join(side.to_bytes(4, "big") for side in (count, *sides))
        head = bytes((0, 0, 8, 1 + len(sides))) + dimensions
    if not count or rest or not raw.startswith(head):
        raise ValueError(
            f"{file}: expected a head of {start} bytes ({head.hex()}) and whole records of {size} "
            f"bytes, got {len(raw)} bytes, which begin with {raw[:start].hex()!r}; fetch the file "
            "again, of CIFAR the binary version"
        )
    return np.frombuffer(bytearray(raw[start:]), dtype=np.uint8).reshape(count, size)


def _labelled(source: _Source, files: Sequence[Path]) -> Labelled:
    images, labels = source.read(files)
    if labels.max() >= source.classes:
        raise ValueError(
            f"{files[-1]}: expected labels 0..{source.classes - 1}, got {labels.max()}; is it the "
            "right data set?"
        )
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


_IDX = ("images-idx3-ubyte", "labels-idx1-ubyte")
_CIFAR = (
    "download {}-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, extract it and "
    "pass the folder"
)
_SOURCES = {
    "fashion-mnist": _Source(
        tuple(f"train-{kind}" for kind in _IDX), tuple(f"t10k-{kind}" for kind in _IDX), _fashion,
        10, 2, ("fashion-mnist", "FashionMNIST/raw"),
        "install Debian's package (apt install dataset-fashion-mnist), or download the files from "
        "https://github.com/zalandoresearch/fashion-mnist and pass their folder",
    ),
    "cifar10": _Source(
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)), ("test_batch.bin",),
        partial(_cifar, label_bytes=1), 10, 4, ("cifar-10-batches-bin",), _CIFAR.format("cifar-10"),
    ),
    "cifar100": _Source(
        ("train.bin",), ("test.bin",), partial(_cifar, label_bytes=2), 100, 4,
        ("cifar-100-binary",), _CIFAR.format("cifar-100"),
    ),
}  # fmt: skip


def _files(data: str, folder: str | Path) -> list[Path]:
    """The files of a data set, plain or with .gz, all in one folder."""
    source, missing = _SOURCES[data], ""
    for place in (Path(folder), *(Path(folder, inside) for inside in source.folders)):
        files = []
        for name in (*source.train, *source.test):
            forms = [form for form in (place / name, place / f"{name}.gz") if form.is_file()]
            if not forms:
                missing = missing or name
                break
            files.append(forms[0])
        else:
            return files
    raise FileNotFoundError(
        f"{data}: expected its files, plain or .gz, in {str(Path(folder).resolve())!r}, missing "
        f"{missing}; {source.advice} (option --data-dir)"
    )


def shift_images(images: Tensor, shifts: Tensor) -> Tensor:
    """Moves image i by shifts[i] = (down, right) pixels; pixels that come in at the border are 0.

    images: (N, C, H, W), any dtype.  shifts: (N, 2) int64, each within -H..H and -W..W.
    """
    count, channels, height, width = images.shape
    if count == 0:
        return images
    pad = int(shifts.abs().max())
    padded = torch.nn.functional.pad(images, (pad, pad, pad, pad))
    rows = (torch.arange(height) + pad - shifts[:, :1]).reshape(count, 1, height, 1)
    cols = (torch.arange(width) + pad - shifts[:, 1:]).reshape(count, 1, 1, width)
    places = torch.arange(count).reshape(-1, 1, 1, 1), torch.arange(channels).reshape(1, -1, 1, 1)
    return padded[(*places, rows, cols)]

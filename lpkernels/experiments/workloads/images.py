"""Sets of small images to classify: scikit-learn's digits, and from files Fashion-MNIST and CIFAR.

Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv 1708.07747) has 60,000 and 10,000 grey images of
clothes of 28 x 28 in four files of MNIST's layout: two zero bytes, the type of the elements (8: one
byte), the number of dimensions, each dimension as four bytes, most significant first, then the
elements in row-major order. CIFAR's "binary version" (https://www.cs.toronto.edu/~kriz/cifar.html)
is records of one label, in CIFAR-100 a coarse one and the label, and 3 x 32 x 32 pixels.
"""

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.supervised import Labelled, classification, every_nth
from lpkernels.experiments.workloads.workload import Batch, Change, Workload
from lpkernels.formats.elsewhere import nearest

# Debian's package dataset-fashion-mnist puts the folder "fashion-mnist" here.
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
        folder: holds the files, plain or with .gz; "": where Debian's package puts Fashion-MNIST.
            Digits ignore it.
    Raises:
        ValueError: unknown name, or a file that is truncated, of another layout or size, or does
            not fit to the others.
        FileNotFoundError: a file is absent; the message says which and where to get it.
    """
    if name in ("digits", "digits32"):
        return _digits(name, 4 if name == "digits32" else 1)
    if name not in _PARTS:
        names = nearest(name, ["digits", "digits32", *_PARTS])
        raise ValueError(f"data: expected one of {names}, got {name!r}")
    train, test = (_labelled(name, part, folder) for part in _PARTS[name])
    # A mirrored garment is a garment, and a mirrored photograph a photograph.
    return ImageData(name, _classes(name), train, test, 2 if name == "fashion-mnist" else 4, True)


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


def _classes(name: str) -> int:
    return 100 if name == "cifar100" else 10


def _labelled(name: str, names: Sequence[str], folder: str | Path) -> Labelled:
    """The images and labels in the files of these names; of CIFAR's labels the last one."""
    files = _files(name, names, folder)
    if name == "fashion-mnist":
        images = _records(files[0], 28 * 28, (28, 28)).reshape(-1, 1, 28, 28)
        labels = _records(files[1], 1, ())[:, 0]
    else:
        label_bytes = 2 if name == "cifar100" else 1
        rows = np.concatenate([_records(file, label_bytes + 3 * 32 * 32) for file in files])
        images = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
        labels = rows[:, label_bytes - 1]
    if len(images) != len(labels) or labels.max() >= _classes(name):
        raise ValueError(
            f"{files[-1]}: expected labels 0..{_classes(name) - 1} for {len(images)} images, got "
            f"{len(labels)} labels up to {labels.max()}; take all files from one place"
        )
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


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


#: By data set: the names of the files to train on, and of those to test on.
_PARTS = {
    "fashion-mnist": (
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    ),
    "cifar10": (tuple(f"data_batch_{number}.bin" for number in range(1, 6)), ("test_batch.bin",)),
    "cifar100": (("train.bin",), ("test.bin",)),
}


def _files(data: str, names: Sequence[str], folder: str | Path) -> list[Path]:
    """The files of these names in the folder, plain or with .gz."""
    folder = Path(folder or DEBIAN / data)
    files: dict[str, Path] = {}
    for name in names:
        for file in (folder / name, folder / f"{name}.gz"):
            if file.is_file():
                files.setdefault(name, file)
    missing = [name for name in names if name not in files]
    if not missing:
        return list(files.values())
    source = (
        "install Debian's package (apt install dataset-fashion-mnist), or download the files from "
        "https://github.com/zalandoresearch/fashion-mnist and pass their folder"
        if data == "fashion-mnist"
        else f"download {data.replace('cifar', 'cifar-')}-binary.tar.gz from "
        "https://www.cs.toronto.edu/~kriz/cifar.html, extract it and pass the folder"
    )
    raise FileNotFoundError(
        f"{data}: expected its files, plain or .gz, in {str(folder.resolve())!r}, missing "
        f"{missing[0]}; {source} (option --data-dir)"
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

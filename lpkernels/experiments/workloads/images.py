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
from lpkernels.experiments.workloads.supervised import Labelled, classification
from lpkernels.experiments.workloads.workload import Batch, Change, Workload
from lpkernels.formats.elsewhere import nearest

DATASETS = ("digits", "digits32", "fashion-mnist", "cifar10", "cifar100")
# Where Debian's package dataset-fashion-mnist puts the files.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
# Sides in pixels: of Fashion-MNIST and of CIFAR.
_FASHION, _CIFAR = 28, 32


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
        folder: holds the files of Fashion-MNIST ("": where Debian's package puts them) or of CIFAR,
            plain or with .gz, itself or in the folder that they usually have; digits ignores it.
    Raises:
        ValueError: unknown name, or a file that is truncated, of another layout or size, or does
            not fit to the others.
        FileNotFoundError: a file is absent; the message says which and where to get it.
    """
    if name in ("digits", "digits32"):
        return load_digits(scale=4 if name == "digits32" else 1)
    if name == "fashion-mnist":
        # A mirrored garment is a garment, and most fill the frame.
        return ImageData(name, 10, *load_fashion(folder), max_shift=2, flip=True)
    if name == "cifar10":
        training = [f"data_batch_{number}.bin" for number in range(1, 6)]
        files = _files(name, folder, [*training, "test_batch.bin"])
        return _cifar(name, 10, files, label_bytes=1)
    if name == "cifar100":
        return _cifar(name, 100, _files(name, folder, ["train.bin", "test.bin"]), label_bytes=2)
    raise ValueError(f"data: expected one of {nearest(name, DATASETS)}, got {name!r}")


def load_digits(*, scale: int = 1) -> ImageData:
    """1797 images of 8x8, 17 grey levels; each fifth image of a class, in file order, is test.

    With `scale` every pixel becomes a square of that side.
    """
    try:
        from sklearn.datasets import load_digits as read
    except ImportError as error:
        raise ImportError(
            'the digits images come with scikit-learn: pip install "lpkernels[lab]"'
        ) from error
    bunch = read()
    images = torch.from_numpy(np.asarray(bunch.images, dtype=np.uint8)).unsqueeze(1)
    images = images.repeat_interleave(scale, dim=2).repeat_interleave(scale, dim=3)
    labels = torch.from_numpy(np.asarray(bunch.target, dtype=np.int64))
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        test[(labels == label).nonzero().flatten()[4::5]] = True
    name = "digits" if scale == 1 else f"digits{8 * scale}"
    train, tested = ((images[part], labels[part]) for part in (~test, test))
    # Digits are not symmetric, so no flip; they fill the frame, so a shift of one pixel at most.
    return ImageData(name, 10, train, tested, max_shift=scale)


def load_fashion(folder: str | Path = "") -> tuple[Labelled, Labelled]:
    """Fashion-MNIST's images and labels to train on, and those to test on; folder and errors as of
    `load`."""
    kinds = ("images-idx3", "labels-idx1")
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in kinds]
    files = _files("fashion-mnist", folder or DEBIAN, names)
    return _fashion(*files[:2]), _fashion(*files[2:])


#: By data set: the folders in which its files may lie too, and where to get them.
_SOURCES = {
    "fashion-mnist": (
        ("fashion-mnist", "FashionMNIST/raw"),
        "install Debian's package (apt install dataset-fashion-mnist), or download the files from "
        "https://github.com/zalandoresearch/fashion-mnist and pass their folder",
    ),
    **{
        name: (
            (inside,),
            f"download {name.replace('cifar', 'cifar-')}-binary.tar.gz from "
            "https://www.cs.toronto.edu/~kriz/cifar.html, extract it and pass the folder",
        )
        for name, inside in (("cifar10", "cifar-10-batches-bin"), ("cifar100", "cifar-100-binary"))
    },
}


def _files(data: str, folder: str | Path, names: Sequence[str]) -> list[Path]:
    """The files of these names, plain or with .gz, all in one folder."""
    folders, source = _SOURCES[data]
    missing: list[str] = []
    for place in (Path(folder), *(Path(folder, inside) for inside in folders)):
        forms = [[place / name, place / f"{name}.gz"] for name in names]
        files = [next((file for file in pair if file.is_file()), None) for pair in forms]
        if None not in files:
            return [file for file in files if file]
        missing = missing or [name for name, file in zip(names, files, strict=True) if not file]
    raise FileNotFoundError(
        f"{data}: expected its files, plain or .gz, in {str(Path(folder).resolve())!r}, missing "
        f"{', '.join(missing)}; {source} (option --data-dir)"
    )


def _bytes(file: Path) -> np.ndarray:
    """The bytes of a file, unpacked; they can be written to."""
    raw = file.read_bytes()
    if file.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{file}: {error}; expected a whole gzip file, fetch it again") from (
                error
            )
    return np.frombuffer(bytearray(raw), dtype=np.uint8)


def _fashion(images_file: Path, labels_file: Path) -> Labelled:
    images, labels = _idx(images_file, "images", 3), _idx(labels_file, "labels", 1)
    if images.shape[1:] != (_FASHION, _FASHION) or len(images) != len(labels) or not len(labels):
        raise ValueError(
            f"{images_file}: expected images of {_FASHION} x {_FASHION}, as many as labels in "
            f"{labels_file.name}, got shape {images.shape} and {len(labels)} labels; take all "
            "four files from one place"
        )
    return torch.from_numpy(images).unsqueeze(1), _labels(labels_file, labels, 10)


def _idx(file: Path, what: str, dims: int) -> np.ndarray:
    """The array of bytes in an idx file."""
    raw, head = _bytes(file), 4 * (1 + dims)
    magic = bytes((0, 0, 8, dims))
    if len(raw) < head or raw[:4].tobytes() != magic:
        raise ValueError(
            f"{file}: expected the idx file of {what}, of bytes in {dims} dimension(s), which "
            f"begins with {magic.hex()}, got {raw[:4].tobytes().hex() or 'no bytes'}; is it "
            "another file?"
        )
    shape = raw[4:head].view(">u4").astype(np.int64)
    if len(raw) - head != shape.prod():
        raise ValueError(
            f"{file}: expected {shape.prod()} bytes of {what} after its head, as that says, got "
            f"{len(raw) - head}; fetch it again"
        )
    return raw[head:].reshape(shape)


def _cifar(name: str, classes: int, files: Sequence[Path], label_bytes: int) -> ImageData:
    """The data set of files whose records have `label_bytes` labels. The last label of a record
    counts, and the last file is for the test."""
    parts = [_records(file, label_bytes, classes) for file in files]
    train = torch.cat([x for x, _ in parts[:-1]]), torch.cat([y for _, y in parts[:-1]])
    return ImageData(name, classes, train, parts[-1], max_shift=4, flip=True)


def _records(file: Path, label_bytes: int, classes: int) -> Labelled:
    raw, record = _bytes(file), label_bytes + 3 * _CIFAR * _CIFAR
    if raw.size == 0 or raw.size % record:
        raise ValueError(
            f"{file}: expected a whole number of {record}-byte records, got {raw.size} bytes; "
            "use the binary version of CIFAR, not the pickled one, and extract it again"
        )
    rows = raw.reshape(-1, record)
    images = torch.from_numpy(rows[:, label_bytes:].reshape(-1, 3, _CIFAR, _CIFAR))
    return images, _labels(file, rows[:, label_bytes - 1], classes)


def _labels(file: Path, labels: np.ndarray, classes: int) -> Tensor:
    if labels.max() >= classes:
        raise ValueError(
            f"{file}: expected labels 0..{classes - 1}, got {labels.max()}; "
            "is it the right data set?"
        )
    return torch.from_numpy(labels.astype(np.int64))


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
    return padded[
        torch.arange(count).reshape(-1, 1, 1, 1),
        torch.arange(channels).reshape(1, -1, 1, 1),
        rows,
        cols,
    ]

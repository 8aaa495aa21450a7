"""Sets of small images to classify: scikit-learn's digits, Fashion-MNIST and CIFAR."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.fashion import CLASSES, load_fashion
from lpkernels.experiments.workloads.models import Task
from lpkernels.experiments.workloads.models.family import model_builder
from lpkernels.experiments.workloads.registry import LABELLED, dataset
from lpkernels.experiments.workloads.supervised import choose, class_workload
from lpkernels.experiments.workloads.workload import (
    Batch,
    Change,
    TensorBatches,
    TensorSet,
    Workload,
)
from lpkernels.formats.elsewhere import nearest

#: Images (N, C, H, W) uint8, and their labels (N,) int64.
Labelled = tuple[Tensor, Tensor]
DATASETS = ("digits", "digits32", "fashion-mnist", "cifar10", "cifar100")


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set with a fixed split.

    train_images, test_images: (N, C, H, W) uint8.  train_labels, test_labels: (N,) int64.
    mean, std: (1, C, 1, 1) float32, of the training pixels in units of the uint8 value.
    max_shift, flip: of augmented training images: pixels in each direction, and left to right.
    """

    name: str
    classes: int
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: Tensor
    std: Tensor
    max_shift: int = 0
    flip: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        channels, height, width = self.train_images.shape[1:]
        return int(channels), int(height), int(width)

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 (N, C, H, W) -> float32, of mean 0 and deviation 1 over the training set."""
        return (images.float() - self.mean) / self.std

    def training_set(self, augment: bool = False) -> TensorSet:
        """Normalised training images, shifted and flipped by draws from (seed, epoch)."""

        def change(generator: Generator, seed: int, epoch: int) -> Change:
            count, most = len(self.train_labels), self.max_shift
            shifts = flips = None
            if augment:
                shifts = torch.randint(-most, most + 1, (count, 2), generator=generator)
                flips = torch.rand(count, generator=generator) < 0.5 if self.flip else None

            def normalised(step: int, places: slice, images: Tensor, labels: Tensor) -> Batch:
                if shifts is not None:
                    images = shift_images(images, shifts[places])
                if flips is not None:
                    flipped = flips[places].reshape(-1, 1, 1, 1)
                    images = torch.where(flipped, images.flip(-1), images)
                return self.normalise(images), labels

            return normalised

        return TensorSet((self.train_images, self.train_labels), change)


def image_workload(data: ImageData, config: WorkloadConfig) -> Workload:
    """The classification of `data`, as the settings say; model "" is resnet8.

    However many images the settings keep, all are normalised by the moments of the whole training
    set, so that the test images of all runs are the same numbers.

    Raises: ValueError: a model that is unknown or for other data, or a setting that asks for more
        than there is.
    """
    choice = choose(config, data.train_labels, data.test_labels, data.classes)
    data = replace(
        data,
        classes=choice.classes,
        train_images=data.train_images[choice.train],
        train_labels=choice.train_labels,
        test_images=data.test_images[choice.test],
        test_labels=choice.test_labels,
    )

    def normalised(images: Tensor, labels: Tensor) -> Batch:
        return data.normalise(images), labels

    task = Task("images", data.shape, data.classes)
    model = model_builder(config.network("resnet8"), task, width=config.width, norm=config.norm)
    test = TensorBatches(data.test_images, data.test_labels, make=normalised)
    return class_workload(data.name, data.training_set(config.augment), test, model)


@dataset(*DATASETS, model="resnet8", settings=("augment", *LABELLED))
def _images(config: WorkloadConfig) -> Workload:
    return image_workload(load(config.data, config.data_dir), config)


def load(name: str, folder: str | Path = "") -> ImageData:
    """The data set called `name`.

    Args:
        name: "digits" (bundled with scikit-learn), "digits32" (the same with each pixel repeated to
            4 x 4: longer sums over the same images), "fashion-mnist", "cifar10" or "cifar100".
        folder: for CIFAR the folder that holds the extracted binary files; for Fashion-MNIST as
            `fashion.load_fashion` says; digits ignores it.
    Raises:
        ValueError: unknown name, or a file of another layout or size.
        FileNotFoundError: a file is absent; the message says which and where to get it.
    """
    if name in ("digits", "digits32"):
        return load_digits(scale=4 if name == "digits32" else 1)
    if name == "fashion-mnist":
        # a mirrored garment is a garment, and most fill the frame
        return _normalised(name, CLASSES, *load_fashion(folder), max_shift=2, flip=True)
    if name in ("cifar10", "cifar100"):
        return load_cifar(name, folder)
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
    # digits are not symmetric, so no flip; they fill the 8x8 frame, so a shift of one pixel at most
    name = "digits" if scale == 1 else f"digits{8 * scale}"
    train, tested = (images[~test], labels[~test]), (images[test], labels[test])
    return _normalised(name, 10, train, tested, max_shift=scale)


def _normalised(
    name: str, classes: int, train: Labelled, test: Labelled, *, max_shift: int, flip: bool = False
) -> ImageData:
    """The data set with the moments of its training images."""
    return ImageData(name, classes, *train, *test, *_moments(train[0]), max_shift, flip)


# file names and label bytes per record, https://www.cs.toronto.edu/~kriz/cifar.html, "Binary
# version"
_CIFAR_FILES = {
    "cifar10": ([f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"], 1),
    "cifar100": (["train.bin"], ["test.bin"], 2),
}
_CIFAR_PIXELS = 3 * 32 * 32


def load_cifar(name: str, folder: str | Path) -> ImageData:
    """CIFAR-10 or CIFAR-100 (its fine labels) from the files of its "binary version"."""
    train_files, test_files, label_bytes = _CIFAR_FILES[name]
    place = _cifar_folder(name, Path(folder), train_files + test_files)
    classes = 10 if name == "cifar10" else 100
    train = _read_cifar([place / f for f in train_files], label_bytes, classes)
    test = _read_cifar([place / f for f in test_files], label_bytes, classes)
    return _normalised(name, classes, train, test, max_shift=4, flip=True)


def _cifar_folder(name: str, folder: Path, files: Sequence[str]) -> Path:
    """`folder`, or the sub-folder the archive extracts to."""
    inside = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}[name]
    for place in (folder, folder / inside):
        if all((place / file).is_file() for file in files):
            return place
    missing = [file for file in files if not (folder / file).is_file()]
    archive = {"cifar10": "cifar-10-binary.tar.gz", "cifar100": "cifar-100-binary.tar.gz"}[name]
    raise FileNotFoundError(
        f"{name}: expected the extracted binary files in {str(folder.resolve())!r}, missing "
        f"{', '.join(missing)}; download {archive} from "
        "https://www.cs.toronto.edu/~kriz/cifar.html, extract it and pass the folder "
        "(option --data-dir)"
    )


def _read_cifar(files: Sequence[Path], label_bytes: int, classes: int) -> tuple[Tensor, Tensor]:
    """Records of `label_bytes` labels, the last of which counts, and 3072 pixels (C, H, W)."""
    record = label_bytes + _CIFAR_PIXELS
    images, labels = [], []
    for file in files:
        raw = np.fromfile(file, dtype=np.uint8)
        if raw.size == 0 or raw.size % record:
            raise ValueError(
                f"{file}: expected a whole number of {record}-byte records, got {raw.size} bytes; "
                "use the binary version of CIFAR, not the pickled one, and extract it again"
            )
        rows = raw.reshape(-1, record)
        label = rows[:, label_bytes - 1].astype(np.int64)
        if label.max() >= classes:
            raise ValueError(
                f"{file}: expected labels 0..{classes - 1}, got {label.max()}; "
                "is it the right data set?"
            )
        images.append(rows[:, label_bytes:].reshape(-1, 3, 32, 32))
        labels.append(label)
    return torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels))


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation per channel, in float64 from the histogram: the same on any threads."""
    counts = torch.stack(
        [torch.bincount(images[:, c].flatten(), minlength=256) for c in range(images.shape[1])]
    )
    values = torch.arange(256, dtype=torch.float64)
    total = counts.sum(dim=1)
    mean = (counts * values).sum(dim=1) / total
    std = ((counts * values**2).sum(dim=1) / total - mean**2).sqrt().clamp_min(1e-6)
    return mean.float().reshape(1, -1, 1, 1), std.float().reshape(1, -1, 1, 1)


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

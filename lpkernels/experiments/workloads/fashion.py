"""Fashion-MNIST: 60,000 and 10,000 grey images of clothes of 28 x 28, from their four idx files,
and the same images under noise.

Reference: Xiao, Rasul and Vollgraf 2017, arXiv 1708.07747. The files have the layout of MNIST's:
two zero bytes, the type of the elements (8: one byte), the number of dimensions, each dimension as
four bytes, most significant first, then the elements in row-major order.

Denoising is a dense task, whose loss is a mean over all pixels: the gradient of a pixel is small,
about 2 * 0.05 / (pixels of a batch), so that narrow formats lose it without a scale of the loss.
"""

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor, nn

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.models import Task
from lpkernels.experiments.workloads.models.family import model_builder
from lpkernels.experiments.workloads.registry import dataset
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.supervised import choose
from lpkernels.experiments.workloads.workload import (
    Batch,
    Change,
    Metric,
    Outcome,
    TensorBatches,
    TensorSet,
    Workload,
)

# Where Debian's package dataset-fashion-mnist puts the files.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
CLASSES = 10
_SIDE = 28
_BYTES = 8
PSNR = Metric(field="test_psnr", label="test PSNR (dB)", higher=True, percent=False)
#: The deviation of the normal noise on pixels of 0..1: the noisy images have 26.02 dB.
NOISE = 0.05


#: Images (N, 1, 28, 28) uint8, and their labels (N,) int64.
Labelled = tuple[Tensor, Tensor]


def load_fashion(folder: str | Path = "") -> tuple[Labelled, Labelled]:
    """The images and labels of a folder to train on, and those to test on, as in its files.

    folder: holds the four files, plain or with .gz, itself or in a folder `fashion-mnist` or
        `FashionMNIST/raw`; "": where Debian's package puts them.
    Raises:
        FileNotFoundError: a file is absent; the message says how to get it.
        ValueError: a file is truncated, of another layout, or does not fit to the others.
    """
    files = _files(Path(folder) if folder else DEBIAN)
    return _labelled(*files[:2]), _labelled(*files[2:])


def _labelled(images_file: Path, labels_file: Path) -> Labelled:
    images = _read_idx(images_file, "images", 3)
    labels = _read_idx(labels_file, "labels", 1)
    if images.shape[1:] != (_SIDE, _SIDE) or len(images) != len(labels) or not len(labels):
        raise ValueError(
            f"{images_file}: expected images of {_SIDE} x {_SIDE}, as many as labels in "
            f"{labels_file.name}, got shape {images.shape} and {len(labels)} labels; take all "
            "four files from one place"
        )
    if labels.max() >= CLASSES:
        raise ValueError(
            f"{labels_file}: expected labels 0..{CLASSES - 1}, got {labels.max()}; is it the "
            "right data set?"
        )
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long()


def _files(folder: Path) -> list[Path]:
    """Images and labels to train on, then to test on."""
    names = [
        f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    ]
    for place in (folder, folder / "fashion-mnist", folder / "FashionMNIST" / "raw"):
        files = [_either(place / f"{name}-ubyte") for name in names]
        whole = [file for file in files if file is not None]
        if len(whole) == len(names):
            return whole
    missing = [name for name in names if _either(folder / f"{name}-ubyte") is None]
    raise FileNotFoundError(
        f"fashion-mnist: expected its four files, plain or .gz, in {str(folder.resolve())!r}, "
        f"missing {', '.join(f'{name}-ubyte' for name in missing)}; install Debian's package (apt "
        "install dataset-fashion-mnist), or download the files from "
        "https://github.com/zalandoresearch/fashion-mnist and pass their folder (option --data-dir)"
    )


def _either(file: Path) -> Path | None:
    """The file, plain or compressed; None if there is neither."""
    forms = (file, file.with_name(f"{file.name}.gz"))
    return next((form for form in forms if form.is_file()), None)


def _read_idx(file: Path, what: str, dims: int) -> np.ndarray:
    """The array of bytes in an idx file; it can be written to."""
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{file}: expected a whole gzip file, got {error}; fetch it again") from (
            error
        )
    head = 4 * (1 + dims)
    if len(raw) < head or raw[:4] != bytes((0, 0, _BYTES, dims)):
        raise ValueError(
            f"{file}: expected the idx file of {what}, of bytes in {dims} dimension(s), which "
            f"begins with 0000{_BYTES:02x}{dims:02x}, got {raw[:4].hex() or 'no bytes'}; is it "
            "another file?"
        )
    shape = np.frombuffer(raw, dtype=">u4", count=dims, offset=4).astype(np.int64)
    elements = len(raw) - head
    if elements != shape.prod():
        raise ValueError(
            f"{file}: expected {shape.prod()} bytes of {what} after its head, as that says, got "
            f"{elements}; fetch it again"
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=head).reshape(shape).copy()


@dataset("fashion-denoise", model="unet", settings=("train_size",))
def _denoise(config: WorkloadConfig) -> Workload:
    (images, labels), (test_images, test_labels) = load_fashion(config.data_dir)
    images = images[choose(config, labels, test_labels, CLASSES).train]
    clean = pixels(test_images)
    task = Task("denoising", tuple(images.shape[1:]), images.shape[1])
    return Workload(
        "fashion-denoise",
        model_builder(config.network(), task, width=config.width, norm=config.norm),
        TensorSet((images,), _noisy),
        TensorBatches(clean + noise(clean.shape, 0, "test"), clean),
        pixel_losses,
        measure_pixels,
        PSNR,
        psnr,
    )


def _noisy(generator: Generator, seed: int, epoch: int) -> Change:
    """Noisy and clean images (n, 1, H, W) float32 of 0..1, the noisy ones not clipped; the noise is
    drawn for each step anew."""

    def batch(step: int, places: slice, images: Tensor) -> Batch:
        clean = pixels(images)
        return clean + noise(clean.shape, seed, epoch, step), clean

    return batch


def pixels(images: Tensor) -> Tensor:
    """uint8 -> float32 of 0..1."""
    return images.float() / 255


def noise(shape: torch.Size, seed: int, *stream: str | int) -> Tensor:
    """Normal noise of deviation `NOISE`, float32, the same for the same arguments."""
    generator = torch.Generator().manual_seed(stream_seed(seed, "noise", *stream))
    return NOISE * torch.randn(shape, generator=generator)


def pixel_losses(model: nn.Module, batch: Batch) -> Outcome:
    """The mean squared error over the pixels of each image."""
    noisy, clean = batch
    return Outcome((model(noisy) - clean).square().flatten(1).mean(dim=1), {})


def measure_pixels(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """The sum of the images' mean squared errors, computed on the CPU."""
    noisy, clean = batch
    error = model(noisy).cpu() - clean.cpu()
    return {"loss": error.square().flatten(1).mean(dim=1).sum()}


def psnr(sums: Mapping[str, Tensor], count: int) -> dict[str, float]:
    """The mean squared error over all pixels, and the peak signal-to-noise ratio in dB, which is
    10 log10(1 / mean squared error) for pixels of 0..1; infinite where the error is 0."""
    loss = float(sums["loss"]) / count
    return {"test_loss": loss, PSNR.field: -10 * math.log10(loss) if loss else math.inf}

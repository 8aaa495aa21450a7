"""Fashion-MNIST: 60,000 and 10,000 grey images of clothes of 28 x 28, from their four idx files.

Reference: Xiao, Rasul and Vollgraf 2017, arXiv 1708.07747. The files have the layout of MNIST's:
two zero bytes, the type of the elements (8: one byte), the number of dimensions, each dimension as
four bytes, most significant first, then the elements in row-major order.
"""

import gzip
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Where Debian's package dataset-fashion-mnist puts the files.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
CLASSES = 10
_SIDE = 28
_BYTES = 8
_PARTS = ("train", "t10k")


class FashionMnist(NamedTuple):
    """The images (N, 1, 28, 28) uint8 and labels (N,) int64, to train on and to test on."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_fashion(folder: str | Path = "") -> FashionMnist:
    """The images and labels of a folder, in the order of its files.

    folder: holds the four files, plain or with .gz, itself or in a folder `fashion-mnist` or
        `FashionMNIST/raw`; "": where Debian's package puts them.
    Raises:
        FileNotFoundError: a file is absent; the message says how to get it.
        ValueError: a file is truncated, of another layout, or does not fit to the others.
    """
    files = _files(Path(folder) if folder else DEBIAN)
    tensors = []
    for images_file, labels_file in (files[:2], files[2:]):
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
        tensors += [torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long()]
    return FashionMnist(*tensors)


def _files(folder: Path) -> list[Path]:
    """Images and labels to train on, then to test on."""
    names = [f"{part}-{kind}" for part in _PARTS for kind in ("images-idx3", "labels-idx1")]
    found: list[Path | None] = []
    for place in (folder, folder / "fashion-mnist", folder / "FashionMNIST" / "raw"):
        found = [_either(place / f"{name}-ubyte") for name in names]
        whole = [file for file in found if file is not None]
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
    both = (file, file.with_name(f"{file.name}.gz"))
    return next((each for each in both if each.is_file()), None)


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

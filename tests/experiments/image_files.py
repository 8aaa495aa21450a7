"""Synthetic files of CIFAR and of Fashion-MNIST."""

import gzip
from pathlib import Path

import numpy as np


def write_cifar(folder: Path, name: str, per_file: int = 3) -> dict[str, np.ndarray]:
    """Synthetic CIFAR files with random pixels; returns the records of each."""
    names = {
        "cifar10": [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"],
        "cifar100": ["train.bin", "test.bin"],
    }[name]
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for number, file in enumerate(names):
        generator = np.random.default_rng(number)
        pixels = generator.integers(0, 256, (per_file, 3072), dtype=np.uint8)
        index = np.arange(per_file) + number
        labels = [index % 10] if name == "cifar10" else [index % 20, 90 + index]
        rows = np.concatenate([np.stack(labels, axis=1).astype(np.uint8), pixels], axis=1)
        rows.tofile(folder / file)
        files[file] = rows
    return files


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

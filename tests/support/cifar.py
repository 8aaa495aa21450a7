"""Files in the layout of CIFAR."""

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

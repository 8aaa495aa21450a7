"""Error matrices with a known structure."""

import numpy as np

# A matrix of rank 1, and six cells of it that are hidden, as row and column.
RANK_ONE = np.outer([0.25, 0.5, 0.75, 1.0], [0.8, 0.4, 0.6, 0.2, 0.5, 0.1])
HIDDEN = ((0, 3), (1, 0), (1, 5), (2, 2), (2, 4), (3, 1))

# Matrices of rank 2: a basis, three tasks in it and a new one.
BASIS = np.array([[6, 5, 4, 3, 2, 1], [1, 1, 2, 2, 3, 3]]) / 10
TRAINED = np.array([[1, 0], [0.5, 0.5], [0.2, 1]]) @ BASIS
NEW = np.array([0.5, 1]) @ BASIS


def mask_of(shape: tuple[int, ...], hidden: tuple[tuple[int, int], ...]) -> np.ndarray:
    mask = np.ones(shape, dtype=bool)
    for cell in hidden:
        mask[cell] = False
    return mask


def low_rank(
    tasks: int, configurations: int, rank: int, noise: float = 0.0, seed: int = 0
) -> np.ndarray:
    """Errors in 0..1: a product of positive factors, and noise."""
    rng = np.random.default_rng(seed)
    x = rng.random((tasks, rank)) @ rng.random((rank, configurations)) / rank
    return np.clip(x + noise * rng.standard_normal(x.shape), 0, 1)


def some_of(shape: tuple[int, int], share: float, seed: int = 0) -> np.ndarray:
    """A mask with this share of True, and at least one True in each row and column."""
    mask = np.random.default_rng(seed).random(shape) < share
    longest = np.arange(max(shape))
    mask[longest % shape[0], longest % shape[1]] = True
    return mask

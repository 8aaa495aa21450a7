"""Codes and scales of the reference, which other programs' are compared with. Backends have the
reference's bits: tests/backends compares them."""

import numpy as np

from lpkernels.arithmetic import Quantizer
from lpkernels.reference import twin


def scaled(x: np.ndarray, name: str) -> twin.Scaled:
    """The parts of float32 values in the format and mode of this name."""
    return twin.scaled(x, Quantizer.parse(name))


def wide_blocks(blocks: int, seed: int = 3) -> np.ndarray:
    """Blocks of 32 float32 values: their exponents differ widely, those within one a little."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-130, 110, (blocks, 1)) + rng.integers(-8, 2, (blocks, 32))
    values = np.ldexp(rng.standard_normal((blocks, 32)), exponents)
    # Ties and powers of two in some blocks.
    ties = np.ldexp(rng.integers(-32, 33, (blocks, 32)) / 8.0, exponents[:, :1])
    return np.where(rng.random((blocks, 1)) < 0.2, ties, values).astype(np.float32)

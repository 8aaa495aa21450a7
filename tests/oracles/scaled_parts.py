"""Codes and scales that other programs' are compared with: of the reference, and of the backends
that run here."""

import os

import numpy as np
import torch

import lpkernels as lp
from lpkernels.arithmetic import Quantizer
from lpkernels.reference import twin
from tests.compare import assert_bit_equal

__all__ = ["scaled", "wide_blocks"]

#: Rows that Triton's interpreter takes in a second.
_INTERPRETED = 64


def scaled(x: np.ndarray, name: str) -> twin.Scaled:
    """The reference's parts of float32 values, which the cpu backend gives too, and Triton's
    interpreter of a sample."""
    want = twin.scaled(x, Quantizer.parse(name))
    _compare(x, want, name, "cpu")
    if os.environ.get("TRITON_INTERPRET") == "1":
        sample = np.ascontiguousarray(x[:_INTERPRETED])
        _compare(sample, twin.scaled(sample, Quantizer.parse(name)), name, "triton")
    return want


def _compare(x: np.ndarray, want: twin.Scaled, name: str, backend: str) -> None:
    if lp.backends.status()[backend] != "available":
        return
    got = lp.scaled(torch.from_numpy(x), name, backend=backend)
    for part in want._fields:
        assert_bit_equal(getattr(got, part), getattr(want, part), f"{backend} {name} {part}")


def wide_blocks(blocks: int, seed: int = 3) -> np.ndarray:
    """Blocks of 32 float32 values: their exponents differ widely, those within one a little."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-130, 110, (blocks, 1)) + rng.integers(-8, 2, (blocks, 32))
    values = np.ldexp(rng.standard_normal((blocks, 32)), exponents)
    # Ties and powers of two in some blocks.
    ties = np.ldexp(rng.integers(-32, 33, (blocks, 32)) / 8.0, exponents[:, :1])
    return np.where(rng.random((blocks, 1)) < 0.2, ties, values).astype(np.float32)

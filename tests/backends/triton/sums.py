"""Operands of sums, sums of the triton backend beside another backend's, and the kernels that made
them."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lpkernels.backends.triton import BACKEND, _products
from tests.support.products import assert_pass, assert_product

beside_reference = partial(assert_product, BACKEND)
beside_cpu = partial(assert_product, BACKEND, by="cpu")
pass_beside = partial(assert_pass, BACKEND)


def floats(
    shape: tuple[int, ...],
    seed: int,
    bits: int = 4,
    low: int = -3,
    high: int = 3,
    zeros: float = 0.1,
) -> Tensor:
    """Random values of this many significant bits, 2^low to 2^(high + 1)."""
    rng = np.random.default_rng(seed)
    significands = rng.integers(2 ** (bits - 1), 2**bits, shape) * 2.0 ** (1 - bits)
    x = np.ldexp(significands, rng.integers(low, high + 1, shape)) * rng.choice([-1, 1], shape)
    return torch.from_numpy(np.where(rng.random(shape) < zeros, 0.0, x).astype(np.float32))


def only(monkeypatch: pytest.MonkeyPatch, tier: int) -> None:
    """Leaves products in sequence this certified tier alone."""
    monkeypatch.setattr(_products, "tiers", lambda acc, **_: (tier,))


def makers(tile_tiers: list[Any]) -> set[int]:
    """The tiers that made the tiles in `tile_tiers`, which is emptied; -1 is the exact kernel."""
    tiers = {int(tier) - 1 for one in tile_tiers for tier in one.values.flatten()}
    tile_tiers.clear()
    return tiers

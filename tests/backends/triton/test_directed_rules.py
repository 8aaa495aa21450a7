"""Multiply-adds that round in a direction, and the sums that certified kernels make with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from lpkernels import backends
from lpkernels.arithmetic import Accumulator
from lpkernels.backends.triton._launch import EXACT
from lpkernels.backends.triton.rounding.round import multiply_add
from lpkernels.rounding import ROUNDINGS
from tests.compare import assert_bit_equal

# NumPy, in the interpreter, warns of infinities that are meant.
pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

_BLOCK = 1 << 12


@triton.jit
def multiply_add_kernel(a_ptr, b_ptr, c_ptr, y_ptr, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """y[i] = a[i] b[i] + c[i]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b, c = tl.load(a_ptr + at), tl.load(b_ptr + at), tl.load(c_ptr + at)
    tl.store(y_ptr + at, multiply_add(a, b, c, MODE))


def triples() -> list[torch.Tensor]:
    """Operands a, b and c: any float32, sums that cancel, sums that meet float32's ends, and
    special values."""
    rng = np.random.default_rng(5)
    n = _BLOCK // 4
    anything = [
        rng.integers(-(2**31), 2**31, n).astype(np.int32).view(np.float32) for _ in range(3)
    ]
    usual = [rng.standard_normal(n).astype(np.float32) for _ in range(3)]
    cancelled = [usual[0], usual[1], -(usual[0] * usual[1])]
    small = [x * np.float32(s) for x, s in zip(usual, (2.0**-70, 2.0**-76, 2.0**-148), strict=True)]
    parts = zip(anything, usual, cancelled, small, strict=True)
    a, b, c = (np.concatenate(part) for part in parts)
    specials = np.array([0.0, 1.0, np.inf, np.nan, 3.4e38, 2.0**-149, 2.0**-126], np.float32)
    for x in (a, b, c):
        x[:1000] = rng.choice(specials, 1000) * rng.choice([-1, 1], 1000)
    # The reference adds c first, to +0.
    c[c == 0.0] = 0.0
    return [torch.from_numpy(x) for x in (a, b, c)]


@pytest.mark.parametrize(
    "mode", ["nearest_even", "toward_zero", "toward_positive", "toward_negative"]
)
def test_multiply_add(mode: str, device: str) -> None:
    a, b, c = triples()
    y = torch.empty(_BLOCK, device=device)
    multiply_add_kernel[(1,)](
        a.to(device), b.to(device), c.to(device), y, MODE=ROUNDINGS.index(mode), BLOCK=_BLOCK,
        **EXACT,
    )  # fmt: skip
    left = torch.stack([c, a], 1)[:, None, :]
    right = torch.stack([torch.ones_like(b), b], 1)[:, :, None]
    acc = Accumulator("fp32", mode).to_ints()
    want = backends.get("reference").matmul(left, right, None, acc, None, 0)[:, 0, 0]
    got = torch.where(y.cpu().isnan(), torch.tensor(float("nan")), y.cpu())
    assert_bit_equal(got, want)

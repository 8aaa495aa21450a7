"""Hadamard transforms on the triton backend, to the bit."""

import pytest
import torch

from lpkernels.arithmetic.hadamard import HADAMARD_SIZES, signs_of
from lpkernels.backends import _reference
from lpkernels.backends.triton import BACKEND
from tests.compare import assert_bit_equal
from tests.support.elements import hard_runs

REFERENCE = _reference.BACKEND


@pytest.mark.parametrize("size", HADAMARD_SIZES)
def test_hard_runs(size: int, device: str) -> None:
    signs = signs_of(size, 3)
    x = torch.cat([torch.from_numpy(x) for _, x in hard_runs(size, signs)])
    # The interpreter takes a second for a thousand values.
    x = x[:: size // 16]
    want = REFERENCE.hadamard(x, size, signs, 1)
    assert_bit_equal(BACKEND.hadamard(x.to(device), size, signs, 1), want)


def test_types_and_layouts(device: str) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for size, shape, axis in ((16, (3, 48, 5), 1), (32, (7, 64), 1), (64, (64, 18), 0)):
            x = torch.randn(shape).mul(2.0 ** torch.randint(-30, 15, shape)).to(dtype)
            signs = signs_of(size, 1)
            want = REFERENCE.hadamard(x, size, signs, axis)
            turned = x.t().contiguous().t() if x.dim() == 2 else x
            got = BACKEND.hadamard(turned.to(device), size, signs, axis)
            assert got.is_contiguous()
            assert_bit_equal(got, want, f"{dtype} {size}")

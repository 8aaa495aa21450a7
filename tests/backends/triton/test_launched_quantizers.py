"""Launches of quantize for affine formats: bits are arguments of the kernels, not constants."""

import pytest
import torch

from lpkernels.arithmetic import Quantizer
from lpkernels.backends.triton import BACKEND
from tests.backends.triton.launches import keys, recorded


def launched(fmt: str, rounding: str) -> list[str]:
    x = torch.randn(3, 40, 70)
    with recorded() as calls:
        BACKEND.quantize(
            x, Quantizer(fmt, rounding).to_ints(), torch.tensor(5), 0, 4, torch.empty_like(x)
        )
    return keys(calls)


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("kind", ["", "_sym", "_axis0", "_axis-1"])
def test_one_kernel_for_all_bits(kind: str, rounding: str) -> None:
    first = launched(f"affine8{kind}", rounding)
    assert len(first) == 2
    for bits in range(2, 17):
        assert launched(f"affine{bits}{kind}", rounding) == first
    other = "_axis0" if kind == "_sym" else "_sym"
    assert launched(f"affine8{other}", rounding) != first

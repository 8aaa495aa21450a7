"""Slow: every float32 pattern against independent casts, and tensors of more than 2^31 elements."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch

from lpkernels.arithmetic import Quantizer
from lpkernels.backends import cpu
from lpkernels.formats import parse_format
from lpkernels.rounding import round_array
from tests.backends.cpu.test_quantize_kernels import quantized
from tests.compare import assert_bit_equal
from tests.support.elements import expected

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not cpu.BACKEND.available(), reason=f"cpu backend: {cpu.BACKEND.why_not()}"),
]

BLOCK = 1 << 24
NAN = 0x7FC00000


def canonical(y: np.ndarray) -> np.ndarray:
    """The bits of float32 values, those of NaN made 0x7fc00000."""
    bits = y.view(np.uint32).copy()
    bits[np.isnan(y)] = NAN
    return bits


def by_ml_dtypes(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def by_torch(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).bfloat16().float().numpy()


def by_round_array(x: np.ndarray) -> np.ndarray:
    y = round_array(x.astype(np.float64), parse_format("e5m2_sat"), "nearest_even")
    return y.astype(np.float32)


@pytest.mark.parametrize(
    ("name", "cast"),
    [("e4m3fn", by_ml_dtypes), ("bf16", by_torch), ("e5m2_sat", by_round_array)],
)
def test_every_float32(name: str, cast: Callable[[np.ndarray], np.ndarray]) -> None:
    """All 2^32 patterns are rounded, 2^24 at a time. The positive ones are compared with the
    oracle; the negative ones, also of the independent casts, are their mirror image."""
    quantizer = Quantizer(name)
    for start in range(0, 2**31, BLOCK):
        x = np.arange(start, start + BLOCK, dtype=np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            want = canonical(cast(x))
            mirrored = np.where(want == NAN, want, want | np.uint32(0x80000000))
            if cast is not by_round_array:
                assert np.array_equal(canonical(cast(-x)), mirrored), hex(start + 2**31)
        for argument, bits in ((x, want), (-x, mirrored)):
            got = quantized(torch.from_numpy(argument), quantizer)
            assert np.array_equal(got.numpy().view(np.uint32), bits), hex(start)


@pytest.mark.parametrize(
    "quantizer",
    [
        Quantizer("e4m3"),
        Quantizer("e4m3", "stochastic"),
        Quantizer("e4m3", "stochastic", random_bits=8),
    ],
    ids=["nearest_even", "stochastic", "stochastic of 8 bits"],
)
def test_more_than_2_31_elements(quantizer: Quantizer) -> None:
    """The bfloat16 tensors are 8 GiB in and out. Both ends and the part around 2^31 are checked,
    and the zeros between stay zeros."""
    count, window = 2**31 + 2**20, 1 << 16
    starts = (0, 2**31 - window // 2, count - window)
    x = torch.zeros(count, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(6)
    for start in starts:
        x[start : start + window] = torch.randn(window, generator=generator)
    out = torch.ones(count, dtype=torch.bfloat16)
    quantized(x, quantizer, out)
    nonzeros = 0
    for start in starts:
        part = slice(start, start + window)
        want = expected(x[part].float().numpy(), quantizer, first=start)
        assert_bit_equal(out[part].float(), want, f"from {start}")
        nonzeros += int(np.count_nonzero(want))
    assert sum(int(part.count_nonzero()) for part in out.split(1 << 24)) == nonzeros

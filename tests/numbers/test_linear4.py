"""linear4, the table without zero for second moments: blocks against fractions, codes, refusals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic import Quantizer
from lpkernels.reference import exact, twin
from lpkernels.rng import draw
from tests.compare import assert_bit_equal
from tests.numbers.exact_tables import MODES, Table

FORMAT = "block128_linear4_sfp32"
# Codes (i + 1) / 16 times the largest magnitude.
TABLE = Table.of([(i + 1) / 16 for i in range(16)])


def hard_values() -> np.ndarray:
    """Rows of 300: all sizes; ties; negative values and zeros; subnormals; zeros; NaN, infinity."""
    rng = np.random.default_rng(4)
    x = np.abs(rng.standard_normal((6, 300))) * 2.0 ** rng.integers(-30, 30, (6, 300))
    x[1, :] = rng.integers(0, 65, 300) / 64 * 2.0**-7
    x[1, ::128] = 2.0**-7
    x[2, ::3], x[2, 1::3] = -x[2, ::3], [0.0, -0.0] * 50
    x[3] = rng.integers(0, 40, 300) * 2.0**-149
    x[4, :128], x[4, 128:140] = 0.0, -0.0
    x[5, 3], x[5, 130] = np.nan, np.inf
    return x.astype(np.float32)


@pytest.mark.parametrize("mode", (*MODES, "stochastic"))
def test_blocks_are_those_of_fractions_in_every_backend(mode: str) -> None:
    x, quantizer = hard_values(), Quantizer(FORMAT, mode)
    want = np.empty_like(x)
    for (row, col), value in np.ndenumerate(x):
        first = col // 128 * 128
        block = x[row, first : first + 128]
        if not np.isfinite(block).all():
            want[row, col] = np.nan
            continue
        largest = float(np.abs(block).max())
        if largest == 0:
            want[row, col] = 0.0
            continue
        bits = draw(9, 4, 0, 0, row * 300 + col, 32) if mode == "stochastic" else 0
        code = TABLE.rounded(Fraction(float(value) / largest), mode, bits)
        # Five bits times 24 are a float64, which is rounded once.
        want[row, col] = np.float32(float(code * Fraction(largest)))
    assert_bit_equal(twin.quantize(x, quantizer, seed=9), want, mode)
    assert_bit_equal(exact.quantize(x, quantizer, seed=9), want, mode)
    if mode != "stochastic":
        for backend in ("reference", "cpu"):
            got = lp.quantize(torch.from_numpy(x), quantizer, backend=backend)
            assert_bit_equal(got.numpy(), want, f"{backend} {mode}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_packed_in_four_bits_and_come_back(dtype: torch.dtype) -> None:
    x = torch.from_numpy(np.abs(hard_values()))
    values = lp.quantize(x, FORMAT)
    codes = lp.pack(values.to(dtype), FORMAT)
    assert codes.numel() == 6 * 3 * 4 + 6 * 300 // 2
    assert_bit_equal(lp.unpack(codes, FORMAT, x.shape), values)
    # The same values as codes with their scales; subnormal values have several codes.
    q = lp.scaled(x, FORMAT)
    assert_bit_equal(lp.unpack(lp.pack(q), FORMAT, x.shape), values)
    assert_bit_equal(lp.pack(lp.scaled(x[:3], FORMAT)), lp.pack(values[:3], FORMAT))
    elements, scale, _ = q.tensors()
    back = lp.Scaled.from_tensors(elements, scale, None, FORMAT)
    assert torch.equal(back.values, q.values) and elements.max() == 15
    assert q.values[5].min() == 1 / 16 and q.scale[5, :2].isnan().all()

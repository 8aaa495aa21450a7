"""linear4, the table without zero for second moments: blocks against fractions, codes, refusals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic import Quantizer
from lpkernels.formats import format_from_ints
from lpkernels.formats.named_tables import linear4
from lpkernels.reference import exact, twin
from lpkernels.rng import draw
from tests.compare import assert_bit_equal
from tests.loops import each, rows
from tests.numbers.exact_tables import MODES, Table
from tests.support.refusals import refused

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


@each("mode", (*MODES, "stochastic"))
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


def test_a_block_of_zeros_is_zero_exactly_and_any_other_block_has_no_zero() -> None:
    x = torch.zeros(2, 256)
    x[1, 130] = 8.0
    q = lp.scaled(x, FORMAT)
    assert q.scale.tolist() == [[0.0, 0.0], [0.0, 8.0]]
    assert_bit_equal(q.dequantize()[0], torch.zeros(256))
    expected = torch.full((128,), 0.5)
    expected[2] = 8.0
    assert_bit_equal(lp.quantize(x, FORMAT)[1, 128:], expected)
    # Negative values have no code: the least one stands for them.
    assert lp.quantize(torch.tensor([-4.0, 1.0, 2.0]), FORMAT).tolist() == [0.25, 1.0, 2.0]
    # Where a sixteenth is below float32, it is rounded as every product is.
    assert lp.quantize(torch.tensor([2.0**-149, 0.0]), FORMAT).tolist() == [2.0**-149, 0.0]


@rows("dtype", torch.float32, torch.float64)
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


def test_its_name_and_integers_are_read_back() -> None:
    fmt = lp.parse_format(FORMAT)
    assert str(fmt) == FORMAT and fmt.element == linear4() and fmt.bits == 4.25
    assert format_from_ints(fmt.to_ints()) == fmt and fmt.zero_scale == 0.0
    assert lp.BlockFormat(linear4(), 128, scale="fp32") == fmt
    assert lp.parse_format("linear4") == linear4()
    assert linear4().values().tolist() == [(i + 1) / 16 for i in range(16)]
    assert lp.parse_format("block128_nf4_sfp32").zero_scale == 1.0


ONE = torch.ones(4, 128)
test_what_needs_a_zero_refuses_it = refused(
    [
        (lambda: lp.quantize(ONE, "linear4"), "linear4 has no zero, so it is an element of blocks"),
        (lambda: lp.pack(ONE, "linear4"), "linear4 has no zero, so it is an element of blocks"),
        (lambda: lp.Quantizer(linear4()), "has no zero, so it is an element of blocks"),
        (lambda: lp.Accumulator("linear4"), "has no zero, so it is an element of blocks"),
        (lambda: lp.BlockFormat("linear4", 128), "takes scale='fp32', got e8m0"),
        (lambda: lp.Recipe(input=FORMAT), f"Recipe: input: {FORMAT} has no zero"),
        (lambda: lp.Recipe(grad_weight=FORMAT), f"Recipe: grad_weight: {FORMAT} has no zero"),
        (lambda: lp.matmul(lp.scaled(ONE, FORMAT), ONE.T, "fp32_chunkscale"),
         f"matmul: {FORMAT} has no zero"),
        (lambda: lp.count(ONE, FORMAT), f"count: nothing is counted in {FORMAT}"),
        (lambda: lp.quantize(ONE, FORMAT, counts=torch.zeros(4, dtype=torch.int64)),
         "quantize: nothing is counted"),
        (lambda: lp.pack(torch.tensor([0.0, 1.0]), FORMAT), r"no code for 0\.0; round x with"),
        (lambda: lp.pack(torch.tensor([0.3, 1.0]), FORMAT), "has no code for 0.3"),
        (lambda: lp.pack(ONE, "row_linear4"), "do not tell the codes and scales"),
        (lambda: lp.TableFormat([1, 2], "mine"), r"none of the values 1\.0 \.\. 2\.0 is 0"),
    ],
    ValueError,
)  # fmt: skip


def test_draws_stay_between_neighbours_and_are_the_same_as_of_codes() -> None:
    x = torch.rand(40, 128)
    x[:, 0] = 1.0
    drawn = [
        f(x, FORMAT, "stochastic", generator=torch.tensor(3)) for f in (lp.quantize, lp.scaled)
    ]
    assert_bit_equal(drawn[0], drawn[1].dequantize())
    away = (drawn[0] - x.clamp(min=1 / 16)).abs()
    assert away.max() < 1 / 16 and away[:, 1:].mean() == pytest.approx(1 / 48, rel=0.2)

"""Quantisation: known values of every format, and the bits of the twin against the exact ones."""

import math

import numpy as np
import pytest

from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.reference import exact, twin
from lpkernels.reference.counting import quantize_counting
from tests.cases import EVERY_FORMAT, ROUNDINGS, hard_values
from tests.compare import assert_bit_equal
from tests.support.products import KINDS, operand

BLOCKS = """
    block32_e4m3 block4_axis0_e5m2 block3_axis1_e2m1 block5_e1m6none block2_e4m3_nosub
    block1_e3m0none_b9
""".split()
AFFINES = "affine8 affine1_axis0 affine3_axis-1 affine16 affine4_sym affine2_sym_axis1".split()


def both(x: np.ndarray, quantizer: Quantizer, **key: int) -> tuple[np.ndarray, np.ndarray]:
    return twin.quantize(x, quantizer, **key), exact.quantize(x, quantizer, **key)


@pytest.mark.parametrize("fmt", EVERY_FORMAT)
def test_quantize_equals_exact_on_hard_values(fmt: FloatFormat | FixedFormat):
    x = hard_values(fmt, count=8)
    x = x[:: max(1, len(x) // 100)]
    for rounding in ROUNDINGS:
        assert_bit_equal(*both(x, Quantizer(fmt, rounding), seed=5), rounding)


@pytest.mark.parametrize("fmt", [*BLOCKS, *AFFINES])
@pytest.mark.parametrize("kind", KINDS)
def test_quantize_of_a_group_equals_exact(fmt, kind, rng):
    x = operand(kind, (3, 4, 5), rng)
    for rounding in ROUNDINGS:
        assert_bit_equal(*both(x, Quantizer(fmt, rounding, random_bits=9), seed=5), rounding)


@pytest.mark.parametrize("fmt", ["e5m2", "block4_e4m3", "affine4"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_quantize_takes_any_dtype_and_strides(fmt: str, dtype: type, rng: np.random.Generator):
    x = rng.standard_normal((6, 10)).astype(dtype)[::2, ::-3].T
    got, want = both(x, Quantizer(fmt, "stochastic"))
    assert_bit_equal(got, want)
    assert_bit_equal(got, twin.quantize(np.ascontiguousarray(x), Quantizer(fmt, "stochastic")))


THIRD = float(np.float32(0.3))
BLOCKED = [[4.0, 4.0, 0.3], [4.0, 4.0, 100.0]]


@pytest.mark.parametrize(
    "fmt, x, want",
    [
        # float64 is rounded once: through float32 this would be the tie 1 + 2^-11, which goes to 1.
        ("fp16", [1 + 2**-11 + 2**-40], [1 + 2**-10]),
        ("e5m2:toward_positive", [1e-310, -1e-310], [2**-16, -0.0]),
        # floor(log2 500) - 8 = 0: 500 lies beyond e4m3fn's 448, whose own overflow is NaN.
        ("block32_e4m3fn", [500.0, -500.0], [448.0, -448.0]),
        ("block2_e4m3fn", [1.0, math.nan, 1.0, 2.0], [math.nan, math.nan, 1.0, 2.0]),
        ("block2_e4m3fn", [1.0, math.inf, 1.0, 2.0], [math.nan, math.nan, 1.0, 2.0]),
        # floor(log2 x) - 2 would be -151: with X = -127 the step of e2m1 is 2^-128.
        ("block32_e2m1", [2.0**-149, 3 * 2.0**-130], [0.0, 2.0**-128]),
        # Directed modes do not lose values far below the scale.
        ("block2_e2m1:toward_positive", [2.0**127, 1e-300], [2.0**127, 2.0**124]),
        ("block2_e2m1", [2.0**127, 1e-300], [2.0**127, 0.0]),
        # A block that is short at the end of a line has its own scale.
        ("block2_e2m1", BLOCKED, [[4.0, 4.0, 0.25], [4.0, 4.0, 96.0]]),
        ("block2_axis0_e2m1", np.transpose(BLOCKED), [[4.0, 4.0], [4.0, 4.0], [0.25, 96.0]]),
        # Codes span the range; hi is exact although 3 * (0.3 / 3) need not be.
        ("affine2", [-1.0, 0.0, 0.1, 0.3, 2.0], [-1.0, 0.0, 0.0, 0.0, 2.0]),
        ("affine16", [0.0, THIRD], [0.0, THIRD]),
        # No zero is forced.
        ("affine1", [-1.0, 0.2, 2.0], [-1.0, -1.0, 2.0]),
        # Every slice has a range of its own.
        ("affine1_axis0", [[0.0, 0.4, 1.0], [0.0, 40.0, 100.0]], [[0.0, 0.0, 1.0], [0, 0, 100]]),
        ("affine1_axis-1", [[0.0, 0.0], [0.4, 40.0], [1.0, 100.0]], [[0.0, 0.0], [0, 0], [1, 100]]),
        # A symmetric format has an exact zero, of one sign.
        ("affine3_sym", [-3.0, -0.0, 1.4, 1.6, math.inf, -math.inf], [-3.0, 0, 1, 2, 3, -3]),
        # Special values are left out of the range.
        ("affine2", [0.0, math.nan, 3.0, math.inf, -math.inf], [0.0, math.nan, 3, 3, 0]),
        ("affine2", [math.nan, math.inf], [math.nan, math.nan]),
        # The floor of the scale flattens narrow tensors.
        ("affine8", [0.0, 4e-9, 6e-9], [0.0, 0.0, float(np.float32(1e-8))]),
        ("affine8_sym", [-0.0, -0.0], [0.0, 0.0]),
    ],
)
def test_quantize_gives_the_worked_values(fmt: str, x: list, want: list) -> None:
    assert_bit_equal(*both(np.array(x), as_quantizer(fmt)))
    got = twin.quantize(np.array(x), as_quantizer(fmt))
    assert_bit_equal(got, np.array(want, np.float32))


def test_values_of_a_nan_block_overflow_in_no_program() -> None:
    x = np.full((1, 32), 3e38, np.float32)
    x[0, 3] = math.nan
    counts = quantize_counting(x, Quantizer("block32_e4m3_torchao"))[1]
    assert counts[:4].tolist() == [0, 0, 0, 1]

"""Quantisation: known values of every format, and the bits of the twin against the exact ones."""

import math

import numpy as np
import pytest

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import AffineFormat, BlockFormat, FixedFormat, FloatFormat
from lpkernels.reference import exact, twin
from lpkernels.rng import SITE_OUTPUT
from tests.cases import ROUND_FORMATS, ROUNDINGS, hard_values
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.operands import KINDS, operand

BLOCKS = [
    BlockFormat("e4m3"),
    BlockFormat("e5m2", 4, axis=0),
    BlockFormat("e2m1", 3, axis=1),
    BlockFormat(FloatFormat(1, 6, specials="none"), 5),
    BlockFormat(FloatFormat(4, 3, subnormals=False), 2),
    BlockFormat(FloatFormat(3, 0, specials="none", bias=9), 1),
]
AFFINES = [
    AffineFormat(8),
    AffineFormat(1, axis=0),
    AffineFormat(3, axis=-1),
    AffineFormat(16),
    AffineFormat(4, symmetric=True),
    AffineFormat(2, symmetric=True, axis=1),
]


def both(x: np.ndarray, quantizer: Quantizer, **key: int) -> tuple[np.ndarray, np.ndarray]:
    return twin.quantize(x, quantizer, **key), exact.quantize(x, quantizer, **key)


def quantize_both(x: list, fmt: object, rounding: str = "nearest_even") -> list:
    """Both results, which must agree, as a list."""
    got, want = both(np.array(x), Quantizer(fmt, rounding))
    assert_bit_equal(got, want)
    return got.tolist()


@each("rounding", ROUNDINGS)
@each("fmt", ROUND_FORMATS)
def test_quantize_equals_exact_on_hard_values(
    fmt: FloatFormat | FixedFormat, rounding: str
) -> None:
    x = hard_values(fmt, count=8)
    x = x[:: max(1, len(x) // 100)]
    assert_bit_equal(*both(x, Quantizer(fmt, rounding), seed=5))


@each("kind", KINDS)
@each("rounding", ROUNDINGS)
@each("fmt", [*BLOCKS, *AFFINES])
def test_quantize_of_a_group_equals_exact(
    fmt: BlockFormat | AffineFormat, rounding: str, kind: str, rng: np.random.Generator
) -> None:
    x = operand(kind, (3, 4, 5), rng)
    assert_bit_equal(*both(x, Quantizer(fmt, rounding, random_bits=9), seed=5))


@each("random_bits", [None, 1, 8, 9, 16, 17, 32])
@each("generator", ["fast", "philox"])
def test_quantize_equals_exact_for_every_number_of_random_bits(
    generator: str, random_bits: int | None, rng: np.random.Generator
) -> None:
    quantizer = Quantizer("e4m2", "stochastic", random_bits=random_bits, rng=generator)
    x = rng.standard_normal((7, 9))
    assert_bit_equal(*both(x, quantizer, seed=-3, site=SITE_OUTPUT))


@each("dtype", [np.float16, np.float32, np.float64])
@each("fmt", ["e5m2", "block4_e4m3", "affine4"])
def test_quantize_takes_any_dtype_and_strides(
    fmt: str, dtype: type, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((6, 10)).astype(dtype)[::2, ::-3].T
    got, want = both(x, Quantizer(fmt, "stochastic"))
    assert_bit_equal(got, want)
    assert_bit_equal(got, twin.quantize(np.ascontiguousarray(x), Quantizer(fmt, "stochastic")))


@each("fmt", ["e5m2", "fixed8_f4", "block4_e4m3", "affine4", "affine3_sym"])
@each("shape", [(), (0,), (2, 0, 3)])
def test_quantize_takes_scalars_and_empty_tensors(fmt: str, shape: tuple) -> None:
    x = np.full(shape, 0.3, np.float32)
    got, want = both(x, Quantizer(fmt))
    assert_bit_equal(got, want)
    assert got.shape == shape


def test_quantize_rounds_float64_once() -> None:
    # Through float32 this would be the tie 1 + 2^-11, which goes to 1.
    assert quantize_both([1 + 2**-11 + 2**-40], "fp16") == [1 + 2**-10]
    assert quantize_both([1e-310, -1e-310], "e5m2", "toward_positive") == [2**-16, 0.0]


def test_quantize_does_not_depend_on_slabs(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, quantizer = rng.standard_normal((5, 9)), Quantizer("e4m2", "stochastic")
    whole = twin.quantize(x, quantizer)
    monkeypatch.setattr("lpkernels.reference.quantize._SLAB", 7)
    assert_bit_equal(twin.quantize(x, quantizer), whole)


# --- blocks ---


def test_block_scale_follows_its_largest_magnitude() -> None:
    fmt = BlockFormat("e2m1", 4)
    # e2m1 holds 0 0.5 1 1.5 2 3 4 6; the scale is 1, then 2^-1, then 2.
    assert quantize_both([4.0, 0.3, -2.6, 7.9], fmt) == [4.0, 0.5, -3.0, 6.0]
    assert quantize_both([2.0, 0.3, -2.6, 3.9], fmt) == [2.0, 0.25, -3.0, 3.0]
    assert quantize_both([8.0, 0.3, -2.6], fmt) == [8.0, 0.0, -3.0]


def test_block_saturates_whatever_the_element_says() -> None:
    # floor(log2 500) - 8 = 0: 500 lies beyond e4m3's 448, whose own overflow is NaN.
    assert quantize_both([500.0, -500.0], BlockFormat("e4m3")) == [448.0, -448.0]


def test_block_of_zeros_keeps_their_signs() -> None:
    got = quantize_both([0.0, -0.0], BlockFormat("e4m3"))
    assert [math.copysign(1, v) for v in got] == [1, -1]


@each("bad", [math.nan, math.inf, -math.inf])
def test_block_with_a_special_is_all_nan(bad: float) -> None:
    got = quantize_both([1.0, bad, 1.0, 2.0], BlockFormat("e4m3", 2))
    assert np.isnan(got[:2]).all() and got[2:] == [1.0, 2.0]


def test_block_exponent_is_clamped() -> None:
    # floor(log2 x) - 2 would be -151: with X = -127 the step of e2m1 is 2^-128.
    assert quantize_both([2.0**-149, 3 * 2.0**-130], BlockFormat("e2m1")) == [0.0, 2.0**-128]
    top = float(np.float32(3.4e38))
    assert quantize_both([top], BlockFormat("e2m1")) == [6 * 2.0**125]


def test_block_keeps_what_lies_far_below_its_scale() -> None:
    fmt = BlockFormat("e2m1", 2)
    assert quantize_both([2.0**127, 1e-300], fmt, "toward_positive") == [2.0**127, 2.0**124]
    assert quantize_both([2.0**127, 1e-300], fmt) == [2.0**127, 0.0]


def test_block_short_at_the_end_of_a_line_has_its_own_scale() -> None:
    x = np.array([[4.0, 4.0, 0.3], [4.0, 4.0, 100.0]])
    got = quantize_both(x, BlockFormat("e2m1", 2))
    assert got == [[4.0, 4.0, 0.25], [4.0, 4.0, 96.0]]
    assert quantize_both(x.T, BlockFormat("e2m1", 2, axis=0)) == np.transpose(got).tolist()


# --- affine ---


def test_affine_codes_span_the_range() -> None:
    got = quantize_both([-1.0, 0.0, 0.1, 0.3, 2.0], AffineFormat(2))
    assert got == [-1.0, 0.0, 0.0, 0.0, 2.0]
    third = np.float32(0.3)
    # hi is exact although 3 * (0.3 / 3) need not be.
    assert quantize_both(np.array([0.0, third]), AffineFormat(16))[1] == third


def test_affine_forces_no_zero() -> None:
    assert quantize_both([-1.0, 0.2, 2.0], AffineFormat(1)) == [-1.0, -1.0, 2.0]


def test_affine_takes_one_range_for_each_slice() -> None:
    x = np.array([[0.0, 0.4, 1.0], [0.0, 40.0, 100.0]])
    assert quantize_both(x, AffineFormat(1, axis=0)) == [[0, 0, 1], [0, 0, 100]]
    assert quantize_both(x.T, AffineFormat(1, axis=-1)) == [[0, 0], [0, 0], [1, 100]]


def test_affine_symmetric_has_an_exact_zero() -> None:
    x = [-3.0, -0.0, 1.4, 1.6, math.inf, -math.inf]
    got = quantize_both(x, AffineFormat(3, symmetric=True))
    assert got == [-3.0, 0.0, 1.0, 2.0, 3.0, -3.0]
    assert math.copysign(1, got[1]) == 1


def test_affine_treats_specials_apart() -> None:
    got = quantize_both([0.0, math.nan, 3.0, math.inf, -math.inf], AffineFormat(2))
    assert got[:1] + got[2:] == [0.0, 3.0, 3.0, 0.0] and math.isnan(got[1])
    for symmetric in (False, True):
        fmt = AffineFormat(2, symmetric=symmetric)
        assert np.isnan(quantize_both([math.nan, math.inf], fmt)).all()


def test_affine_floor_flattens_narrow_tensors() -> None:
    assert quantize_both([1.0, 1.0], AffineFormat(8)) == [1.0, 1.0]
    assert quantize_both([0.0, 4e-9, 6e-9], AffineFormat(8)) == [0.0, 0.0, float(np.float32(1e-8))]
    assert quantize_both([-0.0, -0.0], AffineFormat(8, symmetric=True)) == [0.0, 0.0]

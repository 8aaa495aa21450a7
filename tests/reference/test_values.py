"""float32 and float64 convert exactly, also while the process flushes denormals."""

import contextlib
from collections.abc import Callable

import numpy as np

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.reference import exact, twin
from lpkernels.reference.values import narrow, product_to_odd, widen, without_tiny
from tests.cases import EVERY_ACCUMULATOR, FLOAT_FORMATS
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.operands import operand
from tests.support.processor import flushed

Mode = Callable[[], contextlib.AbstractContextManager[None]]
MODES = (contextlib.nullcontext, flushed)


def patterns(rng: np.random.Generator) -> np.ndarray:
    """float32 values with random exponents, many of them subnormal, and specials."""
    bits = rng.integers(0, 2**32, 2000, dtype=np.uint32)
    bits[::2] &= np.uint32(0x80FFFFFF)
    bits[:6] = [0, 0x80000000, 1, 0x80000001, 0x7F800000, 0xFF800000]
    return bits.view(np.float32)


@each("mode", MODES)
def test_narrow_inverts_widen(mode: Mode, rng: np.random.Generator) -> None:
    x = patterns(rng)
    bits = np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))
    with mode():
        got = narrow(widen(x))
    assert_bit_equal(got.view(np.uint32), bits)


@each("mode", MODES)
def test_widen_is_exact_for_subnormals(mode: Mode) -> None:
    x = np.array([1, 0x80000003, 0x007FFFFF], np.uint32).view(np.float32)
    with mode():
        assert widen(x).tolist() == [2.0**-149, -3 * 2.0**-149, (2**23 - 1) * 2.0**-149]
        assert widen(np.array(5, np.float16)).shape == ()


@each("mode", MODES)
def test_narrow_rounds_to_nearest_even(mode: Mode) -> None:
    tiny = 2.0**-149
    x = np.array([tiny / 2, tiny * 1.5, -tiny * 0.4, tiny * (2**23 - 0.5), 1 + 2.0**-24, 3.5e38])
    want = np.array([0, 2, 0x80000000, 0x00800000, 0x3F800000, 0x7F800000], np.uint32)
    with mode():
        assert narrow(x).view(np.uint32).tolist() == want.tolist()


def test_without_tiny_moves_only_what_no_rounding_can_see() -> None:
    x = np.array([1e-310, -5e-324, 2.0**-500, -(2.0**-499), 0.0, -0.0, np.inf])
    want = np.array([2.0**-500, -(2.0**-500), 2.0**-500, -(2.0**-499), 0.0, -0.0, np.inf])
    assert_bit_equal(without_tiny(x), want)


def test_results_do_not_depend_on_the_denormal_mode(rng: np.random.Generator) -> None:
    a, b = operand("subnormal", (3, 9), rng), operand("subnormal", (9, 2), rng)
    small = rng.standard_normal(200) * 2.0 ** rng.integers(-1070, -100, 200)

    def results() -> list[np.ndarray]:
        sums = [twin.matmul(a, b, None, acc, seed=3) for acc in EVERY_ACCUMULATOR]
        modes = ("nearest_even", "toward_positive", "stochastic")
        return sums + [
            twin.quantize(small, Quantizer(fmt, mode))
            for fmt in (*FLOAT_FORMATS, "block8_e2m1", "fixed8_f149")
            for mode in modes
        ]

    plain = results()
    with flushed():
        again = results()
    for got, want in zip(again, plain, strict=True):
        assert_bit_equal(got, want)


def test_sums_of_subnormals_are_exact_and_infinite_products_keep_their_signs() -> None:
    tiny = np.array([[2.0**-149, 2.0**-149]], np.float32)
    one = np.ones((2, 1), np.float32)
    acc = Accumulator("fp32")
    assert twin.matmul(tiny, one, None, acc).item() == 2.0**-148
    assert exact.matmul(tiny, one, None, acc).item() == 2.0**-148
    x = np.array([np.inf, -np.inf, np.nan, -0.0])
    with np.errstate(invalid="ignore"):
        assert_bit_equal(product_to_odd(x, np.array(3.0)), x)

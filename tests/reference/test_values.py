"""float32 and float64 convert exactly, also while the process flushes denormals."""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

from lpkernels.arithmetic import Quantizer
from lpkernels.reference import twin
from lpkernels.reference.values import narrow, widen
from tests.cases import EVERY_ACCUMULATOR, FLOAT_FORMATS
from tests.compare import assert_bit_equal
from tests.support.processor import flushed
from tests.support.products import operand

Mode = Callable[[], contextlib.AbstractContextManager[None]]
MODES = (contextlib.nullcontext, flushed)


def patterns(rng: np.random.Generator) -> np.ndarray:
    """float32 values with random exponents, many of them subnormal, and specials."""
    bits = rng.integers(0, 2**32, 2000, dtype=np.uint32)
    bits[::2] &= np.uint32(0x80FFFFFF)
    bits[:6] = [0, 0x80000000, 1, 0x80000001, 0x7F800000, 0xFF800000]
    return bits.view(np.float32)


@pytest.mark.parametrize("mode", MODES)
def test_narrow_inverts_widen(mode: Mode, rng: np.random.Generator) -> None:
    x = patterns(rng)
    bits = np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))
    with mode():
        got = narrow(widen(x))
    assert_bit_equal(got.view(np.uint32), bits)


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

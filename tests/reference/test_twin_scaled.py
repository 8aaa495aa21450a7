"""Codes and scales: the twin against exact fractions, for any block, tile, axis and value."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import BlockFormat, FixedFormat, FloatFormat, parse_format
from lpkernels.formats.integers import takes_amax
from lpkernels.reference import exact_quantize, twin
from lpkernels.rng import draw
from lpkernels.rounding import round_scalar
from tests.compare import assert_bit_equal
from tests.support import strategies
from tests.support.elements import SMALL, UNDERFLOWING, small_tensor

Round = Callable[[Fraction | float, FloatFormat | FixedFormat, int], float]


def exact_rounding(mode: str, seed: int) -> Round:
    def rounded(value: Fraction | float, fmt: FloatFormat | FixedFormat, index: int) -> float:
        bits = draw(seed, 0, 0, 0, index, 32, "fast") if mode == "stochastic" else 0
        return round_scalar(value, fmt, mode, draw=bits)

    return rounded


def compare(x: np.ndarray, fmt: BlockFormat, mode: str, seed: int, amax: float | None) -> None:
    want = exact_quantize.scaled(x, fmt, exact_rounding(mode, seed), amax)
    got = twin.scaled(x, Quantizer(fmt, mode), seed=seed, site=0, amax=amax)
    for part, one, other in zip(want._fields, got, want, strict=True):
        assert_bit_equal(one, other, f"{fmt} {mode} {part}")
    assert_bit_equal(twin.dequantize(got, fmt), exact_quantize.dequantize(want, fmt), str(fmt))


# Bits of float32: of any value, and of values whose blocks are not all NaN.
ANY = st.integers(0, 2**32 - 1)
NEAR = st.builds(lambda e, m, s: e << 23 | m | s << 31, st.integers(100, 140),
                 st.integers(0, 2**23 - 1), st.integers(0, 1))  # fmt: skip
ZEROS = st.sampled_from([0, 1 << 31, 1, 0x007FFFFF, 0x7F800000, 0x7FC00000])


@st.composite
def arrays(draw_: st.DrawFn) -> np.ndarray:
    shape = tuple(draw_(st.lists(st.integers(1, 5), min_size=2, max_size=3)))
    size = int(np.prod(shape))
    kinds = draw_(st.sampled_from([ANY, NEAR, NEAR | ZEROS]))
    bits = draw_(st.lists(kinds, min_size=size, max_size=size))
    x = np.array(bits, dtype=np.uint32).view(np.float32).reshape(shape)
    return x.swapaxes(0, -1) if draw_(st.booleans()) else x


@settings(max_examples=150)
@given(
    arrays(),
    strategies.scaled_formats(),
    st.data(),
    st.integers(0, 2**40),
    strategies.AMAX,
)
def test_scaled_equals_exact(x, fmt, data, seed, amax):
    fmt, mode = strategies.fitting(fmt, x.ndim), data.draw(strategies.modes_of(fmt))
    compare(x, fmt, mode, seed, amax if takes_amax(fmt.to_ints()) else None)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize(
    "name", ["block4_e4m3", "block4_e2m1_se4m3fn_t", "tensor_int4_to7.5", "tile2x3_e5m2_up"]
)
def test_scaled_takes_other_dtypes(name, dtype, rng):
    x = (rng.standard_normal((5, 7)) * np.exp2(rng.integers(-9, 9, (5, 7)))).astype(dtype)
    compare(x, parse_format(name), "stochastic", 5, None)


@pytest.mark.parametrize("largest", SMALL)
@pytest.mark.parametrize("name", UNDERFLOWING)
def test_scales_that_underflow_give_no_nan(name: str, largest: float) -> None:
    fmt, x = parse_format(name), small_tensor(largest).numpy()
    if fmt.steps == "exact":
        compare(x, fmt, "nearest_even", 0, None)
    q = twin.scaled(x, Quantizer(fmt))
    assert np.isfinite(q.values).all()
    # torchao's scale of zeros in a tensor that is too small for a scale of its own is 0 / 0.
    assert np.isfinite(q.scale).all() or (fmt.steps == "torchao" and q.tensor_scale == 0)


def parts(name: str, *block: float) -> tuple[float, float, str]:
    """The two scales and the codes of three values of a block of 16."""
    q = twin.scaled(np.array([block + (0.0,) * (16 - len(block))], np.float32), Quantizer(name))
    return q.tensor_scale.item(), q.scale.item(), " ".join(map(str, q.values[0, :3].tolist()))


def test_tensor_scales_that_underflow_and_reciprocals_that_overflow() -> None:
    least = 2.0**-149
    assert parts("nvfp4", -1344 * least, least) == (0, 0, "-0.0 0.0 0.0")
    assert parts("nvfp4", -1345 * least, least)[:2] == (least, 224)
    assert parts("nvfp4", 1e-36, 0.0, -0.0)[2] == "6.0 0.0 -0.0"
    assert parts("nvfp4_te", 1e-36, 0.0, -0.0)[2] == "6.0 0.0 -0.0"
    assert parts("nvfp4_torchao", 1e-36, -1e-39, -0.0)[1:] == (448, "6.0 -6.0 -1.5")
    assert parts("nvfp4_torchao", 5.1e-34, -0.0)[2] == "6.0 -0.0 0.0"
    assert parts("nvfp4_torchao", 4 * least, 0.0)[:2] == (0, 448)
    assert np.isnan(parts("nvfp4_torchao", 3 * least, 0.0)[1])

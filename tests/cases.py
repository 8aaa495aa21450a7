"""Formats, rounding modes, accumulators and shapes as data, for tests and benches."""

from typing import NamedTuple

import numpy as np

from lpkernels import formats
from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.rounding import ROUNDINGS

__all__ = [
    "ACCUMULATORS",
    "CONV_CASES",
    "DETERMINISTIC",
    "FIXED_FORMATS",
    "FLOAT_FORMATS",
    "MATMUL_SHAPES",
    "NAMED_FORMATS",
    "ODD_FLOAT_FORMATS",
    "ROUNDINGS",
    "ROUND_FORMATS",
    "SPECIAL_VALUES",
    "ConvCase",
    "half_values",
    "hard_values",
    "ids",
]

#: Every named float format once, by its first name.
NAMED_FORMATS: dict[str, FloatFormat] = {}
for _name, _format in formats.NAMED.items():
    if _format not in NAMED_FORMATS.values():
        NAMED_FORMATS[_name] = _format

#: The corners of FloatFormat: no mantissa, one exponent bit, every overflow, odd biases, all values
#: below float32's smallest normal number, and all near its largest.
ODD_FLOAT_FORMATS: list[FloatFormat] = [
    FloatFormat(4, 0),
    FloatFormat(8, 0, overflow="saturate"),
    FloatFormat(3, 0, specials="fn"),
    FloatFormat(2, 0, specials="none", overflow="nan"),
    FloatFormat(1, 2, specials="none"),
    FloatFormat(1, 1, specials="fn", overflow="saturate"),
    FloatFormat(4, 3, subnormals=False),
    FloatFormat(5, 2, subnormals=False, overflow="saturate"),
    FloatFormat(4, 3, specials="fn", subnormals=False),
    FloatFormat(4, 3, specials="fn", overflow="saturate"),
    FloatFormat(5, 2, overflow="nan"),
    FloatFormat(4, 3, specials="none", bias=11),
    FloatFormat(3, 4, bias=-60),
    FloatFormat(5, 4, bias=120),
    FloatFormat(8, 1, subnormals=False),
    FloatFormat(8, 22, bias=128),
    FloatFormat(5, 23),
    FloatFormat(3, 5, bias=142),
    FloatFormat(2, 4, bias=-117),
]
FLOAT_FORMATS: list[FloatFormat] = [*NAMED_FORMATS.values(), *ODD_FLOAT_FORMATS]

FIXED_FORMATS: list[FixedFormat] = [
    FixedFormat(8, 4),
    FixedFormat(8, 4, overflow="wrap"),
    FixedFormat(8, 12),
    FixedFormat(5, -3, signed=False),
    FixedFormat(5, -3, signed=False, overflow="wrap"),
    FixedFormat(1, 0),
    FixedFormat(1, 0, signed=False, overflow="wrap"),
    FixedFormat(24, 10),
    FixedFormat(24, 140, overflow="wrap"),
    FixedFormat(24, 149),
    FixedFormat(2, -126),
]

#: Every format with a fixed set of values.
ROUND_FORMATS: list[FloatFormat | FixedFormat] = [*FLOAT_FORMATS, *FIXED_FORMATS]

DETERMINISTIC = tuple(mode for mode in ROUNDINGS if mode != "stochastic")

SPECIAL_VALUES = (0.0, -0.0, float("inf"), float("-inf"), float("nan"))

ACCUMULATORS: list[Accumulator] = [
    # One sum, the product exact: each mode, wide and narrow.
    Accumulator("fp32"),
    Accumulator("e5m10"),
    Accumulator("bf16"),
    Accumulator("e4m3", "nearest_away"),
    Accumulator("e5m10", "toward_zero"),
    Accumulator("e6m9", "toward_positive"),
    Accumulator("e6m9", "toward_negative"),
    Accumulator("e5m7", "to_odd"),
    Accumulator("e8m22", "nearest_even"),
    Accumulator("fp32", "toward_negative"),
    # Rounded products.
    Accumulator("e5m10", product="e4m3"),
    Accumulator("e8m10", product="bf16", product_rounding="toward_zero"),
    Accumulator("e5m6", product="e5m2_sat", product_rounding="nearest_away"),
    # Chunks, also with another outer format.
    Accumulator("e6m9", chunk=64),
    Accumulator("e5m4", chunk=3),
    Accumulator("e8m13", "toward_zero", chunk=4, outer="fp32"),
    Accumulator("e4m7none_b10_nosub_sat", product="e4m7none_b12_nosub_sat", chunk=5, outer="e5m7"),
    Accumulator("fp32", chunk=1, outer="e5m5"),
    # Stochastic: few and many bits, both generators, products too.
    Accumulator("e5m10", "stochastic"),
    Accumulator("e6m9", "stochastic", random_bits=1),
    Accumulator("e5m6", "stochastic", random_bits=13, chunk=7),
    Accumulator("e5m4", "stochastic", random_bits=24, rng="philox"),
    Accumulator(
        "e5m5",
        product="e4m3fn_sat",
        product_rounding="stochastic",
        random_bits=4,
        chunk=6,
        outer="bf16",
    ),
    Accumulator("e5m3", "stochastic", product="e5m2", product_rounding="stochastic", rng="philox"),
    # Fixed point.
    Accumulator("fixed16_f8"),
    Accumulator("fixed8_f3_wrap", "toward_zero"),
    Accumulator("fixed12_f6", "stochastic", product="fixed10_f5", product_rounding="nearest_away"),
    Accumulator("fixed9_f4_wrap", chunk=4, outer="e5m6"),
    # Corners of the format.
    Accumulator("e6m0"),
    Accumulator("e8m0", "to_odd"),
    Accumulator("e5m2_nosub", "toward_negative"),
    Accumulator("e5m3_nosub", "stochastic", random_bits=5),
    Accumulator("e4m3fn"),
    Accumulator("e4m3fn_sat", "nearest_away"),
    Accumulator("e3m2none_sat"),
    Accumulator("e4m3_nan", "toward_positive"),
    # Another rounding of the sum of chunks.
    Accumulator("e8m13", "toward_zero", chunk=4, outer="fp32", outer_rounding="nearest_even"),
    Accumulator("e5m4", chunk=3, outer_rounding="stochastic", outer="e5m3"),
    # Trees.
    Accumulator("e5m10", order="pairwise"),
    Accumulator("fp32", "toward_negative", order="pairwise"),
    Accumulator("e4m3", "to_odd", order="pairwise", product="e5m2_sat", chunk=11),
    Accumulator("e5m4", "stochastic", order="pairwise", chunk=21),
    Accumulator("e5m3_nosub", "stochastic", order="pairwise", random_bits=24, rng="philox"),
    Accumulator("fixed12_f6", order="pairwise", chunk=8, outer="e5m6"),
    Accumulator("fixed8_f3_wrap", "toward_zero", order="pairwise"),
    Accumulator(
        "e5m6",
        order="pairwise",
        product="e4m3fn_sat",
        product_rounding="stochastic",
        random_bits=12,
        chunk=5,
    ),
    # Kahan's sums.
    Accumulator("e5m10", order="compensated"),
    Accumulator("e4m3", "toward_zero", order="compensated", chunk=9, outer="e5m6"),
    Accumulator("e8m7", "toward_negative", order="compensated"),
    Accumulator("e5m5_sat", "to_odd", order="compensated", product="e4m3"),
    Accumulator("e4m3fn_sat", "nearest_away", order="compensated"),
    Accumulator("fixed12_f6", "toward_positive", order="compensated"),
    Accumulator("fixed9_f4_wrap", order="compensated", chunk=4),
    Accumulator(
        "e5m4", order="compensated", product="e4m4", product_rounding="stochastic", random_bits=3
    ),
    # Aligned blocks.
    Accumulator(
        "e8m13",
        "toward_zero",
        chunk=20,
        outer="fp32",
        outer_rounding="nearest_even",
        block=8,
        aligned_bits=13,
    ),
    Accumulator("fp32", block=4, aligned_bits=24),
    Accumulator("fp32", "toward_negative", block=16, aligned_bits=1),
    Accumulator("e5m10", "nearest_away", block=256, aligned_bits=40),
    Accumulator("e5m4", "stochastic", block=3, aligned_bits=9, chunk=7),
    Accumulator("e4m3_nan", "toward_positive", block=5, aligned_bits=4, product="e4m3"),
    Accumulator("e6m0", "to_odd", block=1, aligned_bits=2),
    Accumulator("fixed12_f6", block=7, aligned_bits=12),
    Accumulator("fixed9_f4_wrap", "toward_negative", block=8, aligned_bits=30, chunk=12),
    Accumulator(
        "e5m5",
        block=6,
        aligned_bits=6,
        product="e4m3fn_sat",
        product_rounding="stochastic",
        random_bits=17,
        rng="philox",
    ),
]

#: (M, K, N): empty, one, odd, and not a multiple of any chunk or vector length.
MATMUL_SHAPES: list[tuple[int, int, int]] = [
    (0, 3, 2),
    (2, 3, 0),
    (3, 0, 5),
    (1, 1, 1),
    (1, 7, 1),
    (7, 1, 9),
    (5, 17, 3),
    (3, 64, 33),
    (9, 65, 17),
    (33, 129, 7),
]


class ConvCase(NamedTuple):
    """One convolution: x (N, C_in, *spatial), w (C_out, C_in / groups, *kernel)."""

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


CONV_CASES: dict[str, ConvCase] = {
    "conv1d": ConvCase((2, 3, 9), (4, 3, 3), (1,), (1,), (1,)),
    "conv1d_stride": ConvCase((1, 2, 12), (3, 2, 4), (3,), (2,), (1,)),
    "conv2d": ConvCase((2, 3, 6, 5), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1)),
    "conv2d_1x1": ConvCase((2, 5, 3, 4), (7, 5, 1, 1), (1, 1), (0, 0), (1, 1)),
    "conv2d_stride": ConvCase((1, 3, 7, 8), (5, 3, 3, 2), (2, 3), (1, 0), (1, 1)),
    "conv2d_dilation": ConvCase((1, 2, 9, 8), (3, 2, 3, 3), (1, 2), (2, 1), (2, 3)),
    "conv2d_groups": ConvCase((2, 6, 5, 5), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "conv2d_depthwise": ConvCase((1, 4, 6, 6), (8, 1, 3, 3), (2, 2), (1, 1), (1, 1), 4),
    "conv2d_padding_beyond_kernel": ConvCase((1, 2, 2, 2), (2, 2, 1, 2), (1, 1), (2, 3), (1, 1)),
    "conv2d_unused_rows": ConvCase((1, 2, 8, 7), (2, 2, 2, 2), (3, 3), (0, 0), (1, 1)),
    "conv2d_one_pixel": ConvCase((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0), (1, 1)),
    "conv2d_empty_batch": ConvCase((0, 3, 5, 5), (2, 3, 3, 3), (1, 1), (1, 1), (1, 1)),
    "conv3d": ConvCase((1, 2, 4, 3, 5), (3, 2, 2, 3, 2), (1, 2, 1), (1, 1, 0), (1, 1, 2)),
}


def ids(value: object) -> str:
    """A readable parametrize id: the name of a format or an accumulator."""
    return str(value)


def hard_values(fmt: FloatFormat | FixedFormat, count: int = 200, seed: int = 0) -> np.ndarray:
    """float64 values where rounding to ``fmt`` goes wrong first.

    Values of the format, ties, both neighbours of every tie, the ends of the range, subnormals of
    float32 and float64, specials, and random patterns of both; about ``10 * count`` of them.
    """
    rng = np.random.default_rng(seed)
    grid = _grid(fmt, count, rng)
    ties = (grid[1:] + grid[:-1]) / 2
    edge = fmt.max * np.array([1.0, 1.01, 1.0625, 1.25, 1.5, 2.0, 4.0])
    tiny = np.array([2.0**-1074, 2.0**-1022, 2.0**-150, 2.0**-149, 2.0**-126, 2.0**-33])
    patterns64 = rng.integers(0, 2**64, count, dtype=np.uint64).view(np.float64)
    patterns32 = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    near = [np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf)]
    with np.errstate(invalid="ignore"):
        widened = patterns32.astype(np.float64)
    x = np.concatenate([grid, ties, *near, edge, tiny, patterns64, widened, SPECIAL_VALUES])
    return np.concatenate([x, -x])


def half_values() -> np.ndarray:
    """Every float16 and every bfloat16, NaN included, as float64."""
    patterns = np.arange(2**16, dtype=np.uint16)
    bfloat16 = (patterns.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        return np.concatenate([patterns.view(np.float16), bfloat16], dtype=np.float64)


def _grid(fmt: FloatFormat | FixedFormat, count: int, rng: np.random.Generator) -> np.ndarray:
    """Runs of neighbouring values: all of a small format, else ``count`` around random places."""
    if fmt.bits <= 8:
        return fmt.values()
    if isinstance(fmt, FixedFormat):
        codes = rng.integers(fmt.min_code, fmt.max_code, count)
        return np.unique(np.concatenate([codes, codes + 1])) * fmt.quantum
    exponents = rng.integers(fmt.emin, fmt.emax, count)
    steps = rng.integers(0, 2**fmt.man_bits, count)
    lower = np.ldexp(1.0 + steps * fmt.epsilon, exponents)
    upper = np.ldexp(1.0 + (steps + 1) * fmt.epsilon, exponents)
    small = np.ldexp(np.arange(8.0), fmt.emin - fmt.man_bits)
    return np.unique(np.concatenate([lower, upper, small, [fmt.min_normal, fmt.max]]))

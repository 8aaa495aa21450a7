"""Formats, rounding modes, accumulators and shapes as data, for tests and benches."""

from typing import Any, NamedTuple

import numpy as np

from lpkernels import formats
from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.arithmetic.products import output_size
from lpkernels.formats import FixedFormat, FloatFormat, TableFormat, parse_format
from lpkernels.rounding import ROUNDINGS


def accumulators_named(text: str) -> list[Accumulator]:
    """The accumulators whose names stand in the text, with white space between them."""
    return list(map(accumulator, text.split()))


def formats_named(text: str) -> list[Any]:
    """The formats whose names stand in the text, with white space between them."""
    return list(map(parse_format, text.split()))


#: Every named float format once, by its first name.
NAMED_FORMATS: dict[str, FloatFormat] = {}
for _name, _format in formats.NAMED.items():
    # Of the formats of P3109 three; tests/numbers/test_one_zero.py has all.
    if _name in ("binary8p2", "binary8p5", "binary8p6", "binary8p7"):
        continue
    if _format not in NAMED_FORMATS.values():
        NAMED_FORMATS[_name] = _format

#: The corners of FloatFormat: no mantissa, one exponent bit, every overflow, odd biases, all values
#: below float32's smallest normal number, and all near its largest.
ODD_FLOAT_FORMATS: list[FloatFormat] = formats_named("""
    e4m0 e8m0_sat e3m0fn e2m0none_nan e1m2none e1m1fn_sat e4m3_nosub e5m2_nosub_sat e4m3fn_nosub
    e4m3fn_sat e5m2_nan e4m3none_b11 e3m4_b-60 e5m4_b120 e8m1_nosub e8m22_b128 e5m23 e3m5_b142
    e2m4_b-117 e5m2fnuz_nosub_sat p3109_k11p3se_nan p3109_k8p3ue p3109_k7p7uf_sat
""")
FLOAT_FORMATS: list[FloatFormat] = [*NAMED_FORMATS.values(), *ODD_FLOAT_FORMATS]
FIXED_FORMATS: list[FixedFormat] = formats_named("""
    fixed8_f4 fixed8_f4_wrap fixed8_f12 ufixed5_f-3 ufixed5_f-3_wrap fixed1_f0 ufixed1_f0_wrap
    fixed24_f10 fixed24_f140_wrap fixed24_f149 fixed2_f-126
""")

TABLE_FORMATS: list[TableFormat] = formats_named(
    "posit8es1 posit6es3 posit12es2 supernormal_e3m2_1_1 log6s3 nf4"
)

ROUND_FORMATS: list[FloatFormat | FixedFormat] = [*FLOAT_FORMATS, *FIXED_FORMATS]
#: Every format with a fixed set of values.
EVERY_FORMAT: list[FloatFormat | FixedFormat | TableFormat] = [*ROUND_FORMATS, *TABLE_FORMATS]
DETERMINISTIC = tuple(mode for mode in ROUNDINGS if mode != "stochastic")
SPECIAL_VALUES = (0.0, -0.0, float("inf"), float("-inf"), float("nan"))
ACCUMULATORS: list[Accumulator] = [
    accumulator(name)
    for name in (
        # One sum, the product exact: each mode, wide and narrow.
        "fp32", "e5m10", "bf16", "e4m3:nearest_away", "e5m10:toward_zero", "e6m9:toward_positive",
        "e6m9:toward_negative", "e5m7:to_odd", "e8m22", "fp32:toward_negative",
        # Rounded products.
        "e5m10:product=e4m3", "e8m10:product=bf16:product_rounding=toward_zero",
        "e5m6:product=e5m2_sat:product_rounding=nearest_away",
        # Chunks, also with another outer format.
        "e6m9_chunk64", "e5m4_chunk3", "e8m13_chunk4:toward_zero:outer=fp32",
        "e4m7none_b10_nosub_sat_chunk5:product=e4m7none_b12_nosub_sat:outer=e5m7",
        "fp32_chunk1:outer=e5m5",
        # Stochastic: few and many bits, both generators, products too.
        "e5m10:stochastic", "e6m9:stochastic:bits=1", "e5m6_chunk7:stochastic:bits=13",
        "e5m4:stochastic:bits=24:philox",
        "e5m5_chunk6:product=e4m3fn_sat:product_rounding=stochastic:outer=bf16:bits=4",
        "e5m3:stochastic:product=e5m2:product_rounding=stochastic:philox",
        # Fixed point.
        "fixed16_f8", "fixed8_f3_wrap:toward_zero",
        "fixed12_f6:stochastic:product=fixed10_f5:product_rounding=nearest_away",
        "fixed9_f4_wrap_chunk4:outer=e5m6",
        # Corners of the format.
        "e6m0", "e8m0:to_odd", "e5m2_nosub:toward_negative", "e5m3_nosub:stochastic:bits=5",
        "e4m3fn", "e4m3fn_sat:nearest_away", "e3m2none_sat", "e4m3_nan:toward_positive",
        # One zero, and no sign: in sums, products and sums of chunks.
        "e4m3fnuz", "p3109_k8p3se_chunk5:toward_negative:outer=fp32", "binary8p1:to_odd",
        "e5m2fnuz_sat:stochastic:bits=9", "e5m2fnuz:order=compensated",
        "e5m4_chunk4:product=e4m3fnuz:toward_negative:outer=p3109_k8p4se_sat",
        "p3109_k9p5ue:product=p3109_k8p5uf_sat:product_rounding=nearest_away",
        "e5m6_chunk3:outer=p3109_k8p3uf_sat:order=pairwise",
        # Another rounding of the sum of chunks.
        "e8m13_chunk4:toward_zero:outer=fp32:outer_rounding=nearest_even",
        "e5m4_chunk3:outer=e5m3:outer_rounding=stochastic",
        # Trees.
        "e5m10:order=pairwise", "fp32:toward_negative:order=pairwise",
        "e4m3_chunk11:to_odd:product=e5m2_sat:order=pairwise",
        "e5m4_chunk21:stochastic:order=pairwise",
        "e5m3_nosub:stochastic:order=pairwise:bits=24:philox",
        "fixed12_f6_chunk8:outer=e5m6:order=pairwise", "fixed8_f3_wrap:toward_zero:order=pairwise",
        "e5m6_chunk5:product=e4m3fn_sat:product_rounding=stochastic:order=pairwise:bits=12",
        # Kahan's sums.
        "e5m10:order=compensated", "e4m3_chunk9:toward_zero:outer=e5m6:order=compensated",
        "e8m7:toward_negative:order=compensated", "e5m5_sat:to_odd:product=e4m3:order=compensated",
        "e4m3fn_sat:nearest_away:order=compensated", "fixed12_f6:toward_positive:order=compensated",
        "fixed9_f4_wrap_chunk4:order=compensated",
        "e5m4:product=e4m4:product_rounding=stochastic:order=compensated:bits=3",
        # Aligned blocks.
        "e8m13_chunk20:toward_zero:outer=fp32:outer_rounding=nearest_even:block=8:aligned_bits=13",
        "fp32:block=4:aligned_bits=24", "fp32:toward_negative:block=16:aligned_bits=1",
        "e5m10:nearest_away:block=256:aligned_bits=40",
        "e5m4_chunk7:stochastic:block=3:aligned_bits=9",
        "e4m3_nan:toward_positive:product=e4m3:block=5:aligned_bits=4",
        "e6m0:to_odd:block=1:aligned_bits=2", "fixed12_f6:block=7:aligned_bits=12",
        "fixed9_f4_wrap_chunk12:toward_negative:block=8:aligned_bits=30",
        "e5m5:product=e4m3fn_sat:product_rounding=stochastic:block=6:aligned_bits=6:bits=17:philox",
    )
]  # fmt: skip
#: And tables of values at every place, which csrc/cuda has not: each mode, chunks, orders, beside
#: formats of other kinds.
EVERY_ACCUMULATOR = ACCUMULATORS + accumulators_named("""
    posit8es1 nf4:nearest_away log6s3_chunk5:toward_zero:outer=posit12es2
    posit12es2:toward_positive:product=posit8es1:product_rounding=toward_negative
    e5m4_chunk4:product=nf4:product_rounding=stochastic:outer=log6s3:bits=5
    supernormal_e3m2_1_1_chunk7:stochastic:outer=p3109_k8p3ue:bits=13:philox
    p3109_k8p4uf_sat_chunk3:outer=posit8es1:outer_rounding=to_odd
    posit6es3:to_odd:order=pairwise posit8es1:toward_negative:order=compensated
    log6s3:stochastic:product=fixed8_f4:block=4:aligned_bits=9
""")

#: (M, K, N): empty, one, odd, and not a multiple of any chunk or vector length.
MATMUL_SHAPES: list[tuple[int, int, int]] = [
    (0, 3, 2), (2, 3, 0), (3, 0, 5), (1, 1, 1), (1, 7, 1), (7, 1, 9), (5, 17, 3), (3, 64, 33),
    (9, 65, 17), (33, 129, 7),
]  # fmt: skip


class ConvCase(NamedTuple):
    """One convolution: x (N, C_in, *spatial), w (C_out, C_in / groups, *kernel)."""

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def geometry(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
        """Stride, padding, dilation and groups, as backends take them."""
        return self.stride, self.padding, self.dilation, self.groups

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(N, C_out, *spatial)."""
        size, kernel = self.input_shape[2:], self.weight_shape[2:]
        spatial = output_size(size, kernel, self.stride, self.padding, self.dilation)
        return (self.input_shape[0], self.weight_shape[0], *spatial)


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


def hard_values(
    fmt: FloatFormat | FixedFormat | TableFormat, count: int = 200, seed: int = 0
) -> np.ndarray:
    """float64 values where rounding to ``fmt`` goes wrong first.

    Values of the format, ties, boundaries of tables, both neighbours of all these, the ends of the
    range, subnormals of float32 and float64, specials, and random patterns of both; about
    ``10 * count`` of them.
    """
    rng = np.random.default_rng(seed)
    grid = _grid(fmt, count, rng)
    ties = (grid[1:] + grid[:-1]) / 2
    if isinstance(fmt, TableFormat):
        ties = np.concatenate([ties, rng.choice(fmt.tensors().boundaries, 2 * count)])
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


def _grid(
    fmt: FloatFormat | FixedFormat | TableFormat, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Runs of neighbouring values: all of a small format, else ``count`` around random places."""
    if fmt.bits <= 8:
        return fmt.values()
    if isinstance(fmt, TableFormat):
        places = rng.integers(0, len(fmt.values()) - 1, count)
        return fmt.values()[np.unique(np.concatenate([places, places + 1]))]
    if isinstance(fmt, FixedFormat):
        codes = rng.integers(fmt.min_code, fmt.max_code, count)
        return np.unique(np.concatenate([codes, codes + 1])) * fmt.quantum
    exponents = rng.integers(fmt.emin, max(fmt.emax, fmt.emin + 1), count)
    steps = rng.integers(0, 2**fmt.man_bits, count)
    lower = np.ldexp(1.0 + steps * fmt.epsilon, exponents)
    upper = np.ldexp(1.0 + (steps + 1) * fmt.epsilon, exponents)
    small = np.ldexp(np.arange(8.0), fmt.emin - fmt.man_bits)
    return np.unique(np.concatenate([lower, upper, small, [fmt.min_normal, fmt.max]]))

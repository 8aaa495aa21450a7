"""round_array and round_scalar against gfloat, an independent implementation by Graphcore.

Every float16 and bfloat16 pattern, and the hard values of each format, in each mode gfloat has.
Known differences, by design of one side or the other:

- gfloat has no to_odd.
- Without subnormals gfloat keeps more precision below min_normal instead of the two neighbours 0
  and min_normal: formats without subnormals are left out.
- gfloat ties NaN and infinity to codes, while here they are values of any format. A result beyond
  max that gfloat cannot write (specials "none" with overflow "infinity" or "nan", "ieee" with
  "nan") is compared with gfloat's infinity or maximum, translated. NaN inputs of formats without a
  NaN code are left out.
- gfloat adds the draw in float64, and its scalar form adds a half for nearest_away: a fraction that
  ends below 2^-53 can be rounded up there (-0.49999999999999994 goes to -1 in e1m1). Here every bit
  counts, so the tests of draws and of the scalar form take float32 values only.
- gfloat scales tiny values by a power of two that can make them zero, so that a directed mode no
  longer sees them: for formats whose steps exceed 1, float64 subnormals are left out.
"""

import numpy as np
import pytest
from gfloat import (
    Domain,
    FormatInfo,
    RoundMode,
    Signedness,
    decode_float,
    quantize_block,
    round_ndarray,
)
from gfloat.block import compute_scale_amax
from gfloat.formats import (
    format_info_mxfp4_e2m1,
    format_info_mxfp6_e2m3,
    format_info_mxfp6_e3m2,
    format_info_mxfp8_e4m3,
    format_info_mxfp8_e5m2,
    format_info_mxint8,
    format_info_p3109,
)

from lpkernels.formats import FloatFormat, parse_format
from lpkernels.reference.packing import decode
from lpkernels.rounding import round_array
from tests.cases import FLOAT_FORMATS, half_values, hard_values
from tests.compare import assert_bit_equal
from tests.oracles.one_zero import SMALL, Small, hard
from tests.oracles.scaled_parts import scaled, wide_blocks

MODES = {
    "nearest_even": RoundMode.TiesToEven,
    "nearest_away": RoundMode.TiesToAway,
    "toward_zero": RoundMode.TowardZero,
    "toward_positive": RoundMode.TowardPositive,
    "toward_negative": RoundMode.TowardNegative,
}

# tests/numbers/test_one_zero.py has the formats with one zero.
FORMATS = [fmt for fmt in FLOAT_FORMATS if fmt.subnormals and not fmt.one_zero]

HALVES = half_values()


def has_nan_code(fmt: FloatFormat) -> bool:
    """Whether gfloat can write a NaN of the format."""
    return fmt.specials == "fn" or (fmt.specials == "ieee" and fmt.man_bits > 0)


def gfloat_format(fmt: FloatFormat) -> FormatInfo:
    """The format in gfloat's terms."""
    high_nans = {"ieee": 2**fmt.man_bits - 1, "fn": 1}.get(fmt.specials, 0)
    return FormatInfo(
        fmt.name,
        fmt.bits,
        fmt.man_bits + 1,
        bias=fmt.bias,
        is_signed=True,
        domain=Domain.Extended if fmt.specials == "ieee" else Domain.Finite,
        has_nz=True,
        num_high_nans=high_nans,
        has_subnormals=True,
        is_twos_complement=False,
    )


def assert_agrees(fmt, x, rounding, gfloat_mode, **draws):
    """round_array of x in fmt has the bits of gfloat's, where gfloat has an answer."""
    if not has_nan_code(fmt):
        x = x[~np.isnan(x)]
    if fmt.min_subnormal > 1:
        x = x[(np.abs(x) >= 2.0**-1074 * fmt.min_subnormal) | (x == 0) | np.isnan(x)]
    saturates = fmt.overflow == "saturate" or fmt.specials == "none"
    bits = {"srbits": draws["draws"], "srnumbits": draws["random_bits"]} if draws else {}
    with np.errstate(invalid="ignore", over="ignore"):
        want = round_ndarray(gfloat_format(fmt), x, gfloat_mode, sat=saturates, **bits)
    got = round_array(x, fmt, rounding, **draws)
    if fmt.specials == "none" and fmt.overflow != "saturate":
        # gfloat's maximum stands for what gfloat cannot write.
        lost = ~np.isfinite(got)
        assert (np.abs(want[lost]) == fmt.max).all()
        got, want = got[~lost], want[~lost]
    elif fmt.specials == "ieee" and fmt.overflow == "nan":
        want = np.where(np.isinf(want), np.nan, want)
    # gfloat's NaN may carry a sign.
    want = np.where(np.isnan(want), np.nan, want)
    assert_bit_equal(got, want, f"{rounding} to {fmt}")


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_float16_and_bfloat16_and_the_hard_values(fmt):
    info = gfloat_format(fmt)
    assert (fmt.max, fmt.min_normal) == (info.max, info.smallest_normal)
    assert fmt.man_bits == 0 or fmt.min_subnormal == info.smallest_subnormal
    x = np.concatenate([HALVES, hard_values(fmt)])
    for rounding, gfloat_mode in MODES.items():
        assert_agrees(fmt, x, rounding, gfloat_mode)


@pytest.mark.parametrize("fmt", FORMATS)
def test_stochastic_is_the_rule_of_stochastic_fast(fmt, rng):
    x = np.concatenate([hard_values(fmt), rng.choice(HALVES, 2000)])
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(np.float32).astype(np.float64)
    if not has_nan_code(fmt):
        x = x[~np.isnan(x)]
    for random_bits in (1, 3, 8, 24, 32):
        draws = rng.integers(0, 2**random_bits, x.shape).astype(np.int64)
        bits = {"draws": draws, "random_bits": random_bits}
        assert_agrees(fmt, x, "stochastic", RoundMode.StochasticFast, **bits)


def p3109_info(fmt: Small) -> FormatInfo:
    """The format as gfloat makes it."""
    sign = Signedness.Signed if fmt.signed else Signedness.Unsigned
    domain = Domain.Extended if fmt.extended else Domain.Finite
    return format_info_p3109(fmt.k, fmt.p, sign, domain)


def assert_p3109(fmt: Small, x: np.ndarray) -> None:
    """Every code and, of a format with a sign, x in each mode of gfloat."""
    ours, info = parse_format(fmt.name), p3109_info(fmt)
    want = np.array([decode_float(info, code).fval for code in range(2**fmt.k)])
    assert_bit_equal(decode(np.arange(2**fmt.k, dtype=np.uint32), ours), want, fmt.name)
    assert (ours.bias, ours.max) == (info.bias, info.max)
    if not fmt.signed:
        return
    # gfloat has no NaN for what is too large.
    ours = ours if fmt.extended else parse_format(f"{fmt.name}_sat")
    draws = np.random.default_rng(fmt.p).integers(0, 2**13, x.shape)
    for rounding, gfloat_mode in (*MODES.items(), ("stochastic", RoundMode.StochasticFast)):
        drawn = rounding == "stochastic"
        bits = {"srbits": draws, "srnumbits": 13} if drawn else {}
        want = round_ndarray(info, x, gfloat_mode, sat=not fmt.extended, **bits)
        got = round_array(x, ours, rounding, draws=draws, random_bits=13)
        want = np.where(np.isnan(want), np.nan, want) + 0.0
        assert_bit_equal(got, want, f"{rounding} to {ours}")


@pytest.mark.parametrize("fmt", SMALL)
def test_p3109(fmt: Small):
    assert_p3109(fmt, hard(fmt))


MICROSCALING = {
    "mxfp8": format_info_mxfp8_e4m3,
    "mxfp8_e5m2": format_info_mxfp8_e5m2,
    "mxfp6_e3m2": format_info_mxfp6_e3m2,
    "mxfp6_e2m3": format_info_mxfp6_e2m3,
    "mxfp4": format_info_mxfp4_e2m1,
    "mxint8": format_info_mxint8,
}


@pytest.mark.parametrize("number", [200, pytest.param(31_250, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MICROSCALING)
def test_blocks_are_gfloats(name: str, number: int) -> None:
    x = wide_blocks(number)
    if name == "mxint8":
        # gfloat's integers have one negative code more, -128, which OCP allows to leave out.
        x = np.abs(x)
    fmt = MICROSCALING[name]
    want = [quantize_block(fmt, block, compute_scale_amax) for block in x.astype(np.float64)]
    q = scaled(x, name)
    assert_bit_equal(q.values * q.scale, np.array(want).astype(np.float32), name)

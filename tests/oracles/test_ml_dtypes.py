"""round_array to nearest even against the casts of ml_dtypes and numpy.

Every float16 and bfloat16 pattern, random float32 patterns, and the hard values of each format.
Known differences, by design of ml_dtypes:

- float6 and float4 have no NaN: the casts of ml_dtypes make a NaN a zero or an extreme value, while
  here NaN stays NaN.
- ml_dtypes takes a float64 to its narrow types through float32 and rounds it twice, while here it
  is rounded once: ml_dtypes gets float32 inputs only. numpy's own float16 and float32 casts take
  float64.
"""

import re

import ml_dtypes
import numpy as np
import pytest

from lpkernels import formats
from lpkernels.formats import FloatFormat
from lpkernels.rounding import round_array
from tests.cases import half_values, hard_values
from tests.compare import assert_bit_equal
from tests.oracles.scaled_parts import scaled, wide_blocks

CASTS = {
    "bfloat16": formats.BF16,
    "float8_e3m4": FloatFormat(3, 4),
    "float8_e4m3": formats.E4M3,
    "float8_e4m3fn": formats.FP8_E4M3,
    "float8_e5m2": formats.FP8_E5M2,
    "float8_e4m3fnuz": formats.E4M3FNUZ,
    "float8_e5m2fnuz": formats.E5M2FNUZ,
    "float8_e4m3b11fnuz": formats.NAMED["e4m3b11fnuz"],
    "float6_e2m3fn": formats.FP6_E2M3,
    "float6_e3m2fn": formats.FP6_E3M2,
    "float4_e2m1fn": formats.FP4_E2M1,
}

WITHOUT_NAN = {"float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"}


@pytest.mark.parametrize("name", CASTS, ids=str)
def test_its_names_lead_to_these_formats(name):
    with pytest.raises(ValueError, match=f"unknown format '{name}'; it is") as refused:
        formats.parse_format(name)
    (here,) = re.findall(r"it is '(\w+)' here", str(refused.value))
    assert formats.parse_format(here) == CASTS[name]


def _float32_inputs(fmt: FloatFormat) -> np.ndarray:
    random = np.random.default_rng(1).integers(0, 2**32, 50_000, dtype=np.uint32)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [
            half_values().astype(np.float32),
            random.view(np.float32),
            hard_values(fmt).astype(np.float32),
        ]
    return np.concatenate(parts)


def _canonical(x: np.ndarray) -> np.ndarray:
    """The values as float64, with the same NaN for all NaNs."""
    return np.where(np.isnan(x), np.nan, x.astype(np.float64))


@pytest.mark.parametrize("name", CASTS, ids=str)
def test_nearest_even_is_the_cast(name):
    fmt = CASTS[name]
    x = _float32_inputs(fmt)
    if name in WITHOUT_NAN:
        x = x[~np.isnan(x)]
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(getattr(ml_dtypes, name)).astype(np.float32)
        got = round_array(x.astype(np.float64), fmt, "nearest_even")
    assert_bit_equal(got, _canonical(want), name)


@pytest.mark.parametrize("name", CASTS, ids=str)
def test_values_are_the_codes(name):
    fmt = CASTS[name]
    codes = np.arange(2**fmt.bits, dtype=np.uint16 if fmt.bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):
        decoded = codes.view(getattr(ml_dtypes, name)).astype(np.float64)
    finite = np.unique(decoded[np.isfinite(decoded)])
    assert_bit_equal(fmt.values(), finite + 0.0, name)


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=str)
def test_nearest_even_is_the_float64_cast_of_numpy(dtype):
    fmt = {np.float16: formats.FP16, np.float32: formats.FP32}[dtype]
    source = np.random.default_rng(2)
    random = np.ldexp(source.normal(size=20_000), source.integers(-160, 140, 20_000))
    x = np.concatenate([hard_values(fmt), random, hard_values(formats.FP16)])
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(dtype)
    assert_bit_equal(round_array(x, fmt, "nearest_even"), _canonical(want), str(dtype))


ELEMENTS = ("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")


@pytest.mark.parametrize("blocks", [500, pytest.param(31_250, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ELEMENTS, ids=str)
def test_codes_of_blocks_are_ml_dtypes_and_so_are_their_scales(name: str, blocks: int) -> None:
    x, element = wide_blocks(blocks), name.split("_")[1].removesuffix("fn")
    for rule in ("", "_up", "_ceil", "_even"):
        q = scaled(x, f"block32_{element}{rule}")
        assert_bit_equal(q.scale.astype(ml_dtypes.float8_e8m0fnu).astype(np.float32), q.scale)
        shrunk = x.astype(np.float64) / q.scale.astype(np.float64)
        shrunk = np.clip(shrunk, -CASTS[name].max, CASTS[name].max)
        assert_bit_equal(shrunk.astype(np.float32).astype(name).astype(np.float32), q.values)

"""Formats: fields, derived values, names that read back, and every refusal."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given

from lpkernels import formats
from lpkernels.formats import AffineFormat, BlockFormat, FixedFormat, FloatFormat, parse_format
from tests.cases import FIXED_FORMATS, FLOAT_FORMATS
from tests.support import strategies


@pytest.mark.parametrize(
    "fmt, largest, min_normal, min_subnormal",
    [
        (formats.FP32, np.finfo(np.float32).max, 2.0**-126, 2.0**-149),
        (formats.FP16, 65504.0, 2.0**-14, 2.0**-24),
        (formats.BF16, 2.0**127 * (2 - 2**-7), 2.0**-126, 2.0**-133),
        (formats.TF32, 2.0**127 * (2 - 2**-10), 2.0**-126, 2.0**-136),
        (formats.NAMED["dlfloat16"], 2.0**31 * (2 - 2**-9), 2.0**-30, 2.0**-39),
        (formats.E5M2, 57344.0, 2.0**-14, 2.0**-16),
        (formats.E4M3, 240.0, 2.0**-6, 2.0**-9),
        (formats.E4M3FN, 448.0, 2.0**-6, 2.0**-9),
        (formats.FP6_E3M2, 28.0, 0.25, 0.0625),
        (formats.FP6_E2M3, 7.5, 1.0, 0.125),
        (formats.FP4_E2M1, 6.0, 1.0, 0.5),
        (formats.NAMED["fp_4_3_4"], 30.0, 2.0**-10, 2.0**-13),
        (formats.NAMED["fp_5_2_0"], 114688.0, 2.0**-14, 2.0**-16),
        (formats.NAMED["fp_6_9_0"], 8581545984.0, 2.0**-30, 2.0**-39),
        (FloatFormat(4, 3, subnormals=False), 240.0, 2.0**-6, 2.0**-6),
        (FloatFormat(3, 0, specials="fn"), 2.0**3, 0.25, 0.25),
        (FloatFormat(1, 2, specials="none"), 3.5, 2.0, 0.5),
    ],
)
def test_range_of_published_formats(fmt, largest, min_normal, min_subnormal):
    assert (fmt.max, fmt.min_normal, fmt.min_subnormal) == (largest, min_normal, min_subnormal)


def test_epsilon_bits_and_defaults():
    assert (formats.FP16.epsilon, formats.FP16.bits) == (2.0**-10, 16)
    assert (FixedFormat(8, 3).epsilon, FixedFormat(8, 3).bits) == (0.125, 8)
    assert BlockFormat("e2m1").bits == 4.25
    assert AffineFormat(5).bits == 5
    assert FloatFormat(4, 3) == FloatFormat(4, 3, bias=7, overflow="infinity")
    assert FloatFormat(4, 3, specials="fn").overflow == "nan"
    assert FloatFormat(1, 2, specials="none").bias == 0
    assert FloatFormat(np.int64(4), np.int64(3)) == formats.E4M3
    assert type(FloatFormat(np.int64(4), 3).exp_bits) is int


@pytest.mark.parametrize("fmt", [f for f in FLOAT_FORMATS if f.bits <= 16])
def test_values_are_every_finite_value_once_ascending(fmt):
    values = fmt.values()
    assert values.dtype == np.float64
    assert (np.diff(values) > 0).all()
    if fmt.signed:
        assert (values == -values[::-1]).all()
    assert values[-1] == fmt.max
    assert values[values > 0][0] == fmt.min_subnormal
    codes = 2 ** (fmt.bits - fmt.signed)
    if not fmt.subnormals:
        codes -= 2**fmt.man_bits - 1
    reserved = {"ieee": 2**fmt.man_bits, "fn": 1, "none": 0, "fnuz": 0, "p3109": 1}[fmt.specials]
    reserved += not fmt.signed
    assert len(values) == (1 + fmt.signed) * (codes - reserved) - fmt.signed


@pytest.mark.parametrize("fmt", [f for f in FIXED_FORMATS if f.bits <= 16])
def test_fixed_values_are_every_value_once_ascending(fmt):
    values = fmt.values()
    assert len(values) == 2**fmt.word_bits
    assert (np.diff(values) == fmt.quantum).all()
    assert (values[0], values[-1]) == (fmt.min, fmt.max)


@pytest.mark.parametrize("fmt", [f for f in FLOAT_FORMATS if f.bits <= 16])
@pytest.mark.parametrize("host, dtype", [((5, 10), np.float16), ((8, 23), np.float32)])
def test_fits_in_agrees_with_casting_every_value(fmt, host, dtype):
    values = fmt.values()
    with np.errstate(over="ignore"):
        survives = bool((values.astype(dtype).astype(np.float64) == values).all())
    assert fmt.fits_in(*host) == survives


def test_fits_in_bfloat16_and_down_to_the_last_subnormal():
    assert [parse_format(name).fits_in(8, 7) for name in ("bf16", "e5m2")] == [True, True]
    assert [parse_format(name).fits_in(8, 7) for name in ("fp16", "e8m8")] == [False, False]
    # float16 ends at 2^-24.
    assert [FloatFormat(5, 10, bias=b).fits_in(5, 10) for b in (15, 16, 17)] == [True, False, False]


@pytest.mark.parametrize("alias, element, options", [
    ("mxfp8", "e4m3", {}),
    ("mxfp8_e5m2_up", "e5m2", {"rule": "up"}),
    ("mxfp6_e3m2_ceil", "e3m2", {"rule": "ceil"}),
    ("mxfp4_even", "e2m1", {"rule": "even"}),
    ("mxint8", FixedFormat(8, 6), {}),
    ("nvfp4", "e2m1", {"block_size": 16, "scale": formats.E4M3FN, "tensor_scale": True}),
    ("nvfp4_one", "e2m1", {"block_size": 16, "scale": "e4m3"}),
    ("nvfp4_2d_te", "e2m1",
     {"block_size": (16, 16), "scale": "e4m3", "tensor_scale": True, "steps": "te"}),
    ("nvfp4_46_te", "e2m1", {"block_size": 16, "scale": "e4m3", "tensor_scale": True,
                             "scale_target": 256, "target": "4or6mae", "steps": "te"}),
    ("nvfp4_46_2d_mse", "e2m1", {"block_size": (16, 16), "scale": "e4m3", "tensor_scale": True,
                                 "scale_target": 256, "target": "4or6mse"}),
    ("nvfp4_row", "e2m1", {"block_size": 16, "scale": "e4m3", "tensor_scale": "row"}),
    ("nvfp4_46_row_mse", "e2m1", {"block_size": 16, "scale": "e4m3", "tensor_scale": "row",
                                  "scale_target": 256, "target": "4or6mse"}),
    ("fp8_tensor", "e4m3", {"block_size": "tensor", "scale": "fp32"}),
    ("fp8_row", "e4m3", {"block_size": "row"}),
    ("fp8_1x128", "e4m3", {"block_size": 128, "scale": "fp32"}),
    ("fp8_128x128_pow2", "e4m3", {"block_size": (128, 128), "rule": "up"}),
    ("int8_row", "int8", {"block_size": "row"}),
    ("int4_g128", FixedFormat(4, 0), {"block_size": 128, "scale": "fp32"}),
])  # fmt: skip
def test_aliases_are_these_formats(alias, element, options):
    assert parse_format(alias) == BlockFormat(element, **options)


@pytest.mark.parametrize("alias", formats.ALIASES)
def test_aliases_stand_for_the_names_that_formats_give(alias):
    assert str(parse_format(alias)) == formats.ALIASES[alias]


def test_a_field_at_its_default_is_the_field_left_out():
    plain = BlockFormat("e4m3")
    full = BlockFormat(
        formats.FP8_E4M3, 32, scale="e8m0", axis=-1, rule="floor", tensor_scale=False, steps="exact"
    )
    tensor = BlockFormat("e2m1", "tensor", scale=formats.FP32, rule="nearest", target=6)
    assert (plain, hash(plain), str(plain)) == (full, hash(full), str(full))
    assert tensor == BlockFormat("e2m1", "tensor") == parse_format("tensor_e2m1")
    nvfp4 = BlockFormat("e2m1", 16, scale="e4m3fn", tensor_scale=True, scale_target=448.0)
    assert nvfp4 == parse_format("nvfp4")
    assert plain.to_ints()[:8] == (3, 32, -1, 0, 0, 0, 0, 0)


@given(strategies.fixed_formats())
def test_float32_holds_the_ends_of_every_fixed_format(fmt):
    assert (np.float32(fmt.max), np.float32(fmt.min)) == (fmt.max, fmt.min)


@pytest.mark.parametrize(
    "name, fmt",
    [
        ("e4m3", FloatFormat(4, 3)),
        ("e4m3fn", FloatFormat(4, 3, specials="fn")),
        ("e4m3none_b11_sat", FloatFormat(4, 3, bias=11, specials="none", overflow="saturate")),
        ("e4m3_sat_nosub_b-2", FloatFormat(4, 3, bias=-2, subnormals=False, overflow="saturate")),
        ("fp8_e4m3", formats.E4M3FN),
        ("fp8_e4m3_sat", FloatFormat(4, 3, specials="fn", overflow="saturate")),
        ("fp_4_3_4", FloatFormat(4, 3, bias=11, specials="none", overflow="saturate")),
        ("ufixed8_f-4_wrap", FixedFormat(8, -4, signed=False, overflow="wrap")),
        ("block16_axis0_e4m3ieee", BlockFormat(formats.E4M3, 16, axis=0)),
    ],
)
def test_parse_format_reads(name, fmt):
    assert parse_format(name) == fmt


@pytest.mark.parametrize("name", ["fp_4_3_4", "fp_5_2_0", "fp_6_9_0"])
def test_formats_of_gradients_differ_in_their_overflow(name):
    forward, backward = parse_format(name), parse_format(f"{name}_backward")
    assert backward == dataclasses.replace(forward, overflow="infinity")

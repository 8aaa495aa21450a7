"""Formats: fields, derived values, names that read back, and every refusal."""

import copy
import dataclasses
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given

from lpkernels import formats
from lpkernels.formats import (
    AffineFormat,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    as_format,
    format_from_ints,
    parse_format,
)
from tests.cases import FIXED_FORMATS, FLOAT_FORMATS, ROUND_FORMATS, formats_named
from tests.loops import each, rows
from tests.support import strategies
from tests.support.refusals import refused

TENSOR_FORMATS = formats_named("""
    affine8 affine1_axis0 affine4_sym_axis-2 affine16_sym block32_e4m3 block32_e4m3ieee
    block16_axis0_e5m2 block1_e2m1 block33_axis1_e3m2 block8_e1m6none
    block32_axis-3_e4m3none_b11_sat block16_e2m1_se4m3fn_t block16_k_e2m1_se4m3fn_t_to5.647059
    tile16x8_e2m1_sfp32_up tensor_e4m3 tensor_int8_se8m0 row_e5m2 row_axis0_int4_to7.5_torchao
    block128_e4m3_sfp32_deepgemm tile128x128_e4m3_up_te row_k_int8 block32_int8f6_even
    block4_e4m3none_b11_sat_se5m3fn_b9_nosub_up block4_e5m10_se4m3 block4_e3m2ieee_se4m3ieee
""")


@rows(
    "fmt, largest, min_normal, min_subnormal",
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


@each("fmt", [f for f in FLOAT_FORMATS if f.bits <= 16])
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


@each("fmt", [f for f in FIXED_FORMATS if f.bits <= 16])
def test_fixed_values_are_every_value_once_ascending(fmt):
    values = fmt.values()
    assert len(values) == 2**fmt.word_bits
    assert (np.diff(values) == fmt.quantum).all()
    assert (values[0], values[-1]) == (fmt.min, fmt.max)


@each("fmt", [formats.FP32, FixedFormat(17, 3)])
def test_values_refuses_more_than_16_bits(fmt):
    with pytest.raises(ValueError, match=rf"values: {fmt} has {fmt.bits} bits; .* at most 16"):
        fmt.values()


@each("fmt", [f for f in FLOAT_FORMATS if f.bits <= 16])
@each("host, dtype", [((5, 10), np.float16), ((8, 23), np.float32)])
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


@each("fmt", [*FIXED_FORMATS, *TENSOR_FORMATS])
def test_other_formats_travel_as_float32(fmt):
    assert fmt.fits_in(8, 23)
    assert not fmt.fits_in(5, 10)


@rows(
    "alias, element, options",
    ("mxfp8", "e4m3", {}),
    ("mxfp8_e5m2_up", "e5m2", {"rule": "up"}),
    ("mxfp6_e3m2_ceil", "e3m2", {"rule": "ceil"}),
    ("mxfp4_even", "e2m1", {"rule": "even"}),
    ("mxint8", FixedFormat(8, 6), {}),
    ("nvfp4", "e2m1", {"block_size": 16, "scale": formats.E4M3FN, "tensor_scale": True}),
    ("nvfp4_one", "e2m1", {"block_size": 16, "scale": "e4m3"}),
    ("nvfp4_2d_te", "e2m1",
     {"block_size": (16, 16), "scale": "e4m3", "tensor_scale": True, "steps": "te"}),
    ("fp8_tensor", "e4m3", {"block_size": "tensor", "scale": "fp32"}),
    ("fp8_row", "e4m3", {"block_size": "row"}),
    ("fp8_1x128", "e4m3", {"block_size": 128, "scale": "fp32"}),
    ("fp8_128x128_pow2", "e4m3", {"block_size": (128, 128), "rule": "up"}),
    ("int8_row", "int8", {"block_size": "row"}),
    ("int4_g128", FixedFormat(4, 0), {"block_size": 128, "scale": "fp32"}),
)  # fmt: skip
def test_aliases_are_these_formats(alias, element, options):
    assert parse_format(alias) == BlockFormat(element, **options)


@each("alias", formats.ALIASES)
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
    assert plain.to_ints()[:8] == (3, 32, -1, 0, 0, 0, 0, 0)


@each("name", ["fp8", "float8", "FP8", "fp6", "float6", "fp4", "float4", "mxfp6", "int8", "int4"])
def test_numbers_of_bits_lead_to_their_candidates(name):
    with pytest.raises(ValueError, match=f"unknown format '{name}'; it is '.*' here") as refused:
        parse_format(name)
    bits = name[-1]
    here = re.findall(r"'(\w+)'", str(refused.value).split("; it is ")[1])
    assert len(here) > 1 or bits == "4"
    if "fp" in name.lower() or "float" in name:
        assert {each for each in formats.NAMED if each.startswith(f"fp{bits}_e")} <= {*here} | {
            each.removeprefix("mx") for each in here
        }
    for each_name in here:
        fmt = parse_format(each_name)
        assert getattr(fmt, "element", fmt).bits == int(bits)


def test_an_unknown_format_is_answered_without_the_grammar():
    with pytest.raises(ValueError, match=r"docs/formats\.md says how others are made") as refused:
        parse_format("e4m3x")
    assert "<" not in str(refused.value)


@each("fmt", [*ROUND_FORMATS, *TENSOR_FORMATS])
def test_name_ints_pickle_and_copy_round_trip(fmt):
    assert parse_format(str(fmt)) == fmt
    assert parse_format(fmt.name) == fmt
    assert format_from_ints(fmt.to_ints()) == fmt
    assert pickle.loads(pickle.dumps(fmt)) == fmt
    assert copy.deepcopy(fmt) == fmt
    assert hash(parse_format(str(fmt))) == hash(fmt)
    assert eval(repr(fmt), vars(formats)) == fmt
    assert as_format(fmt) is fmt
    assert as_format(str(fmt)) == fmt


@given(strategies.fixed_formats())
def test_float32_holds_the_ends_of_every_fixed_format(fmt):
    assert (np.float32(fmt.max), np.float32(fmt.min)) == (fmt.max, fmt.min)


@rows(
    "name, fmt",
    ("e5m2", FloatFormat(5, 2)),
    ("e4m3", FloatFormat(4, 3)),
    ("e4m3ieee", FloatFormat(4, 3)),
    ("e4m3fn", FloatFormat(4, 3, specials="fn")),
    ("e4m3none_b11_sat", FloatFormat(4, 3, bias=11, specials="none", overflow="saturate")),
    ("e4m3_sat_nosub_b-2", FloatFormat(4, 3, bias=-2, subnormals=False, overflow="saturate")),
    ("dlfloat16", FloatFormat(6, 9)),
    ("fp8_e4m3", formats.E4M3FN),
    ("fp8_e4m3_sat", FloatFormat(4, 3, specials="fn", overflow="saturate")),
    ("fp4_e2m1", FloatFormat(2, 1, specials="none", overflow="saturate")),
    ("fp_4_3_4", FloatFormat(4, 3, bias=11, specials="none", overflow="saturate")),
    ("fixed8_f4", FixedFormat(8, 4)),
    ("ufixed8_f-4_wrap", FixedFormat(8, -4, signed=False, overflow="wrap")),
    ("affine8_sym_axis-1", AffineFormat(8, symmetric=True, axis=-1)),
    ("block32_e4m3", BlockFormat(formats.FP8_E4M3)),
    ("block16_axis0_e4m3ieee", BlockFormat(formats.E4M3, 16, axis=0)),
    ("block32_fp4_e2m1", BlockFormat("e2m1")),
)
def test_parse_format_reads(name, fmt):
    assert parse_format(name) == fmt


@each("name", ["fp_4_3_4", "fp_5_2_0", "fp_6_9_0"])
def test_formats_of_gradients_differ_in_their_overflow(name):
    forward, backward = parse_format(name), parse_format(f"{name}_backward")
    assert backward == dataclasses.replace(forward, overflow="infinity")


def test_block_element_names_mean_the_ocp_types():
    assert BlockFormat("e4m3").element == formats.FP8_E4M3
    assert BlockFormat("e3m2").element == formats.FP6_E3M2
    assert str(BlockFormat(formats.E4M3)) == "block32_e4m3ieee"
    assert str(BlockFormat(formats.FP8_E4M3)) == "block32_e4m3"


WRONG_VALUES = [
    (lambda: FloatFormat(9, 3), r"exp_bits must be in 1\.\.8, got 9"),
    (lambda: FloatFormat(4, 24), r"man_bits must be in 0\.\.23, got 24"),
    (lambda: FloatFormat(4, 3, bias=1001), "bias must be in -1000..1000, got 1001"),
    (lambda: FloatFormat(4, 3, specials="fnu"), "one of ieee, fn, none, fnuz, p3109; got 'fnu"),
    (lambda: FloatFormat(1, 3), "exp_bits=1 leaves no normal value; use exp_bits"),
    (lambda: FloatFormat(1, 0, specials="fn"), "NaN as its only normal code"),
    (lambda: FloatFormat(4, 3, specials="fn", overflow="infinity"), "no infinity.*overflow='nan"),
    (lambda: FloatFormat(8, 23, bias=128), r"smallest step is 2\^-150, below"),
    (lambda: FloatFormat(8, 3, specials="none"), "largest exponent is 128, beyond"),
    (lambda: FixedFormat(25, 3), r"word_bits must be in 1\.\.24, got 25"),
    (lambda: FixedFormat(8, 150), r"frac_bits must be in -127\.\.149, got 150"),
    (lambda: FixedFormat(8, -121), r"top bit weighs 2\^128.*word_bits=8, frac_bit"),
    (lambda: AffineFormat(8, axis=64), r"axis must be in -64\.\.63, got 64"),
    (lambda: AffineFormat(17), r"bits must be in 1\.\.16, got 17"),
    (lambda: AffineFormat(1, symmetric=True), r"symmetric=True: bits .*2\.\.16"),
    (lambda: BlockFormat("e4m4x"), "unknown element 'e4m4x'; expected the name of a .* e4m3"),
    (lambda: BlockFormat("e4m3", 2**63 - 1), r"block_size must be at most 2\^62"),
    (lambda: BlockFormat("e4m3", scale="e8m1x"), "unknown scale 'e8m1x'; use 'e8m0', 'fp32' or"),
    (lambda: BlockFormat("e4m3", target=400), "rule='floor' takes .* no target; use rule='up'"),
    (lambda: BlockFormat("e4m3", rule="nearest"), "rules of scale=e8m0 are floor, ceil, even, up"),
    (lambda: BlockFormat("e4m3", tensor_scale=True), "use scale='e4m3fn', or leave tensor_scale"),
    (lambda: BlockFormat("e4m3", "row", scale="bf16", tensor_scale=True), "block_size='row'"),
    (
        lambda: BlockFormat("e4m3", "line"),
        "block_size must be an int, .rows, columns., .* got 'line'",
    ),
    (lambda: BlockFormat("e4m3", (1, 4)), "of one row are block_size=4"),
    (lambda: BlockFormat("e4m3", (0, 4)), r"rows of tiles must be in 2\.\..*, got 0"),
    (lambda: BlockFormat("e4m3", axis="K"), "a named axis must be one of k; got 'K'"),
    (lambda: parse_format("nvfp4_axis0"), "'nvfp4_axis0' is 'block16_axis0_e2m1_se4m3fn_t'"),
    (lambda: parse_format("mxfp8_rceil"), "it is 'mxfp8_up' here"),
    (lambda: BlockFormat("e4m3", (2, 2), axis=0), "their axis is -1 or 'k', got 0; leave it away"),
    (lambda: BlockFormat("e4m3", "tensor", axis="k"), "runs along no axis, got axis='k'"),
    (lambda: BlockFormat("int8", scale="fp32", target=0), "target must be positive, finite and a"),
    (lambda: BlockFormat("int8", scale="fp32", steps="te"), "steps='te' is not defined here: Tran"),
    (lambda: BlockFormat("e4m3", "row", target=9, steps="te"), "has no target but .*got 9.0; use"),
    (lambda: BlockFormat(FixedFormat(8, 0, signed=False)),
     r"integer elements are signed.*use Fixed"),
    (lambda: parse_format("row_int8_to1.2.3"), "cannot read the target 'to1.2.3' in 'row_int8_to"),
    (lambda: BlockFormat("fp16"), r"smallest step of 2\^-24.*at least -22; use few"),
    (lambda: parse_format("BF17"), "unknown format 'BF17'; expected one of bf16"),
    (lambda: parse_format("xyzzy"), "'xyzzy'; expected one of .* and .* more"),
    (lambda: parse_format("float16"), r"'float16'; it is 'fp16' here\. docs/formats"),
    (lambda: parse_format("uint8"), "are 'ufixed8_f0' here, and codes with a scale 'affine8'"),
    (lambda: parse_format("int32"), "'int32'; whole numbers have at most 24 bits here: 'fixed24"),
    (lambda: parse_format("e4m3_b7_b8"), "'e4m3_b7_b8' gives its bias twice"),
    (lambda: parse_format("e4m3_inf_sat"), "gives its overflow twice"),
    (lambda: parse_format("e4m3_big"), "unknown suffix '_big' in 'e4m3_big'; known"),
    (lambda: parse_format("e5" + "m" * 10**6), "has more than 160 characters, got 1000002, which"),
    (lambda: format_from_ints((9,) * 8), "expected the 8, 16 or 24 integers"),
]  # fmt: skip
WRONG_TYPES = [
    (lambda: FloatFormat(True, 3), r"exp_bits must be an int, got True \(bool\)"),
    (lambda: FloatFormat(4, 3.0), r"man_bits must be an int, got 3\.0 \(float\)"),
    (lambda: FloatFormat(4, 3, subnormals=1), "subnormals must be True or False"),
    (lambda: AffineFormat(8, axis=1.0), r"axis must be an int, got 1\.0"),
    (lambda: BlockFormat(AffineFormat(8)),
     "a FixedFormat, a TableFormat or a name"),
    (lambda: BlockFormat("e4m3", scale=FixedFormat(8, 0)), "a scale is no FixedFormat, got"),
    (lambda: BlockFormat("int8", scale="fp32", target="8"), "target must be a number, got '8'"),
    (lambda: BlockFormat("e4m3", axis=None), "axis must be an int, got None"),
    (lambda: parse_format(["e4m3"]), r"must be a str such as 'e4m3fn', got \['e4m"),
    (lambda: as_format(torch.complex64), "is no format here. The dtypes.*bfloat16"),
    (lambda: as_format(torch.int8), "it is 'int8_row' or .* or 'fixed8_f0' here"),
    (lambda: as_format(torch.float8_e8m0fnu), "float8_e8m0fnu is no format here"),
    (lambda: as_format(8), r"name or a torch.dtype, got 8 \(int\)"),
]  # fmt: skip
test_wrong_values_are_refused = refused(WRONG_VALUES, ValueError)
test_wrong_types_are_refused = refused(WRONG_TYPES, TypeError)

"""Quantizer, Accumulator, Recipe and the named ones: fields, text forms, integers, refusals."""

import copy
import pickle

import pytest

from lpkernels import formats
from lpkernels.arithmetic import (
    NAMED_ACCUMULATORS,
    NATIVE,
    Accumulator,
    Quantizer,
    Recipe,
    accumulator,
    accumulator_from_ints,
    as_accumulator,
    as_quantizer,
    quantizer_from_ints,
)
from lpkernels.formats import AffineFormat, BlockFormat, FixedFormat, FloatFormat
from lpkernels.recipes import as_recipe, describe, recipe, recipes
from lpkernels.rounding import ROUNDINGS
from tests.cases import ACCUMULATORS, FIXED_FORMATS, FLOAT_FORMATS, ids

QUANTIZERS = [
    *(Quantizer("e4m3fn", rounding) for rounding in ROUNDINGS),
    Quantizer("fp16", "stochastic", random_bits=5, rng="philox"),
    Quantizer(AffineFormat(8, axis=1), "stochastic"),
    Quantizer(BlockFormat("e2m1", 16), "nearest_away"),
    Quantizer(FixedFormat(8, 3, overflow="wrap"), "to_odd"),
]

# --- Quantizer ---


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=ids)
def test_quantizer_round_trips(quantizer):
    assert as_quantizer(str(quantizer)) == quantizer
    assert as_quantizer(quantizer) is quantizer
    assert pickle.loads(pickle.dumps(quantizer)) == quantizer
    assert hash(copy.deepcopy(quantizer)) == hash(quantizer)
    back = quantizer_from_ints(quantizer.to_ints())
    assert back.to_ints() == quantizer.to_ints()
    assert (back.fmt, back.rounding, back.rng) == (
        quantizer.fmt,
        quantizer.rounding,
        quantizer.rng,
    )


def test_quantizer_ints_are_pinned():
    assert Quantizer("e4m3fn", "stochastic").to_ints() == (0, 4, 3, 7, 1, 1, 2, 0, 6, 32, 0, 0)
    fixed = Quantizer("ufixed8_f-4_wrap", "to_odd", random_bits=3, rng="philox")
    assert fixed.to_ints() == (1, 8, -4, 0, 1, 0, 0, 0, 5, 3, 1, 0)
    affine = Quantizer("affine4_sym_axis-1")
    assert affine.to_ints() == (2, 4, 1, 1, -1, 0, 0, 0, 0, 32, 0, 0)
    block = Quantizer("block32_e2m1", "toward_zero").to_ints()
    assert block == (3, 32, -1, 0, 0, 0, 0, 0, 0, 2, 1, 1, 2, 1, 1, 0, 2, 32, 0, 0)


@pytest.mark.parametrize(
    ("text", "quantizer"),
    [
        ("e5m2", Quantizer(formats.E5M2)),
        ("fp8_e4m3:stochastic", Quantizer(formats.E4M3FN, "stochastic")),
        ("e5m2:nearest_even", Quantizer(formats.E5M2)),
        (
            "e5m2:philox:bits=7:stochastic",
            Quantizer("e5m2", "stochastic", random_bits=7, rng="philox"),
        ),
        ("affine8_axis0:toward_zero", Quantizer(AffineFormat(8, axis=0), "toward_zero")),
    ],
)
def test_quantizer_text_form(text, quantizer):
    assert as_quantizer(text) == quantizer


def test_quantizer_of_a_format_is_nearest_even():
    assert as_quantizer(formats.BF16) == Quantizer("bf16", "nearest_even")
    assert str(Quantizer("bf16")) == "e8m7"
    assert not Quantizer("bf16").is_stochastic
    assert Quantizer("bf16", "stochastic").is_stochastic


# --- Accumulator ---


@pytest.mark.parametrize("acc", [*ACCUMULATORS, NATIVE, *NAMED_ACCUMULATORS.values()], ids=ids)
def test_accumulator_round_trips(acc):
    assert accumulator(str(acc)) == acc
    assert as_accumulator(str(acc)) == acc
    assert as_accumulator(acc) is acc
    assert accumulator_from_ints(acc.to_ints()) == acc
    assert pickle.loads(pickle.dumps(acc)) == acc
    assert hash(copy.deepcopy(acc)) == hash(acc)
    assert len(acc.to_ints()) == 35


@pytest.mark.parametrize("fmt", [*FLOAT_FORMATS, *FIXED_FORMATS], ids=ids)
def test_every_format_name_reads_back_inside_an_accumulator(fmt):
    acc = Accumulator(fmt, "stochastic", product=fmt, chunk=3, outer=fmt)
    assert accumulator(str(acc)) == acc
    assert accumulator_from_ints(acc.to_ints()) == acc


def test_accumulator_ints_are_pinned():
    fp32, e6m9 = formats.FP32.to_ints(), formats.DLFLOAT16.to_ints()
    assert NATIVE.to_ints() == (1, 0, 0, 0, 8, 0, 0, 0, *fp32, *(0,) * 8, *fp32, 0, 0, 0)
    acc = Accumulator(
        "e6m9",
        "stochastic",
        product="fixed8_f3",
        product_rounding="to_odd",
        chunk=64,
        outer="fp32",
        random_bits=3,
        rng="philox",
    )
    fixed = FixedFormat(8, 3).to_ints()
    assert acc.to_ints() == (0, 64, 6, 5, 3, 1, 1, 1, *e6m9, *fixed, *fp32, 0, 0, 6)
    acc = Accumulator(
        "fp32",
        "toward_zero",
        block=32,
        aligned_bits=13,
        chunk=4,
        outer="e6m9",
        outer_rounding="to_odd",
    )
    assert acc.to_ints() == (0, 4, 2, 0, 8, 0, 0, 1, *fp32, *(0,) * 8, *e6m9, 32, 13, 5)
    assert Accumulator(order="pairwise").to_ints()[0] == 2
    assert Accumulator(order="compensated").to_ints()[0] == 3


def test_outer_defaults_to_the_format_of_the_sum():
    assert Accumulator("e6m9", chunk=64) == Accumulator("e6m9", chunk=64, outer="e6m9")
    assert Accumulator("e6m9", chunk=64).outermost == formats.DLFLOAT16
    assert Accumulator("e6m9", chunk=64, outer="fp32").outermost == formats.FP32
    assert Accumulator("e6m9").outer is None
    assert Accumulator("e6m9").outermost == formats.DLFLOAT16


def test_native_is_torch_only_without_chunks():
    assert NATIVE.is_native
    assert as_accumulator(None) is NATIVE
    assert accumulator("native") == NATIVE
    chunked = accumulator("native_chunk64:outer=e6m9")
    assert chunked == Accumulator("fp32", order="native", chunk=64, outer="e6m9")
    assert not chunked.is_native
    assert not accumulator("fp32").is_native
    assert Accumulator("fp32", "stochastic", order="native", chunk=8).is_stochastic


def test_stochastic_products_make_an_accumulator_stochastic():
    assert Accumulator("e5m5", product="e4m3", product_rounding="stochastic").is_stochastic
    assert Accumulator("e5m5", "stochastic").is_stochastic
    assert not Accumulator("e5m5", product="e4m3").is_stochastic


@pytest.mark.parametrize(
    ("name", "acc"),
    [
        ("fp32", Accumulator()),
        ("fp16", Accumulator("e5m10")),
        ("e6m9_chunk64", Accumulator("e6m9", chunk=64)),
        ("ibm_e6m9_chunk64", Accumulator("e6m9", chunk=64)),
        ("e5m10:toward_zero", Accumulator("e5m10", "toward_zero")),
        (
            "hopper_fp8",
            Accumulator(
                "e8m13",
                "toward_zero",
                chunk=128,
                outer="fp32",
                outer_rounding="nearest_even",
                block=32,
                aligned_bits=13,
            ),
        ),
        ("e6m9_chunk8:order=pairwise", Accumulator("e6m9", chunk=8, order="pairwise")),
        ("bf16:order=compensated", Accumulator("bf16", order="compensated")),
        ("fp32:aligned_bits=24:block=4", Accumulator("fp32", block=4, aligned_bits=24)),
        ("bf16:product=e4m3:product_rounding=nearest_away:bits=3", None),
    ],
)
def test_accumulator_names(name, acc):
    acc = acc or Accumulator("bf16", product="e4m3", product_rounding="nearest_away", random_bits=3)
    assert accumulator(name) == acc


def test_outer_rounding_defaults_to_rounding():
    acc = Accumulator("e6m9", "to_odd", chunk=64)
    assert acc == Accumulator("e6m9", "to_odd", chunk=64, outer_rounding="to_odd")
    assert acc.outermost_rounding == "to_odd"
    assert Accumulator("e6m9", "to_odd").outer_rounding is None
    assert Accumulator("e6m9", "to_odd").outermost_rounding == "to_odd"
    assert Accumulator("e6m9", chunk=2, outer_rounding="stochastic").is_stochastic


def test_hopper_recipe_sums_as_the_preset():
    built = recipe("hopper_fp8")
    assert built.fprop == built.dgrad == built.wgrad == accumulator("hopper_fp8")


def test_lba_keeps_twelve_bits():
    acc = accumulator("lba_m7e4")
    assert (acc.fmt.bits, acc.product.bits, acc.chunk) == (12, 12, 16)
    assert (acc.fmt.max, acc.product.max) == (63.75, 15.9375)
    assert acc.rounding == acc.product_rounding == "toward_zero"
    assert as_accumulator(FloatFormat(4, 3)) == Accumulator("e4m3")


# --- Recipe ---


def test_recipe_takes_objects_and_names():
    named = Recipe("e5m2", weight="e4m3:stochastic", fprop="e6m9_chunk64", wgrad="fp32")
    built = Recipe(
        input=formats.E5M2,
        weight=Quantizer("e4m3", "stochastic"),
        fprop=Accumulator("e6m9", chunk=64),
        wgrad=Accumulator("fp32"),
    )
    assert named == built
    assert hash(named) == hash(built)
    assert pickle.loads(pickle.dumps(named)) == named
    assert named.bias is None
    assert named.dgrad == NATIVE
    assert str(named) == (
        "Recipe(input='e5m2', weight='e4m3:stochastic', fprop='e6m9_chunk64', wgrad='e8m23')"
    )
    assert eval(str(named)) == named
    assert str(Recipe()) == "Recipe()"


def test_recipe_is_torch_only_when_nothing_is_emulated():
    assert Recipe().is_torch
    assert not Recipe(grad_weight="fp16").is_torch
    assert not Recipe(dgrad="fp32").is_torch
    assert not Recipe(fprop="native_chunk8").is_torch
    assert not Recipe(input="e5m2").is_stochastic
    assert Recipe(grad_output="e5m2:stochastic").is_stochastic
    assert Recipe(wgrad="e6m9:stochastic").is_stochastic


@pytest.mark.parametrize("name", recipes())
def test_named_recipes(name):
    built = recipe(name)
    assert as_recipe(name) == built
    assert as_recipe(built) is built
    assert eval(str(built)) == built
    assert built.is_torch == (name == "fp32")
    assert name == "fp32" or "Source:" in describe(name)


def test_recipes_lists_the_pinned_names():
    assert {
        "fp32",
        "fp16_mixed",
        "bf16_mixed",
        "fp8_wang2018",
        "hfp8_sun2019",
        "lba_m7e4",
        "hopper_fp8",
    } <= set(recipes())


def test_fp8_wang2018():
    acc = Accumulator("e6m9", chunk=64)
    expected = Recipe("e5m2", "e5m2", grad_output="e5m2", fprop=acc, dgrad=acc, wgrad=acc)
    assert recipe("fp8_wang2018") == expected


def test_hfp8_sun2019_formats():
    built = recipe("hfp8_sun2019")
    assert built.input.fmt == formats.FP_4_3_4
    assert (built.input.fmt.max, built.grad_output.fmt.max) == (30.0, 114688.0)
    assert built.grad_output.fmt.overflow == "infinity"


# --- refusals ---


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Quantizer("e5m2", "nearest"), ValueError, "use 'nearest_even' or 'nearest_away'"),
        (
            lambda: Quantizer("e5m2", "even"),
            ValueError,
            "Quantizer: rounding must be one of.*'even",
        ),
        (lambda: Quantizer("e5m2", None), TypeError, "Quantizer: rounding must be a str.*None"),
        (lambda: Quantizer("e5x2"), ValueError, "unknown format 'e5x2'; did you mean e5m2"),
        (lambda: Quantizer(8), TypeError, "expected a format or its name, got 8"),
        (lambda: Quantizer("e5m2", random_bits=0), ValueError, r"in 1\.\.32, got 0"),
        (lambda: Quantizer("e5m2", random_bits=33), ValueError, r"in 1\.\.32, got 33"),
        (lambda: Quantizer("e5m2", random_bits=True), TypeError, "random_bits must be an int"),
        (lambda: Quantizer("e5m2", rng="mt"), ValueError, "Quantizer: rng must be 'fast' or 'phil"),
        (lambda: Quantizer("e5m2", rng=0), TypeError, "Quantizer: rng must be 'fast' or 'philox'"),
        (lambda: as_quantizer(3), TypeError, r"expected a Quantizer, a format or text .* got 3"),
        (lambda: as_quantizer("e5m2:nearest"), ValueError, "use 'nearest_even' or 'nearest_away'"),
        (lambda: as_quantizer("e5m2:to_odd:to_odd"), ValueError, "gives its rounding twice"),
        (lambda: as_quantizer("e5m2:bits=x"), ValueError, "cannot read 'bits=x' in 'e5m2:bits=x'"),
        (
            lambda: as_quantizer("e5m2:chunk=3"),
            ValueError,
            "expected a rounding, 'philox' or bits=",
        ),
        (lambda: quantizer_from_ints((0,) * 8), ValueError, "expected the 12 or 20 integers"),
        (lambda: Accumulator("e5m2", "nearest"), ValueError, "'nearest_even' or 'nearest_away'"),
        (
            lambda: Accumulator("e5m2", product="e4m3", product_rounding="nearest"),
            ValueError,
            "Accumulator product: rounding 'nearest' does not say where ties go",
        ),
        (lambda: Accumulator("e6m9", chunk=0), ValueError, "chunk must be at least 1, got 0"),
        (lambda: Accumulator("e6m9", chunk=True), TypeError, "chunk must be an int, got True"),
        (lambda: Accumulator("e6m9", chunk=64.0), TypeError, r"chunk must be an int, got 64\.0"),
        (
            lambda: Accumulator("e6m9", outer="fp32"),
            ValueError,
            "outer=e8m23 needs chunk.*chunk=64",
        ),
        (
            lambda: Accumulator("e6m9", product_rounding="to_odd"),
            ValueError,
            "product_rounding='to_odd' needs product",
        ),
        (lambda: Accumulator("e6m9", order="tree"), ValueError, "one of sequential, native, pair"),
        (lambda: Accumulator("e6m9", order=1), TypeError, "order must be a str"),
        (lambda: Accumulator("fp16", order="native"), ValueError, "sums in fp32, got fmt=e5m10"),
        (
            lambda: Accumulator("fp32", order="native", product="e4m3"),
            ValueError,
            "exact products, got product=e4m3; use order='sequential'",
        ),
        (
            lambda: Accumulator("fp32", "to_odd", order="native"),
            ValueError,
            "without chunk rounds as the hardware does, got rounding='to_odd'",
        ),
        (
            lambda: Accumulator("fp32", order="native", chunk=4, outer_rounding="to_odd"),
            ValueError,
            "rounds the outer sum alone, got rounding='nearest_even' and outer_rounding='to_odd'",
        ),
        (
            lambda: Accumulator("e6m9", outer_rounding="to_odd"),
            ValueError,
            "outer_rounding=to_odd needs chunk.*or drop outer_rounding",
        ),
        (
            lambda: Accumulator("e6m9", chunk=2, outer_rounding="up"),
            ValueError,
            "Accumulator outer: rounding must be one of",
        ),
        (lambda: Accumulator(block=8), ValueError, "block=8 and aligned_bits=None go together"),
        (lambda: Accumulator(aligned_bits=8), ValueError, "block=None and aligned_bits=8 go toge"),
        (lambda: Accumulator(block=257, aligned_bits=8), ValueError, r"block must be in 1\.\.256"),
        (lambda: Accumulator(block=8, aligned_bits=41), ValueError, r"aligned_bits .* 1\.\.40"),
        (
            lambda: Accumulator(block=8, aligned_bits=13, order="pairwise"),
            ValueError,
            "block=8 adds whole blocks one after the other, got order='pairwise'",
        ),
        (
            lambda: Accumulator(order="compensated", rounding="stochastic"),
            ValueError,
            "order='compensated' has no rounding='stochastic'",
        ),
        (lambda: accumulator("fp32:block=x"), ValueError, "cannot read 'block=x'"),
        (lambda: Accumulator("affine8"), ValueError, "fmt=affine8 takes its scale from a whole"),
        (
            lambda: Accumulator("e6m9", product="block32_e4m3"),
            ValueError,
            "product=block32_e4m3 takes its scale .* use a FloatFormat or a FixedFormat",
        ),
        (
            lambda: Accumulator("e6m9", chunk=2, outer=AffineFormat(8)),
            ValueError,
            "outer=affine8 takes its scale",
        ),
        (lambda: Accumulator("e6m9", random_bits=25), ValueError, r"in 1\.\.24, got 25"),
        (lambda: Accumulator("e6m9", rng="x"), ValueError, "Accumulator: rng must be 'fast' or"),
        (lambda: accumulator("e6m9_chunk0"), ValueError, "chunk must be at least 1, got 0"),
        (
            lambda: accumulator("lba_m7e5"),
            ValueError,
            "unknown name 'lba_m7e5'; did you mean lba_m",
        ),
        (
            lambda: accumulator("e6m9:sum=3"),
            ValueError,
            "cannot read 'sum=3' in 'e6m9:sum=3'; expec",
        ),
        (lambda: accumulator(NATIVE), TypeError, "name must be a str.*use as_accumulator"),
        (
            lambda: as_accumulator(32),
            TypeError,
            r"expected an Accumulator, a format or a name, got",
        ),
        (lambda: accumulator_from_ints((0,) * 8), ValueError, "expected the 35 integers"),
        (lambda: Recipe(input="e5m2:near"), ValueError, "Recipe: input: Quantizer: rounding must"),
        (lambda: Recipe(weight=3), TypeError, "Recipe: weight: expected a Quantizer"),
        (lambda: Recipe(fprop=None), TypeError, "Recipe: fprop: expected an Accumulator.*'native'"),
        (
            lambda: Recipe(dgrad="e5m2_chonk"),
            ValueError,
            "Recipe: dgrad: accumulator: unknown name",
        ),
        (
            lambda: recipe("fp8_wang2019"),
            ValueError,
            "unknown name 'fp8_wang2019'; did you mean fp8_",
        ),
        (lambda: recipe(None), TypeError, "recipe: the name must be a str, got None"),
        (lambda: describe("x"), ValueError, "unknown name 'x'. Names are fp32"),
        (
            lambda: as_recipe(1),
            TypeError,
            r"expected a Recipe or its name, got 1 \(int\); names are",
        ),
    ],
)
def test_refusals_say_what_and_how(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("value", [Quantizer("e5m2"), NATIVE, Recipe()], ids=ids)
def test_descriptions_are_frozen(value):
    with pytest.raises(AttributeError):
        value.rounding = "to_odd"

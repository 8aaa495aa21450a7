"""What formats, rounding, quantizers, accumulators and recipes refuse: the error's type, and the
name or the value that its message must contain."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels import formats
from lpkernels.arithmetic import (
    NATIVE,
    accumulator,
    accumulator_from_ints,
    as_accumulator,
    as_quantizer,
    checked_formats,
    quantizer_from_ints,
    with_accumulators,
    with_precision,
)
from lpkernels.arithmetic.precisions import checked_bits, checked_forward_bits
from lpkernels.formats import as_format, format_from_ints, parse_format, table_of_parts
from lpkernels.recipes import as_recipe, describe, recipe
from lpkernels.rounding import round_array, round_scalar
from tests.support.refusals import refused

FP16, ONES, ROWS = formats.FP16, np.ones(2), torch.ones(4, 128)
LINEAR4, TRANSFORMED = "block128_linear4_sfp32", lp.Quantizer("e2m1", hadamard=16)
OP = torch.ops.lpkernels
CPT = lp.recipe("cpt_fu2021")
lp.TableFormat([-1, 0, 2.5, 4], "refusals_own")


def scalar(value: float = 1.0, fmt: Any = FP16, rounding: Any = "stochastic", **draws: int) -> Any:
    return round_scalar(value, fmt, rounding, **draws)


def array(draws: Any, random_bits: int = 32) -> Any:
    return round_array(ONES, FP16, "stochastic", draws=draws, random_bits=random_bits)


def table(**fields: Any) -> lp.TableFormat:
    return lp.TableFormat(**{"values": [0, 1], "name": "refusals_a", **fields})


def aligned(**fields: Any) -> lp.Accumulator:
    return lp.Accumulator(**{"operands": "fp16", "block": 8, "aligned_bits": 20, **fields})


def precise(bits: tuple[Any, Any], formats: Any = None, **fields: Any) -> Callable[[], Any]:
    """Gives a recipe of these fields other bits."""
    return lambda: with_precision(lp.Recipe(**fields), *bits, checked_formats(formats))


WIDE = table(name="refusals_wide", boundaries=[0.5 + 2.0**-40])
#: Each constructor with arguments that it takes.
ARGUMENTS: dict[Callable[..., Any], dict[str, Any]] = {
    lp.FloatFormat: {"exp_bits": 4, "man_bits": 3},
    lp.FixedFormat: {"word_bits": 8, "frac_bits": 3},
    lp.AffineFormat: {"bits": 8},
    lp.BlockFormat: {"element": "e4m3", "block_size": 8, "scale": "fp32"},
    table: {},
    lp.posit: {"n": 8, "es": 1},
    lp.Quantizer: {"fmt": "e2m1"},
    lp.Accumulator: {"fmt": "e6m9"},
    aligned: {},
    lp.DelayedScaling: {},
    lp.RunningRange: {"momentum": 0.9},
    lp.Recipe: {},
}
#: Values that a field refuses with a ValueError, and values of a wrong type.
WRONG_VALUES: dict[Callable[..., Any], dict[str, list[Any]]] = {
    lp.FloatFormat: {"exp_bits": [0, 9], "man_bits": [24], "bias": [1001], "specials": ["fnu"],
                     "overflow": ["wrap"]},
    lp.FixedFormat: {"word_bits": [0, 25], "frac_bits": [150], "overflow": ["infinity"]},
    lp.AffineFormat: {"bits": [0, 17], "axis": [64]},
    lp.BlockFormat: {"element": ["e4m4x"], "block_size": [0, 2**63 - 1, "line", (1, 4)],
                     "scale": ["e8m1x"], "axis": ["K"], "rule": ["floor"], "steps": ["x"],
                     "target": [0.0]},
    table: {"values": [[0, 2, 1], [0, 1, 1 + 1e-9], [0, torch.nan], [0, 1e39], [1, 2],
                       range(2**16 + 1), [0.0, 1e-30, 1.0]],
            "codes": [[0], [5, 5], [0, -3]], "nan_code": [0, 2**17], "infinity": ["inf"],
            "name": ["refusals_own", "e4m3", "posit8es1", "int8", "Mine", "row_mine", "a_chunk4"],
            "boundaries": [[], [1 / 3]]},
    lp.posit: {"n": [2, 17], "es": [-1]},
    lp.Quantizer: {"fmt": ["e5x2"], "rounding": ["nearest", "RNE"], "random_bits": [33],
                   "rng": ["mt"], "hadamard": [24, 256, 32], "signs": [7]},
    lp.Accumulator: {"fmt": ["affine8"], "rounding": ["nearest"], "random_bits": [25],
                     "rng": ["x"], "chunk": [0, 2**63], "order": ["tree"], "interleaved": [0, 2],
                     "block": [257], "aligned_bits": [8], "outer": ["fp32"],
                     "outer_rounding": ["to_odd"], "product_rounding": ["to_odd"],
                     "scale_order": ["left"], "operands": ["fp16"], "least_exponent": [-4],
                     "group": [16], "adder": ["floored", "tre"]},
    aligned: {"product": ["fp16"], "operands": ["fixed8_f3", "fp16,fp32,bf16", "fp17"],
              "fmt": ["fixed8_f3"], "least_exponent": [301], "interleaved": [2],
              "aligned_bits": [41], "order": ["pairwise"]},
    lp.DelayedScaling: {"history": [0, 2**20 + 1], "algorithm": ["mean"], "margin": [65]},
    lp.RunningRange: {"momentum": [float("nan"), 1.0]},
    lp.Recipe: {"input": ["e5m2:near"], "output": ["block32_k_e4m3", "e2m1:rht16"],
                "weight": ["fp8_row", LINEAR4], "requantize": ["x"], "scaling": ["x", "delayed"],
                "dgrad": ["e5m2_chonk"]},
}  # fmt: skip
WRONG_TYPES: dict[Callable[..., Any], dict[str, list[Any]]] = {
    lp.FloatFormat: {"exp_bits": [True], "man_bits": [3.0], "subnormals": [1]},
    lp.AffineFormat: {"axis": [1.0]},
    lp.BlockFormat: {"element": [lp.AffineFormat(8)], "scale": [lp.FixedFormat(8, 0)],
                     "target": ["8"], "axis": [None]},
    table: {"values": [[[0, 1]]], "name": [5], "codes": [[0.5, 1]]},
    lp.Quantizer: {"rounding": [None], "random_bits": [True], "rng": [0], "hadamard": ["16"]},
    lp.Accumulator: {"chunk": [64.0], "order": [1]},
    aligned: {"operands": [3], "least_exponent": [1.5]},
    lp.DelayedScaling: {"history": [4.0], "reduce": [1]},
    lp.RunningRange: {"momentum": ["0.9", True], "debiased": [1]},
    lp.Recipe: {"activation": ["e5m2"], "weights": ["e5m2"], "weight": [3], "fprop": [None],
                "scaling": [3], "input_range": [0.9]},
}  # fmt: skip


#: Fields that contradict each other.
CONTRADICTIONS: dict[Callable[..., Any], list[dict[str, Any]]] = {
    lp.FloatFormat: [
        {"exp_bits": 1}, {"exp_bits": 1, "man_bits": 0, "specials": "fn"},
        {"specials": "fn", "overflow": "infinity"}, {"specials": "fnuz", "overflow": "infinity"},
        {"signed": False}, {"exp_bits": 8, "man_bits": 8, "specials": "fnuz"},
        {"exp_bits": 8, "man_bits": 23, "bias": 128}, {"exp_bits": 8, "specials": "none"},
    ],
    lp.FixedFormat: [{"word_bits": 8, "frac_bits": -121}],
    lp.AffineFormat: [{"bits": 1, "symmetric": True}],
    lp.BlockFormat: [
        {"scale": "e8m0", "target": 400}, {"scale": "e8m0", "rule": "nearest"},
        {"scale": "e8m0", "tensor_scale": True},
        {"block_size": "row", "scale": "bf16", "tensor_scale": True},
        {"block_size": (2, 2), "axis": 0}, {"block_size": "tensor", "axis": "k"},
        *({"element": "e2m1", "scale": "e4m3fn", **fields} for fields in (
            {"block_size": (2, 2), "tensor_scale": "row"}, {"scale_target": 256},
            {"tensor_scale": True, "scale_target": 449}, {"target": "4or6mae"},
            {"element": "e2m3", "tensor_scale": True, "target": "4or6mae"},
            {"tensor_scale": True, "rule": "up", "target": "4or6mse"})),
        *({"element": "e2m1", "scale": "e4m3fn", "tensor_scale": True, "block_size": 16, **fields}
          for fields in (
            {"target": "4or6mae", "steps": "torchao"}, {"target": "4or6mse", "steps": "deepgemm"},
            {"tensor_scale": "row", "steps": "torchao"}, {"scale_target": 256, "steps": "te"},
            {"target": "4or6mae", "scale_target": 300, "steps": "te"},
            {"target": "4or6mae", "block_size": 32, "steps": "te"})),
        {"element": "int8", "steps": "te"}, {"block_size": "row", "target": 9, "steps": "te"},
        {"element": lp.FixedFormat(8, 0, signed=False)}, {"element": "fp16", "scale": "e8m0"},
        {"element": "p3109_k8p4uf"}, {"element": "nf4", "scale": "e8m0"},
        {"element": "nf4", "steps": "te"}, {"element": "linear4", "scale": "e8m0"},
        {"element": table(name="refusals_te"), "block_size": "row"},
    ],
    lp.Quantizer: [
        {"fmt": "nvfp4_te", "rounding": "to_odd"}, {"fmt": "linear4"},
        {"fmt": "nvfp4_46", "rounding": "stochastic"},
        {"hadamard": 16, "signs": "et"}, {"hadamard": 16, "signs": -1},
    ],
    lp.Accumulator: [
        {"product": "e4m3", "product_rounding": "up"}, {"chunk": 2, "outer_rounding": "up"},
        {"chunk": 2, "outer": "affine8"}, {"rounding": "stochastic", "order": "compensated"},
        {"fmt": "fp16", "order": "native"}, {"fmt": "linear4"},
        *({"fmt": "fp32", "order": "native", **fields} for fields in (
            {"product": "e4m3"}, {"rounding": "to_odd"}, {"chunk": 4, "outer_rounding": "to_odd"})),
    ],
    aligned: [
        {"interleaved": 2, "chunk": 24}, {"interleaved": 2, "chunk": 6, "block": 3},
        *({"fmt": "fp32", "rounding": "toward_zero", "operands": "fp4_e2m1", "block": 64,
           "aligned_bits": 35, "group": 16, **fields} for fields in (
            {"group": 24}, {"chunk": "scale"}, {"rounding": "stochastic"},
            {"operands": "fp16", "group": 1}, {"operands": "e4m3fn"}, {"aligned_bits": 38})),
        # A core takes the formats, the blocks and the places of its unit.
        *({"fmt": "fp32", "adder": "floored", **fields} for fields in (
            {"operands": "e4m3fn"}, {"operands": "fp16,bf16"}, {"block": 16}, {"fmt": "fp16"},
            {"rounding": "toward_zero"}, {"least_exponent": -20}, {"aligned_bits": 33},
            {"aligned_bits": None})),
        {"fmt": "fp32", "adder": "tree", "block": 4},
        {"fmt": "fixed8_f3", "operands": None, "aligned_bits": None},
        {"aligned_bits": None, "least_exponent": -20},
    ],
    lp.Recipe: [
        {"fprop": "fp32_chunkscale"}, {"input": "block128_k_e4m3_sfp32", "fprop": "fp32"},
        {"input": "nvfp4_row"},
        {"input": "e2m1:rht16", "weight": "e2m1"},
        {"wgrad_input": "fp32:rht16=1", "wgrad_grad_output": "fp32:rht16"},
        {"requantize": "codes", **dict.fromkeys(("input", "weight", "grad_output"), "fp32:rht16")},
        *({"input": fmt, "scaling": "delayed"} for fmt in (
            "e4m3fn", "row_k_e4m3", "tensor_e4m3_se8m0_up", "block32_e4m3_up")),
        {"input": "tensor_e4m3", "wgrad_input": "tensor_e4m3", "scaling": "delayed"},
        {"input": "affine8_axis0", "input_range": "running:0.9"},
    ],
}  # fmt: skip
#: Texts that a reader refuses.
TEXTS: dict[Callable[[str], Any], list[str]] = {
    parse_format: [
        "fp8", "float16", "uint8", "int32", "BF17", "mxfp8_rceil", "nvfp4_axis0", "posit16es4",
        "row_int8_to1.2.3", "e4m3_b7_b8", "e4m3_inf_sat", "e4m3_big", "e5" + "m" * 10**6,
        "p3109_k2p1se", "p3109_k8p8se", "p3109_k8p0ue", "p3109_k9p1ue", "posit08es1",
    ],
    as_quantizer: [
        "e5m2:to_odd:to_odd", "e5m2:bits=x", "e5m2:chunk=3", "e2m1:rht", "e2m1:rht16=te",
        "e2m1:rht16:rht16", "e2m1:rht20", "e2m1:rht64",
    ],
    accumulator: ["fp32:block=x", "fp8", "lba_m7e5", "e6m9:sum=3"],
    recipe: ["fp8_wang2019", "ada_bf61"],
    describe: ["x"],
    lp.Recipe.parse: [
        "fp8_wang2018", "Recipe(input='e5m2'", "Recipe('e5m2')", "Recipe(input=3)",
        "Recipe(inputs='e5m2')", "Recipe(input='e5m2', input='e5m2')", "Recipe(input='e5m')",
        "Recipe(fprop='')",
    ],
    lp.DelayedScaling.of: ["delay", "delayed:max:max", "delayed:history=few", "delayed:mean"],
    lp.RunningRange.of: ["ema:0.9", "running:.9:no", "running:1.5"],
}  # fmt: skip


def each_field(wrong: dict[Callable[..., Any], dict[str, list[Any]]]) -> list[Any]:
    return [
        pytest.param(constructor, {field: value}, id=f"{constructor.__name__}-{field}-{i}")
        for constructor, fields in wrong.items()
        for field, values in fields.items()
        for i, value in enumerate(values)
    ]


def assert_refused(error: type[Exception], constructor: Any, fields: dict[str, Any]) -> None:
    """The constructor's error contains the name of a field, or the value of one."""
    with pytest.raises(error) as caught:
        constructor(**{**ARGUMENTS[constructor], **fields})
    words = [str(word) for field in fields.items() for word in field]
    assert any(word in str(caught.value) for word in words)


TOGETHER = [
    (constructor, fields) for constructor, rows in CONTRADICTIONS.items() for fields in rows
]


@pytest.mark.parametrize("constructor, fields", [*each_field(WRONG_VALUES), *TOGETHER])
def test_wrong_values_are_refused(constructor: Any, fields: dict[str, Any]) -> None:
    assert_refused(ValueError, constructor, fields)


@pytest.mark.parametrize("constructor, fields", each_field(WRONG_TYPES))
def test_wrong_types_are_refused(constructor: Any, fields: dict[str, Any]) -> None:
    assert_refused(TypeError, constructor, fields)


@pytest.mark.parametrize(
    "read, text", [(read, text) for read, texts in TEXTS.items() for text in texts]
)
def test_wrong_texts_are_refused(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError):
        read(text)


test_wrong_calls_are_refused = refused(
    [
        (lambda: formats.FP32.values(), "16"),
        (lambda: format_from_ints((9,) * 8), "integers"),
        (lambda: quantizer_from_ints((0,) * 8), "integers"),
        (lambda: accumulator_from_ints((0,) * 8), "integers"),
        (lambda: table_of_parts("e4m3", *parse_format("nf4").parts()[1:]), "e4m3"),
        (lambda: lp.supernormal(4, 3, 15, 1), "high"),
        (lambda: lp.logarithmic(8, 2**23), "equal"),
        (lambda: table(boundaries=[1.5]), "boundary"),
        (lambda: table(boundaries=[2.0**-301]), "boundary"),
        (lambda: lp.BlockFormat(WIDE, 64, scale="fp32"), "significant bits"),
        # A format without zero is an element of blocks alone, and nothing is counted in it.
        (lambda: lp.quantize(ROWS, "linear4"), "linear4"),
        (lambda: lp.pack(ROWS, "linear4"), "linear4"),
        (lambda: lp.pack(ROWS, "row_linear4"), "linear4"),
        (lambda: lp.pack(torch.tensor([0.0, 1.0]), LINEAR4), "linear4"),
        (lambda: lp.matmul(lp.scaled(ROWS, LINEAR4), ROWS.T, "fp32_chunkscale"), "linear4"),
        (lambda: lp.count(ROWS, LINEAR4), "linear4"),
        # A Hadamard transform belongs to both operands of a recipe's product.
        (lambda: as_quantizer(TRANSFORMED), "hadamard|rht16"),
        (lambda: lp.quantize(ROWS, TRANSFORMED), "rht16"),
        (lambda: lp.matmul(ROWS, ROWS.t(), "fp32", output=TRANSFORMED), "rht16"),
        (lambda: OP._quantize(ROWS, TRANSFORMED.to_ints(), None, None, 0, 4, "cpu"), "transform"),
        (lambda: scalar(rounding="nearest"), "nearest_even"),
        (lambda: scalar(rounding="up"), "toward_positive"),
        (lambda: scalar(draw=4, random_bits=2), "draw"),
        (lambda: scalar(draw=-1), "draw"),
        (lambda: array(np.array([0]), 0), "random_bits"),
        (lambda: array(np.array([0, 9]), 3), "random_bits"),
        (lambda: lp.Quantizer.from_dict({"fmt": "e5m2", "bits": 3}), "'bits'"),
        (lambda: checked_bits("b", 33), "b must"),
        (lambda: checked_forward_bits((4, 4, 4)), "forward_bits|pair"),
        (lambda: checked_formats({}), "formats"),
        (lambda: checked_formats({4: "e4x3"}), "formats"),
        (lambda: with_accumulators(CPT, {"forward": "e6m9"}), "'forward'"),
        (precise((4, 8)), "quantizer"),
        (precise((4, None), grad_output="e5m2"), "quantizer"),
        (precise((1, None), weight="affine8_sym"), "bits"),
        (precise((25, None), weight="fixed8_f4"), "word_bits"),
        (precise((8, None), weight="fixed4_f149"), "frac_bits"),
        (precise((4, None), input="e4m3fn"), "formats"),
        (precise((None, 5), {4: "e2m1", 8: "e4m3"}, grad_output="e5m2"), "5 bits"),
        (lambda: with_precision(CPT, 4, None, checked_formats({4: "e2m1"})), "input_range"),
    ],
    ValueError,
)  # fmt: skip
test_arguments_of_another_type_are_refused = refused(
    [
        (lambda: as_format(torch.int8), "fixed8_f0"),
        (lambda: as_format(torch.float8_e8m0fnu), "float8_e8m0fnu"),
        (lambda: scalar(fmt="fp16"), "'fp16'"),
        (lambda: scalar(fmt=lp.AffineFormat(8)), "quantize"),
        (lambda: round_array(ONES, lp.BlockFormat("e4m3"), "to_odd"), "fmt"),
        (lambda: array(None), "draws"),
        (lambda: table(boundaries=["b"]), "boundar"),
        (lambda: lp.Quantizer("e2m1", hadamard=16, signs=1.5), "signs"),
        (lambda: replace(lp.Recipe(), acc="e5m2"), "'fprop'"),
        (lambda: accumulator(NATIVE), "as_accumulator"),
        (lambda: as_recipe(lp.FloatFormat(4, 3)), "input="),
        (lambda: as_recipe(NATIVE), "fprop="),
        (lambda: checked_bits("b", 4.0), "b must"),
        (lambda: checked_formats(["e4m3"]), "mapping"),
        (lambda: checked_formats({"4": "e4m3"}), "formats"),
        (lambda: with_accumulators(CPT, {"fprop": 3}), "set_accumulator"),
        *(
            (lambda read=read: read(8), "got (8|int)")
            for read in (
                parse_format, as_format, as_quantizer, as_accumulator, as_recipe, recipe,
                lp.DelayedScaling.of, lp.RunningRange.of, lp.Quantizer, lp.Quantizer.parse,
                lp.Recipe.parse, lp.Quantizer.from_dict,
            )
        ),
    ],
    TypeError,
)  # fmt: skip

"""Named recipes: the arithmetic of published training methods, each with its source and departures.

A recipe is the arithmetic of a layer; what a method does outside it (loss scaling, master weights,
rounding of the update, layers kept apart) belongs to the trainer and is named in the docstring.
"""

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from lpkernels.arithmetic import (
    MODELS,
    NATIVE,
    TORCH,
    UNITS,
    Accumulator,
    DelayedScaling,
    Recipe,
    RunningRange,
    Unit,
    accumulator,
    as_accumulator,
    as_quantizer,
)
from lpkernels.formats import E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ
from lpkernels.formats.elsewhere import KINDS, nearest

__all__ = ["describe", "recipe", "recipes"]

_RECIPES: dict[str, Callable[[], Recipe]] = {}


def _register(build: Callable[[], Recipe]) -> Callable[[], Recipe]:
    _RECIPES[build.__name__] = build
    return build


def recipes() -> list[str]:
    """The names that :func:`recipe` knows, without those of tensor cores (`lpkernels units`)."""
    return list(_RECIPES)


def recipe(name: str) -> Recipe:
    """The recipe called `name`; :func:`describe` says where it comes from.

    The name of a tensor core with a recording (`lpkernels units`), such as "v100_fp16", is also the
    name of a recipe: all tensors are in the format that this tensor core multiplies, and it sums
    all three products. A unit of tf32 cuts the operands to tf32, and results stay float32;
    with a unit of fp8 conversions saturate and gradients are e5m2. The text of any recipe,
    ``str(recipe)``, is read as well.

    Raises:  TypeError: not a str.  ValueError: no such recipe.

    >>> wang = lp.recipe("fp8_wang2018")
    >>> print(wang.input, wang.fprop)
    e5m2 e6m9_chunk64
    >>> print(lp.recipes.describe("fp8_wang2018")[:55])
    FP8 operands (e5m2) in all three products, sums in e6m9
    """
    if isinstance(name, str) and name.startswith("Recipe("):
        return Recipe.parse(name)
    return _builder(name)()


def describe(name: str) -> str:
    """The description of the recipe called `name`: arithmetic, source, and every departure from it.

    Raises:  TypeError: not a str.  ValueError: no such recipe.
    """
    build = _builder(name)
    if name in _RECIPES:
        return inspect.getdoc(build) or ""
    unit = UNITS[name]
    return (
        f"Training through the tensor core {name}: {unit.hardware}, {unit.instruction}.\n\n"
        f"Recordings decide: {unit.decided}. Not known: {unit.unknown}; the order of k and split-K "
        "of libraries, in whose place stands the contract's order. Differs: a bias is one more "
        "addition in the unit's format and mode, where libraries add it to nearest; its gradient "
        "is a sum of the unit too; no scale factors.\nSource: docs/tensor-cores.md for the sums; "
        "for tensors in 16 bits that of fp16_mixed and bf16_mixed."
    )


# lpkernels.recipes is the function, which hides this module from those who look there.
recipes.describe = describe  # type: ignore[attr-defined]


def as_recipe(value: Recipe | str) -> Recipe:
    """`value` itself if it is a Recipe, else the recipe of that name or text.

    Raises:  TypeError: something else.  ValueError: an unknown name.
    """
    if isinstance(value, Recipe):
        return value
    if isinstance(value, str):
        return recipe(value)
    raise TypeError(
        f"expected a Recipe or its name, got {value!s} ({type(value).__name__}){_advice(value)}"
    )


def _advice(value: Any) -> str:
    """The end of an error: how a format or an accumulator becomes a recipe, else near names."""
    if value is None:
        return "; torch's own arithmetic is 'fp32', and lp.revert(model) gives torch's layers back"
    with contextlib.suppress(TypeError, ValueError):
        fmt = repr(str(as_quantizer(value)))
        return f"; it is a format, for lp.Recipe(input={fmt}, weight={fmt}, grad_output={fmt})"
    with contextlib.suppress(TypeError, ValueError):
        acc = repr(str(as_accumulator(value)))
        return f"; it is an accumulator, for lp.Recipe(fprop={acc}, dgrad={acc}, wgrad={acc})"
    return f"; expected one of {_nearest(value)}"


def _nearest(name: object) -> str:
    return nearest(name, [*_RECIPES, *UNITS], "lp.recipes() and `lpkernels units` list all")


def _recipe_kind(value: object) -> str:
    """What `KINDS` says of a Recipe, of its name and of its text."""
    if isinstance(value, str):
        is_recipe = value in _RECIPES or value in UNITS or value.startswith("Recipe(")
    else:
        is_recipe = isinstance(value, Recipe)
    where = "pass recipe= to a layer or a function, or give it to lp.convert"
    return f"a recipe: {where}" if is_recipe else ""


KINDS["recipe"] = _recipe_kind


def _builder(name: str) -> Callable[[], Recipe]:
    if not isinstance(name, str):
        raise TypeError(
            f"recipe: the name must be a str, got {name!r} ({type(name).__name__}); expected one "
            f"of {_nearest(name)}"
        )
    if name in MODELS:
        raise ValueError(
            f"recipe: {name!r} multiplies operands with scales, whose formats it does not say; "
            f"write them, as in Recipe(input=fmt, weight=fmt, grad_output=fmt, fprop={name!r}, "
            f"dgrad={name!r}, wgrad={name!r}) with fmt='block32_k_e4m3_up'"
        )
    if name in _RECIPES:
        return _RECIPES[name]
    if name in UNITS:
        return partial(_of_unit, UNITS[name])
    raise ValueError(f"recipe: unknown name {name!r}{_advice(name)}")


def _of_operands(fmt: str, acc: Accumulator | str = NATIVE, **fields: Any) -> Recipe:
    """Operands in one format but for others, by field, and one accumulator."""
    operands = {"input": fmt, "weight": fmt, "grad_output": fmt}
    return Recipe(**(operands | fields), fprop=acc, dgrad=acc, wgrad=acc)


@_register
def fp32() -> Recipe:
    """torch's own arithmetic: nothing quantised, native fp32 products."""
    return TORCH


def _mixed(fmt: str, acc: Accumulator = NATIVE) -> Recipe:
    tensors = ("input", "weight", "bias", "output", "grad_output", "grad_input", "grad_weight")
    return Recipe(**dict.fromkeys(tensors, fmt), fprop=acc, dgrad=acc, wgrad=acc)


@_register
def fp16_mixed() -> Recipe:
    """Every tensor in fp16, products summed in fp32 and rounded when written.

    Source: Micikevicius et al. 2018, "Mixed precision training", arXiv 1710.03740. Master weights
    and loss scaling are the trainer's.
    """
    return _mixed("fp16")


@_register
def bf16_mixed() -> Recipe:
    """Every tensor in bf16, products summed in fp32 and rounded when written.

    Source: Kalamkar et al. 2019, "A study of BFLOAT16 for deep learning training", arXiv
    1905.12322. Needs no loss scaling; master weights are the trainer's.
    """
    return _mixed("bf16")


@_register
def fp8_wang2018() -> Recipe:
    """FP8 operands (e5m2) in all three products, sums in e6m9 by chunks of 64.

    Source: Wang et al. 2018, "Training deep neural networks with 8-bit floating point numbers",
    arXiv 1812.08011. The trainer rounds weight updates stochastically to e6m9 and scales the loss;
    there the first and last layer keep 16-bit operands, here a mapping of recipes does that. e5m2
    and e6m9 follow IEEE rules (infinity, NaN, subnormals), sums and operands round to nearest even.
    """
    return _of_operands("e5m2", "e6m9_chunk64")


@_register
def hfp8_sun2019() -> Recipe:
    """Hybrid FP8: forward operands with 4 exponent bits and bias + 4, gradients with 5.

    Source: Sun et al. 2019, "Hybrid 8-bit floating point (HFP8) training and inference for deep
    neural networks", NeurIPS. No exponent code is reserved; forward tensors saturate, gradients
    overflow to infinity for a loss scaler to see. Sums in e6m9 by chunks of 64. Differs: operands
    round to nearest even; the first and last layer are not kept apart.
    """
    return _of_operands("fp_4_3_4", "e6m9_chunk64", grad_output="fp_5_2_0_backward")


@_register
def lba_m7e4() -> Recipe:
    """12-bit accumulation in the forward product: 7 mantissa and 4 exponent bits, truncated.

    Source: Blumenfeld et al. 2024, "Towards cheaper inference in deep networks with lower bit-width
    accumulators", arXiv 2401.14110. Products and partial sums are rounded toward zero, saturate,
    and are flushed to zero below min_normal; the gradient passes straight through.
    Differs: the exponent biases (12 for the product, 10 for the sum) and the chunk length of 16 are
    fixed here, there they are parameters; operands stay fp32; exponent code 0 holds only the zeros.
    """
    return Recipe(fprop="lba_m7e4")


def _of_unit(unit: Unit) -> Recipe:
    """A recipe in which this unit makes every product, of tensors in the format that it
    multiplies."""
    acc, inputs = unit.accumulator, unit.inputs
    if inputs in ("fp16", "bf16"):
        return _mixed(inputs, acc)
    if inputs == "fp32":
        return Recipe(fprop=acc, dgrad=acc, wgrad=acc)
    if inputs in ("tf32", "xf32"):
        return _of_operands("tf32:toward_zero", acc)
    backward = E5M2FNUZ if inputs.endswith("fnuz") else E5M2
    forward = {"e5m2": E5M2, "e4m3fnuz": E4M3FNUZ, "e5m2fnuz": E5M2FNUZ}.get(inputs, E4M3FN)
    fp8 = _of_operands(f"{forward}_sat", acc, grad_output=f"{backward}_sat")
    if acc.operands != (forward, forward):
        return fp8
    # The gradient of the output, in e5m2, is the left factor of both gradients' products.
    gradients = replace(acc, operands=(backward, forward))
    return replace(fp8, dgrad=gradients, wgrad=gradients)


@_register
def h100_fp8() -> Recipe:
    """FP8 of an H100 with fast accumulation forward: e4m3fn, one chain of 14 bits; e5m2 gradients.

    Source: for the formats Micikevicius et al. 2022, "FP8 formats for deep learning", arXiv
    2209.05433; that the forward product alone accumulates fast is the default of NVIDIA's
    Transformer Engine. The forward sums are the accumulator "h100_e4m3" (recordings of wgmma on
    H100 and H200); the sums of both gradients are promoted to fp32 every 128 products, "hopper_fp8"
    with e5m2 times e4m3fn, equal to 374 live calls of torch._scaled_mm on an H100 PCIe with
    cuBLASLt 12.8 (docs/tensor-cores.md). Conversions saturate, as the hardware's do. Not known:
    other variants and library versions; where cuBLAS splits K it is not this. Differs: no scale
    factors per tensor or block; results are not rounded to bf16; a bias is one more addition in the
    format and mode of the forward sum, 14 bits toward zero, where libraries add it in fp32.
    """
    return replace(_of_unit(UNITS["hopper_fp8"]), fprop=accumulator("h100_e4m3"))


@_register
def hopper_fp8() -> Recipe:
    """FP8 of an H100 without fast accumulation: e4m3fn, e5m2 gradients, sums promoted every 128.

    Source: for the formats Micikevicius et al. 2022, arXiv 2209.05433; for promotion DeepSeek-AI
    2024, "DeepSeek-V3 technical report", arXiv 2412.19437, section 3.3, where it is the remedy for
    sums of about 14 bits. The accumulator "hopper_fp8" equals 374 live calls of torch._scaled_mm on
    an H100 PCIe (docs/tensor-cores.md); both gradients' has operands e5m2 times e4m3fn. Conversions
    saturate. Not known, and differs: as h100_fp8, but a bias is added in fp32.
    """
    return _of_unit(UNITS["hopper_fp8"])


@_register
def cpt_fu2021() -> Recipe:
    """Integer quantizers of 8 bits, made for a schedule of their bits; sums are fp32's.

    Source: Fu et al. 2021, "CPT: Efficient deep neural network training via cyclic precision",
    arXiv 2101.09868, and its published code, whose quantizers are affine over the range of a
    tensor: the input of a layer rounded to nearest, in evaluation over a running range of momentum
    0.9 that starts at 0; the weight to nearest over the range of each output channel; the gradient
    of the output stochastically, once for both products. Differs: stochastic rounding of a value
    beyond the last level but one is unbiased too, where the code adds its noise before it clamps;
    a step is never below 1e-8 there and here, but the largest code is the range's end exactly.
    Axis 0 of the weight is the output channels in linear and convolution layers; transposed
    convolutions need axis 1, which the policy of this name gives them.
    """
    return Recipe(
        input="affine8",
        weight="affine8_axis0",
        grad_output="affine8:stochastic",
        input_range=RunningRange(0.9),
    )


# Recipes of scaled formats. "k" in a format is the dimension that each product sums: a tensor that
# two products read has codes of its own for each of them, made from the tensor itself.


@_register
def mxfp8() -> Recipe:
    """MXFP8 as NVIDIA trains in it: e4m3 in blocks of 32 along k, scales rounded up.

    Source: TransformerEngine's MXFP8BlockScaling, whose default is E4M3 forward and backward and
    which makes both directions of a tensor from the tensor itself; Mishra et al. 2025, "Recipes for
    pre-training LLMs with MXFP8", arXiv 2506.08027. torchao's rule RCEIL gives the same scales. The
    format "mxfp8" is OCP's, which rounds scales down: see mxfp8_ocp. Differs: products are torch's
    own of the values, in float32, and results are not rounded to bf16; the accumulator "mx_fp32"
    multiplies codes and applies scales as the hardware's order has it. With HYBRID there gradients
    are e5m2: grad_output="block32_k_e5m2_up".
    """
    return _of_operands("block32_k_e4m3_up")


@_register
def mxfp8_ocp() -> Recipe:
    """MXFP8 of the specification: e4m3 in blocks of 32 along k, scales rounded down.

    Source: OCP Microscaling Formats v1.0, section 6.3, for the scale; microxcaling quantises every
    operand of the three products along its summed dimension as well. The largest element of many
    blocks saturates. Differs: as mxfp8; microxcaling may round other tensors to bf16 in between.
    """
    return _of_operands("block32_k_e4m3")


@_register
def mxfp6() -> Recipe:
    """MXFP6: e3m2 in blocks of 32 along k, scales rounded down.

    Source: as of mxfp8_ocp, with its departures. OCP has e2m3 as well: "block32_k_e2m3".
    """
    return _of_operands("block32_k_e3m2")


@_register
def mxfp4() -> Recipe:
    """MXFP4: e2m1 in blocks of 32 along k, scales rounded down, everything to nearest.

    Source: as of mxfp8_ocp, with its departures. A baseline, without what mxfp4_sr adds.
    """
    return _of_operands("block32_k_e2m1")


@_register
def mxfp4_sr() -> Recipe:
    """MXFP4 with stochastic gradients and a random Hadamard transform of 32 on wgrad's operands.

    Source: Tseng, Yu, Park 2025, "Training LLMs with MXFP4", arXiv 2502.20586. Differs: there the
    forward product stays in bf16 or fp8, every operand of both backward products is transformed
    and rounded stochastically, and is shrunk to 3/4 before that so that nothing is clipped. Here
    scales rounded up clip nothing; forward is MXFP4 too, to nearest; only the gradient is rounded
    stochastically, and only wgrad's operands are transformed. Products as in mxfp8.
    """
    fmt = "block32_k_e2m1_up"
    return _of_operands(
        fmt,
        grad_output=f"{fmt}:stochastic",
        wgrad_input=f"{fmt}:rht32=0",
        wgrad_grad_output=f"{fmt}:stochastic:rht32=0",
    )


@_register
def nvfp4() -> Recipe:
    """NVFP4 alone: e2m1 in blocks of 16 along k with e4m3 scales and a scale of the tensor.

    A baseline for nvfp4_pretraining: no squares, no transform, everything to nearest.
    Source: NVIDIA 2025, arXiv 2509.25149, for the format. The accumulator "mx_fp32" multiplies
    codes and adds each block's sum times both scales. Differs: results are not rounded to bf16.
    """
    return _of_operands("block16_k_e2m1_se4m3fn_t", "mx_fp32")


@_register
def nvfp4_pretraining() -> Recipe:
    """NVFP4 as NVIDIA pre-trains: weights in squares, stochastic gradients, wgrad transformed.

    Source: NVIDIA 2025, "Pretraining large language models with NVFP4", arXiv 2509.25149, section
    4, and TransformerEngine's NVFP4BlockScaling, of which the steps and the signs of the transform
    are. Weights have a scale for every 16 x 16 values, so that forward and backward see one weight.
    The gradient is rounded stochastically, with 8 random bits. wgrad's operands are transformed by
    a random Hadamard matrix of 16 with fixed signs; their scales are those of transformed values.
    Differs: results are not rounded to bf16; draws are this package's. Never all layers of a model
    in the source: the policy of this name and its `keep` leave some to torch.
    """
    fmt = "block16_k_e2m1_se4m3fn_t_te"
    return _of_operands(
        fmt,
        "mx_fp32",
        weight="nvfp4_2d_te",
        grad_output=f"{fmt}:stochastic:bits=8",
        wgrad_input=f"{fmt}:rht16",
        wgrad_grad_output=f"{fmt}:stochastic:bits=8:rht16",
    )


# Of the gradient, which is never rounded to one of two candidates.
_NVFP4_GRADIENT = "block16_k_e2m1_se4m3fn_t_te:stochastic:bits=8"
_NVFP4_46 = "block16_k_e2m1_se4m3fn_t256_to4or6mae_te"


@_register
def nvfp4_46() -> Recipe:
    """NVFP4 with two candidates a block (four over six) in inputs and weights, gradients drawn.

    Source: TransformerEngine's NVFP4BlockScaling(disable_rht=True, nvfp4_4over6="all"): inputs in
    blocks along k and weights in squares are encoded with their largest at 6 and at 4, and the
    nearer codes by the sum of magnitudes of the errors stay; the gradient is plain NVFP4, rounded
    stochastically with 8 random bits. Cook et al. 2025, "Four over six", arXiv 2512.02010, is the
    idea; it compares squares ("nvfp4_46_mse"). torchao's pull request 4851 has the same codes and
    rounds the gradient to nearest. Differs: a square and its transpose have one set of codes, where
    TransformerEngine may choose another for the transpose; results are not rounded to bf16.
    """
    return _of_operands(_NVFP4_46, "mx_fp32", weight="nvfp4_46_2d_te", grad_output=_NVFP4_GRADIENT)


@_register
def nvfp4_46_pretraining() -> Recipe:
    """nvfp4_pretraining whose forward operands have two candidates a block (four over six).

    Source: the baseline of Quartet II (arXiv 2601.22813, its program's schemes/nvidia.py with
    four_over_six=True). wgrad's operands are those of nvfp4_pretraining: plain, transformed, the
    gradient stochastic. Differs: there squares of errors are compared, the signs of the transform
    are drawn anew in every step, and stochastic codes have a target of 6 * 16/17; with a transform
    TransformerEngine gives weights alone two candidates. Results are not rounded to bf16.
    """
    forward, weight = as_quantizer(_NVFP4_46), as_quantizer("nvfp4_46_2d_te")
    return replace(nvfp4_pretraining(), input=forward, weight=weight)


@_register
def nvfp4_row() -> Recipe:
    """NVFP4 whose inputs have a scale a row, so that no row suffers from another's outlier.

    Source: TransformerEngine's NVFP4BlockScaling(row_scaled_activation=True, disable_rht=True):
    every row of an input has its own tensor scale, in wgrad every column. Weights are squares, the
    gradient is plain NVFP4, rounded stochastically with 8 random bits. Differs: the two scales of
    an output are multiplied before they multiply the sum; results are not rounded to bf16.
    """
    return _of_operands(
        "block16_k_e2m1_se4m3fn_trow_te",
        "mx_fp32",
        weight="nvfp4_2d_te",
        grad_output=_NVFP4_GRADIENT,
    )


@_register
def nvfp4_46_rl() -> Recipe:
    """NVFP4 forward alone, with two candidates a block and a scale a row; bf16 backward.

    Source: TransformerEngine's backward_override="dequantized" and torchao's "dequantized" (pull
    request 4851), meant for reinforcement learning and post-training: backward reads the values of
    the forward codes, rounded to bf16, and so sees what forward saw. Their "high_precision" is
    requantize="source". Differs: as nvfp4_46; the sums of backward are torch's own, of values in
    bf16.
    """
    return Recipe(
        input="block16_k_e2m1_se4m3fn_trow256_to4or6mae_te",
        weight="nvfp4_46_2d_te",
        grad_output="bf16",
        dgrad_weight="bf16",
        wgrad_input="bf16",
        requantize="codes",
        fprop="mx_fp32",
    )


@_register
def deepseek_v3() -> Recipe:
    """DeepSeek-V3's FP8: e4m3 in blocks of 1 x 128, weights of 128 x 128, sums promoted every 128.

    Source: DeepSeek-AI 2024, "DeepSeek-V3 technical report", arXiv 2412.19437, section 3.3. Scales
    are float32. The accumulator "deepseek_v3" is the chain of 14 bits of an H100 over 128 products,
    which enters a float32 sum times both scales, in DeepGEMM's order. Differs: the report stores
    activations for backward in FP8 with powers of two as scales, and inputs of the layer behind
    attention in 12 bits (e5m6); here wgrad's codes are made from the input itself. Results are not
    rounded to bf16.
    """
    return _of_operands("block128_k_e4m3_sfp32", "deepseek_v3", weight="tile128x128_e4m3_sfp32")


@_register
def te_block() -> Recipe:
    """TransformerEngine's FP8 in blocks: as deepseek_v3 with scales that are powers of two.

    Source: TransformerEngine's Float8BlockScaling: E4M3 forward and backward, blocks of 1 x 128 of
    inputs and gradients, 128 x 128 of weights, powers of two by default, split accumulation in all
    products. Differs: the order of sums is that of TransformerEngine's reference for tests, and
    results are not rounded to bf16.
    """
    acc = replace(accumulator("deepseek_v3"), scale_order="left")
    return _of_operands("block128_k_e4m3_up_te", acc, weight="tile128x128_e4m3_up_te")


@_register
def te_current() -> Recipe:
    """TransformerEngine's FP8 with current scaling: one scale a tensor, of its own largest value.

    Source: TransformerEngine's Float8CurrentScaling: HYBRID is e4m3 forward and e5m2 gradients, one
    set of codes for all products; fprop accumulates fast, dgrad and wgrad do not, as in h100_fp8,
    whose sums these are. Differs: as h100_fp8, but there are scale factors.
    """
    sums = h100_fp8()
    forward = as_quantizer("tensor_e4m3_te")
    backward = as_quantizer("tensor_e5m2_te")
    return replace(sums, input=forward, weight=forward, grad_output=backward)


@_register
def te_delayed() -> Recipe:
    """TransformerEngine's FP8 with delayed scaling: as te_current with scales of earlier steps.

    Source: TransformerEngine's DelayedScaling, whose defaults are the largest value of the last
    1,024 steps, no margin and HYBRID. `lpkernels.nn.update_scales` is called after every backward
    pass; until the first call scales are 1, as there. Differs: as te_current.
    """
    return replace(te_current(), scaling=DelayedScaling())


@_register
def fp8_rowwise() -> Recipe:
    """torchao's FP8 by rows: e4m3 with one scale a row along k, a power of two.

    Source: torchao's float8 recipe "rowwise", gradients in e4m3 as well. Products are torch's own
    of the values. Differs: results are not rounded to bf16. Its recipe "rowwise_with_gw_hp" is this
    one with dgrad_weight="tensor_e4m3", wgrad_input="fp32" and wgrad_grad_output="fp32".
    """
    return _of_operands("row_k_e4m3_se8m0_up_torchao")


@_register
def int8_training() -> Recipe:
    """torchao's INT8 mixed precision: int8 with one scale a row along k, in all three products.

    Source: torchao's prototype quantized_training, which follows Wortsman et al. 2023
    ("SwitchBack", arXiv 2304.13013) and computes wgrad in INT8 too. Differs: sums of codes are
    float32's, exact up to 1,040 products of the largest codes, where int32 is exact to 133,144;
    everything is rounded to nearest.
    """
    return _of_operands("row_k_int8_torchao", "native_chunkscale")

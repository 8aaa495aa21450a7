"""Named recipes: the arithmetic of published training methods, each with its source and departures.

A recipe is the arithmetic of a layer; what a method does outside it (loss scaling, master weights,
rounding of the update, layers kept apart) belongs to the trainer and is named in the docstring.
"""

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lpkernels.arithmetic import (
    MODELS,
    NATIVE,
    TORCH,
    UNITS,
    Accumulator,
    Recipe,
    RunningRange,
    Unit,
    as_accumulator,
    as_quantizer,
)
from lpkernels.formats import E4M3FN, E5M2
from lpkernels.formats.elsewhere import KINDS, nearest

__all__ = ["as_recipe", "describe", "recipe", "recipes"]

_RECIPES: dict[str, Callable[[], Recipe]] = {}


def _named(build: Callable[[], Recipe]) -> Callable[[], Recipe]:
    _RECIPES[build.__name__] = build
    return build


def _known() -> dict[str, Callable[[], Recipe]]:
    """The recipes by name; the first question reads the recipes of scaled formats."""
    from lpkernels.recipes import scaled  # noqa: F401

    return _RECIPES


def recipes() -> list[str]:
    """The names :func:`recipe` knows."""
    return list(_known())


def recipe(name: str) -> Recipe:
    """The recipe called `name`; :func:`describe` tells where it comes from.

    The name of a tensor core with a recording (`lpkernels units`) is also the name of a recipe,
    like "v100_fp16" below: all tensors are in the format that this tensor core multiplies, and it
    sums all three products. A unit of tf32 cuts the operands to tf32, and results stay float32;
    with a unit of fp8 conversions saturate and gradients are e5m2. The text of any recipe,
    ``str(recipe)``, is read as well.

    Raises:  TypeError: not a str.  ValueError: no such recipe.

    >>> its = lp.recipe("fp8_wang2018")
    >>> print(its.input, its.fprop)
    e5m2 e6m9_chunk64
    >>> print(lp.recipes.describe("fp8_wang2018")[:55])
    FP8 operands (e5m2) in all three products, sums in e6m9
    """
    if isinstance(name, str) and name.startswith("Recipe("):
        return Recipe.parse(name)
    if isinstance(name, str) and name in UNITS and name not in _known():
        return _of_unit(UNITS[name])
    return _builder(name)()


def describe(name: str) -> str:
    """The description of the recipe called `name`: arithmetic, source, and every departure from it.

    Raises:  TypeError: not a str.  ValueError: no such recipe.
    """
    if isinstance(name, str) and name in UNITS and name not in _known():
        unit = UNITS[name]
        return (
            f"Training through the tensor core {name}: {unit.hardware}, {unit.instruction}.\n\n"
            f"Recordings decide: {unit.decided}. Not known: {unit.unknown}. Differs: bias and its "
            "gradient as in v100_fp16; no scale factors.\nSource: docs/tensor-cores.md."
        )
    return inspect.getdoc(_builder(name)) or ""


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
    meant = _part(value) or f"; expected one of {_nearest(value)}"
    raise TypeError(f"expected a Recipe or its name, got {value!s} ({type(value).__name__}){meant}")


def _part(value: Any) -> str:
    """Advice where a format or an accumulator stands for a recipe, or nothing; "" elsewhere."""
    if value is None:
        return "; torch's own arithmetic is 'fp32', and lp.revert(model) gives torch's layers back"
    operands = sums = ""
    with contextlib.suppress(TypeError, ValueError):
        it = repr(str(as_quantizer(value)))
        operands = f"lp.Recipe(input={it}, weight={it}, grad_output={it})"
    with contextlib.suppress(TypeError, ValueError):
        it = repr(str(as_accumulator(value)))
        sums = f"lp.Recipe(fprop={it}, dgrad={it}, wgrad={it})"
    if operands and sums:
        return f"; it is a format, for operands as {operands}, for sums as {sums}"
    if operands:
        return f"; it is a format, for {operands}"
    return f"; it is an accumulator, for {sums}" if sums else ""


def _nearest(name: object) -> str:
    return nearest(name, [*_known(), *UNITS], "lp.recipes() and `lpkernels units` list all")


def _recipe_kind(value: object) -> str:
    """What `KINDS` says of a Recipe, of its name and of its text."""
    if isinstance(value, str):
        meant = value in _known() or value in UNITS or value.startswith("Recipe(")
    else:
        meant = isinstance(value, Recipe)
    where = "pass recipe= to a layer or a function, or give it to lp.convert"
    return f"a recipe: {where}" if meant else ""


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
    known = _known()
    if name not in known:
        meant = _part(name) or f"; expected one of {_nearest(name)}"
        raise ValueError(f"recipe: unknown name {name!r}{meant}")
    return known[name]


@_named
def fp32() -> Recipe:
    """torch's own arithmetic: nothing quantised, native fp32 products."""
    return TORCH


def _mixed(fmt: str, acc: Accumulator = NATIVE) -> Recipe:
    return Recipe(
        input=fmt,
        weight=fmt,
        bias=fmt,
        output=fmt,
        grad_output=fmt,
        grad_input=fmt,
        grad_weight=fmt,
        fprop=acc,
        dgrad=acc,
        wgrad=acc,
    )


@_named
def fp16_mixed() -> Recipe:
    """Every tensor in fp16, products summed in fp32 and rounded when written.

    Source: Micikevicius et al. 2018, "Mixed precision training", arXiv 1710.03740. Master weights
    and loss scaling are the trainer's.
    """
    return _mixed("fp16")


@_named
def bf16_mixed() -> Recipe:
    """Every tensor in bf16, products summed in fp32 and rounded when written.

    Source: Kalamkar et al. 2019, "A study of BFLOAT16 for deep learning training", arXiv
    1905.12322. Needs no loss scaling; master weights are the trainer's.
    """
    return _mixed("bf16")


@_named
def fp8_wang2018() -> Recipe:
    """FP8 operands (e5m2) in all three products, sums in e6m9 by chunks of 64.

    Source: Wang et al. 2018, "Training deep neural networks with 8-bit floating point numbers",
    arXiv 1812.08011. The trainer rounds weight updates stochastically to e6m9 and scales the loss;
    there the first and last layer keep 16-bit operands, here a mapping of recipes does that. e5m2
    and e6m9 follow IEEE rules (infinity, NaN, subnormals), sums and operands round to nearest even.
    """
    return _chunked_fp8(forward="e5m2", backward="e5m2")


@_named
def hfp8_sun2019() -> Recipe:
    """Hybrid FP8: forward operands with 4 exponent bits and bias + 4, gradients with 5.

    Source: Sun et al. 2019, "Hybrid 8-bit floating point (HFP8) training and inference for deep
    neural networks", NeurIPS. No exponent code is reserved; forward tensors saturate, gradients
    overflow to infinity for a loss scaler to see. Sums in e6m9 by chunks of 64. Differs: operands
    round to nearest even; the first and last layer are not kept apart.
    """
    return _chunked_fp8(forward="fp_4_3_4", backward="fp_5_2_0_backward")


def _chunked_fp8(forward: str, backward: str) -> Recipe:
    acc = Accumulator("e6m9", chunk=64)
    return Recipe(
        input=forward, weight=forward, grad_output=backward, fprop=acc, dgrad=acc, wgrad=acc
    )


@_named
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
    if inputs == "tf32":
        cut = "tf32:toward_zero"
        return Recipe(cut, cut, grad_output=cut, fprop=acc, dgrad=acc, wgrad=acc)
    forward = E5M2 if inputs == "e5m2" else E4M3FN
    if acc.operands == (forward, forward):
        # The gradient of the output, in e5m2, is the left factor of both gradients' products.
        gradients = replace(acc, operands=(E5M2, forward))
    else:
        gradients = acc
    saturating = f"{forward}_sat"
    return Recipe(
        input=saturating,
        weight=saturating,
        grad_output="e5m2_sat",
        fprop=acc,
        dgrad=gradients,
        wgrad=gradients,
    )


@_named
def v100_fp16() -> Recipe:
    """fp16_mixed on the tensor cores of a V100: every tensor in fp16, sums by its fp16 unit.

    Source: Micikevicius et al. 2018, arXiv 1710.03740, for the tensors; for the sums recordings of
    wmma on a V100, the accumulator "v100_fp16" (docs/tensor-cores.md). Not known: the order of k
    and split-K of cuBLAS and cuDNN, in whose place stands the contract's order; infinity, NaN and
    overflow inside a step, which were not recorded. Differs: a bias is one more addition in the
    unit's format and mode, toward zero, where libraries add it to nearest; its gradient is a sum of
    the unit too.
    """
    return _of_unit(UNITS["v100_fp16"])


@_named
def a100_bf16() -> Recipe:
    """bf16_mixed on the tensor cores of an A100: every tensor in bf16, sums by its bf16 unit.

    Source: Kalamkar et al. 2019, arXiv 1905.12322, for the tensors; for the sums recordings of wmma
    on an A100 and an A2, the accumulator "a100_bf16" (docs/tensor-cores.md), which Ada and L40S
    have too. Not known: as of v100_fp16, and the least exponent of a block, on which the models
    disagree. Differs: bias and its gradient as in v100_fp16.
    """
    return _of_unit(UNITS["a100_bf16"])


@_named
def h100_fp16() -> Recipe:
    """fp16_mixed on the tensor cores of an H100: every tensor in fp16, sums by its fp16 unit.

    Source: Micikevicius et al. 2018, arXiv 1710.03740, for the tensors; for the sums recordings of
    wmma on H100 and H200, the accumulator "h100_fp16" (docs/tensor-cores.md), which B200 has too.
    wgmma was not recorded. Not known, and differs: as v100_fp16.
    """
    return _of_unit(UNITS["h100_fp16"])


@_named
def h100_bf16() -> Recipe:
    """bf16_mixed on the tensor cores of an H100: every tensor in bf16, sums by its bf16 unit.

    Source: Kalamkar et al. 2019, arXiv 1905.12322, for the tensors; for the sums recordings of wmma
    on H100 and H200, the accumulator "h100_bf16" (docs/tensor-cores.md), which B200 has too. wgmma
    was not recorded. Not known, and differs: as a100_bf16.
    """
    return _of_unit(UNITS["h100_bf16"])


@_named
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
    return replace(_of_unit(UNITS["hopper_fp8"]), fprop=UNITS["h100_e4m3"].accumulator)


@_named
def hopper_fp8() -> Recipe:
    """FP8 of an H100 without fast accumulation: e4m3fn, e5m2 gradients, sums promoted every 128.

    Source: for the formats Micikevicius et al. 2022, arXiv 2209.05433; for promotion DeepSeek-AI
    2024, "DeepSeek-V3 technical report", arXiv 2412.19437, section 3.3, where it is the remedy for
    sums of about 14 bits. The accumulator "hopper_fp8" equals 374 live calls of torch._scaled_mm on
    an H100 PCIe (docs/tensor-cores.md); both gradients' has operands e5m2 times e4m3fn. Conversions
    saturate. Not known, and differs: as h100_fp8, but a bias is added in fp32.
    """
    return _of_unit(UNITS["hopper_fp8"])


@_named
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

"""Named recipes of scaled formats: MX, NVFP4, scaled FP8 and INT8, each with source and departures.

"k" in a format is the dimension that each product sums: a tensor that two products read has codes
of its own for each of them, made from the tensor itself.
"""

from dataclasses import replace
from typing import Any

from lpkernels.arithmetic import NATIVE, Accumulator, DelayedScaling, Recipe, accumulator
from lpkernels.recipes import _named, recipe


def _of_operands(
    fmt: str, acc: Accumulator | str = NATIVE, *, weight: str | None = None, **others: Any
) -> Recipe:
    """Input and gradient in one format, the weight in it or in its own, one accumulator."""
    operands = {"input": fmt, "weight": weight or fmt, "grad_output": fmt}
    return Recipe(**(operands | others), fprop=acc, dgrad=acc, wgrad=acc)


@_named
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


@_named
def mxfp8_ocp() -> Recipe:
    """MXFP8 of the specification: e4m3 in blocks of 32 along k, scales rounded down.

    Source: OCP Microscaling Formats v1.0, section 6.3, for the scale; microxcaling quantises every
    operand of the three products along its summed dimension as well. The largest element of many
    blocks saturates. Differs: as mxfp8; microxcaling may round other tensors to bf16 in between.
    """
    return _of_operands("block32_k_e4m3")


@_named
def mxfp6() -> Recipe:
    """MXFP6: e3m2 in blocks of 32 along k, scales rounded down.

    Source: as of mxfp8_ocp, with its departures. OCP has e2m3 as well: "block32_k_e2m3".
    """
    return _of_operands("block32_k_e3m2")


@_named
def mxfp4() -> Recipe:
    """MXFP4: e2m1 in blocks of 32 along k, scales rounded down, everything to nearest.

    Source: as of mxfp8_ocp, with its departures. A baseline, without what mxfp4_sr adds.
    """
    return _of_operands("block32_k_e2m1")


@_named
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


@_named
def nvfp4() -> Recipe:
    """NVFP4 alone: e2m1 in blocks of 16 along k with e4m3 scales and a scale of the tensor.

    A baseline for nvfp4_pretraining: no squares, no transform, everything to nearest.
    Source: NVIDIA 2025, arXiv 2509.25149, for the format. The accumulator "mx_fp32" multiplies
    codes and adds each block's sum times both scales. Differs: results are not rounded to bf16.
    """
    return _of_operands("block16_k_e2m1_se4m3fn_t", "mx_fp32")


@_named
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


@_named
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


@_named
def te_block() -> Recipe:
    """TransformerEngine's FP8 in blocks: as deepseek_v3 with scales that are powers of two.

    Source: TransformerEngine's Float8BlockScaling: E4M3 forward and backward, blocks of 1 x 128 of
    inputs and gradients, 128 x 128 of weights, powers of two by default, split accumulation in all
    products. Differs: the order of sums is that of TransformerEngine's reference for tests, and
    results are not rounded to bf16.
    """
    acc = replace(accumulator("deepseek_v3"), scale_order="left")
    return _of_operands("block128_k_e4m3_up_te", acc, weight="tile128x128_e4m3_up_te")


@_named
def te_current() -> Recipe:
    """TransformerEngine's FP8 with current scaling: one scale a tensor, of its own largest value.

    Source: TransformerEngine's Float8CurrentScaling: HYBRID is e4m3 forward and e5m2 gradients, one
    set of codes for all products; fprop accumulates fast, dgrad and wgrad do not, as in h100_fp8,
    whose sums these are. Differs: as h100_fp8, but there are scale factors.
    """
    sums, forward = recipe("h100_fp8"), "tensor_e4m3_te"
    return Recipe(
        forward,
        forward,
        grad_output="tensor_e5m2_te",
        fprop=sums.fprop,
        dgrad=sums.dgrad,
        wgrad=sums.wgrad,
    )


@_named
def te_delayed() -> Recipe:
    """TransformerEngine's FP8 with delayed scaling: as te_current with scales of earlier steps.

    Source: TransformerEngine's DelayedScaling, whose defaults are the largest value of the last
    1,024 steps, no margin and HYBRID. `lpkernels.nn.update_scales` is called after every backward
    pass; until the first call scales are 1, as there. Differs: as te_current.
    """
    return replace(te_current(), scaling=DelayedScaling())


@_named
def fp8_rowwise() -> Recipe:
    """torchao's FP8 by rows: e4m3 with one scale a row along k, a power of two.

    Source: torchao's float8 recipe "rowwise", gradients in e4m3 as well. Products are torch's own
    of the values. Differs: results are not rounded to bf16. Its recipe "rowwise_with_gw_hp" is this
    one with dgrad_weight="tensor_e4m3", wgrad_input="fp32" and wgrad_grad_output="fp32".
    """
    return _of_operands("row_k_e4m3_se8m0_up_torchao")


@_named
def int8_training() -> Recipe:
    """torchao's INT8 mixed precision: int8 with one scale a row along k, in all three products.

    Source: torchao's prototype quantized_training, which follows Wortsman et al. 2023
    ("SwitchBack", arXiv 2304.13013) and computes wgrad in INT8 too. Differs: sums of codes are
    float32's, exact up to 1,040 products of the largest codes, where int32 is exact to 133,144;
    everything is rounded to nearest.
    """
    return _of_operands("row_k_int8_torchao", "native_chunkscale")

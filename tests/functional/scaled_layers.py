"""Recipes of scaled formats, and the codes that their products read, made apart."""

from typing import Any

import torch

import lpkernels as lp
from lpkernels import ops
from lpkernels.arithmetic.by_product import along_axis
from lpkernels.functional import packed_activations
from lpkernels.rng import Role, derive_seed
from tests.support.autograd import SEED, how, signed

K = "block32_k_e4m3_up"
N, SQUARE = "block16_k_e2m1_se4m3fn_t_te", "tile16x16_k_e2m1_se4m3fn_t_te"
OPERANDS = ("input", "weight", "grad_output")
MXFP8 = lp.Recipe(**dict.fromkeys(OPERANDS, K))
PRETRAINING = lp.Recipe(
    input=N,
    weight=SQUARE,
    grad_output=f"{N}:stochastic",
    wgrad_input=f"{N}:rht16",
    wgrad_grad_output=f"{N}:stochastic:rht16",
)
SCALE = dict.fromkeys(("fprop", "dgrad", "wgrad"), "fp32_chunkscale")
# Every operand has a field, every product another quantizer.
APART = lp.Recipe(
    input="block8_k_e4m3_up:stochastic", weight="row_k_int8:stochastic", grad_output="e5m2",
    dgrad_weight="tile8x4_k_e2m1_up:stochastic", wgrad_input="fp32",
    wgrad_grad_output="block8_k_e4m3_ceil:stochastic",
)  # fmt: skip
RECIPES = {
    "mxfp8": MXFP8,
    "mxfp8 from codes": lp.Recipe(**dict.fromkeys(OPERANDS, K), requantize="codes"),
    "nvfp4 pretraining": PRETRAINING,
    "nvfp4 rows": lp.Recipe(
        input="block16_k_e2m1_se4m3fn_trow256_to4or6mae_te",
        weight="tile16x16_k_e2m1_se4m3fn_t256_to4or6mae_te",
        grad_output=f"{N}:stochastic", fprop="native",
    ),
    "tensors": lp.Recipe(
        input="tensor_e4m3", weight="tensor_e4m3:stochastic", grad_output="tensor_e5m2:stochastic"
    ),
    "deepseek": lp.Recipe(
        input="block128_k_e4m3_sfp32", weight="tile128x128_k_e4m3_sfp32",
        grad_output="block128_k_e4m3_sfp32",
    ),
    "apart": APART,
}  # fmt: skip


def made(x: torch.Tensor, recipe: lp.Recipe, field: str, along: int) -> torch.Tensor:
    """The values of the codes of a matrix for the product of a field, made by `lp.quantize`."""
    general = {"dgrad_weight": "weight", "wgrad_input": "input", "wgrad_grad_output": "grad_output"}
    own = getattr(recipe, field)
    its = getattr(recipe, general.get(field, field)) if own is None else own
    square = its.fmt == lp.parse_format(SQUARE) or "tensor" in str(its.fmt) or "128x" in str(its)
    role = Role[(general.get(field, field) if own is None and square else field).upper()]
    if field in general and recipe.requantize == "codes" and "grad" not in field[5:]:
        x = made(x, recipe, general[field], -1)
    fmt = its.fmt
    if its.hadamard is not None:
        x = ops.hadamard(x, its.hadamard, its.signs, along)
    if isinstance(fmt, lp.BlockFormat) and fmt.axis == "k":
        fmt = along_axis(fmt, along)
    quantizer = lp.Quantizer(fmt, its.rounding)
    return lp.quantize(x, quantizer, generator=signed(derive_seed(SEED, role)))


def gradients(
    call: Any,
    tensors: Any,
    recipe: lp.Recipe,
    g: torch.Tensor | None = None,
    packs: bool = True,
) -> list[torch.Tensor]:
    """The result of a call and the gradients of its tensors; g: the result's gradient."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    with packed_activations(packs):
        y = call(*leaves, recipe=recipe, **how())
    return [y.detach(), *torch.autograd.grad(y, leaves, top(y) if g is None else g)]


def top(y: torch.Tensor) -> torch.Tensor:
    """A gradient of y, the same for every y of one shape."""
    torch.manual_seed(9)
    return torch.randn_like(y)

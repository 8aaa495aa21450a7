"""Layers whose products read codes of their own: each product is one of codes made apart."""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic.by_product import along_axis
from lpkernels.functional import packed_activations
from tests.functional.scaled_layers import OPERANDS, RECIPES, SCALE, K, gradients, made
from tests.support.autograd import kept_bytes, same

F = lp.functional


# Named recipes without draws and transforms; torch sums their products here.
NATIVE = dict.fromkeys(("fprop", "dgrad", "wgrad"), "native")
NAMED = {
    name: lp.Recipe(**{**lp.recipe(name).to_dict(), **NATIVE})
    for name in (
        "mxfp8_ocp", "mxfp6", "mxfp4", "nvfp4", "deepseek_v3", "te_block", "te_current",
        "fp8_rowwise", "int8_training", "nvfp4_46_rl",
    )
}  # fmt: skip


def operands(rows: int = 32) -> tuple[list[torch.Tensor], torch.Tensor]:
    torch.manual_seed(3)
    x, w, b = torch.randn(rows // 8, 8, 32), torch.randn(48, 32), torch.randn(48)
    return [x, w, b], torch.randn(rows // 8, 8, 48) * torch.randn(rows // 8, 8, 1).exp()


@pytest.mark.parametrize("recipe", [*RECIPES.values(), *NAMED.values()], ids=[*RECIPES, *NAMED])
def test_every_product_is_one_of_codes_made_apart(recipe: lp.Recipe) -> None:
    (x, w, b), g = operands()
    rows, top = x.flatten(0, 1), g.flatten(0, 1)
    y = torch.nn.functional.linear(
        made(rows, recipe, "input", -1), made(w, recipe, "weight", -1), b
    )
    dx = made(top, recipe, "grad_output", -1) @ made(w, recipe, "dgrad_weight", -2)
    left = made(top, recipe, "wgrad_grad_output", -2)
    dw = left.t() @ made(rows, recipe, "wgrad_input", -2)
    # Where products share the codes of one tensor, so does the bias.
    db = (left if "tensor" in str(recipe.grad_output) else top).sum(0)
    want = [y.view(4, 8, 48), dx.view(4, 8, 32), dw, db]
    for packs in (True, False):
        same(gradients(F.linear, (x, w, b), recipe, g, packs), want, f"packs={packs}")


BY_SCALE = ("fp32_chunkscale", "e6m9_chunkscale:outer=fp32:scale_order=left")
# float32 holds no products of codes and float32's scales, which other sums would need.
PAIRS = [
    *itertools.product(("block16_k_e2m1_se4m3fn_t", K, "row_k_e4m3"), (*BY_SCALE, "e6m9")),
    ("block16_k_e2m1_se4m3fn_trow256_to4or6mae_te", "fp32_chunkscale"),
    ("block16_k_e2m1_se4m3fn_trow", "e6m9"),
    *itertools.product(("block8_k_e4m3_sfp32",), BY_SCALE),
]


@pytest.mark.parametrize("fmt, acc", PAIRS)
def test_sums_by_scale_are_those_of_matmul(fmt: str, acc: str) -> None:
    (x, w, b), g = operands()
    rows, top = x.flatten(0, 1), g.flatten(0, 1)
    recipe = lp.Recipe(
        **dict.fromkeys(OPERANDS, fmt), **dict.fromkeys(("fprop", "dgrad", "wgrad"), acc)
    )
    block = recipe.input.fmt

    def scaled(t: torch.Tensor, along: int) -> lp.Scaled:
        return lp.scaled(t, lp.Quantizer(along_axis(block, along)))

    def turned(t: lp.Scaled, along: int) -> lp.Scaled:
        assert t.mT.fmt == along_axis(block, along)
        return t.mT

    y = lp.matmul(scaled(rows, -1), turned(scaled(w, -1), -2), acc)
    y = lp.quantize(y.double() + b.double(), recipe.fprop.outermost).float()
    dx = lp.matmul(scaled(top, -1), scaled(w, -2), acc)
    dw = lp.matmul(turned(scaled(top, -2), -1), scaled(rows, -2), acc)
    want = [y.view(4, 8, 48), dx.view(4, 8, 32), dw]
    for packs in (True, False):
        same(gradients(F.linear, (x, w, b), recipe, g, packs)[:3], want, f"packs={packs}")


def kept_bits(call: Callable[[], torch.Tensor], values: int, *excluded: torch.Tensor) -> float:
    """The bits that a call keeps for backward, by value of its input."""
    with kept_bytes(*excluded) as found:
        call()
    return sum(found.values()) * 8 / values


@pytest.mark.parametrize("name, sums, bits", [
    ("mxfp8", {}, 8.25), ("mxfp8", SCALE, 8.25), ("mxfp8 from codes", {}, 8.25),
    ("nvfp4 pretraining", {}, 4.5), ("tensors", {}, 8), ("deepseek", {}, 8.25),
    ("deepseek", SCALE, 8.25), ("apart", {}, 32),
])  # fmt: skip
def test_bits_kept_for_backward_are_those_of_the_format(
    name: str, sums: dict[str, str], bits: float
) -> None:
    x, w = torch.randn(256, 512), torch.randn(128, 512, requires_grad=True)
    recipe = lp.Recipe(**{**RECIPES[name].to_dict(), **sums})
    assert bits <= kept_bits(lambda: F.linear(x * 1, w, recipe=recipe), x.numel(), w) <= 1.02 * bits


@pytest.mark.parametrize("name, sums, bits", [
    ("mxfp8", {}, 8.25), ("mxfp8 from codes", SCALE, 8.25), ("nvfp4 pretraining", {}, 4.5),
    ("apart", {}, 32),
])  # fmt: skip
def test_recurrent_layers_keep_the_codes_that_wgrad_reads(
    name: str, sums: dict[str, str], bits: float
) -> None:
    torch.manual_seed(6)
    recipe = lp.Recipe(**{**RECIPES[name].to_dict(), **sums})
    layer, x = lp.nn.LSTM(32, 48, proj_size=32, recipe=recipe), torch.randn(4, 32, 32)
    weights, results, sizes = list(layer.parameters()), [], []

    def call(packs: bool) -> torch.Tensor:
        torch.manual_seed(7)
        with packed_activations(packs):
            return layer(x)[0]

    for packs in (True, False):
        run = partial(call, packs)
        sizes.append(kept_bits(run, 4 * 32 * (32 + 32 + 48), x, *weights))
        y = run()
        results.append(torch.autograd.grad(y, weights, torch.ones_like(y)))
    same(*results)
    # The operands of wgrad: the input and the state, 32 wide, and what is projected, 48.
    assert 32 - 1.02 * bits <= sizes[1] - sizes[0] <= 32 - bits, sizes

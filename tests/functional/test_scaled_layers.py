"""Layers whose products read codes of their own: each product is one of codes made apart."""

from collections.abc import Callable
from typing import Any

import torch

import lpkernels as lp
from lpkernels.arithmetic.by_product import along_axis
from lpkernels.functional import packed_activations
from tests.functional.scaled_layers import OPERANDS, RECIPES, SCALE, K, gradients, made
from tests.support.autograd import kept_bytes, same

F = lp.functional


def operands(rows: int = 32) -> tuple[list[torch.Tensor], torch.Tensor]:
    torch.manual_seed(3)
    x, w, b = torch.randn(rows // 8, 8, 32), torch.randn(48, 32), torch.randn(48)
    return [x, w, b], torch.randn(rows // 8, 8, 48) * torch.randn(rows // 8, 8, 1).exp()


def test_every_product_is_one_of_codes_made_apart() -> None:
    (x, w, b), g = operands()
    rows, top = x.flatten(0, 1), g.flatten(0, 1)
    for name, recipe in RECIPES.items():
        y = torch.nn.functional.linear(
            made(rows, recipe, "input", -1), made(w, recipe, "weight", -1), b
        )
        dx = made(top, recipe, "grad_output", -1) @ made(w, recipe, "dgrad_weight", -2)
        left = made(top, recipe, "wgrad_grad_output", -2)
        dw = left.t() @ made(rows, recipe, "wgrad_input", -2)
        # Where products share the codes of one tensor, so does the bias.
        db = (left if name == "tensors" else top).sum(0)
        want = [y.view(4, 8, 48), dx.view(4, 8, 32), dw, db]
        for packs in (True, False):
            same(gradients(F.linear, (x, w, b), recipe, g, packs), want, name)


def test_sums_by_scale_are_those_of_matmul() -> None:
    (x, w, b), g = operands()
    rows, top = x.flatten(0, 1), g.flatten(0, 1)

    def scaled(t: torch.Tensor, quantizer: Any, along: int) -> lp.Scaled:
        return lp.scaled(t, lp.Quantizer(along_axis(quantizer.fmt, along)))

    def turned(t: lp.Scaled, fmt: Any) -> lp.Scaled:
        return lp.Scaled(t.values.mT, t.scale.mT, t.tensor_scale, along_axis(fmt, -1))

    for its in ("block16_k_e2m1_se4m3fn_t", K, "block8_k_e4m3_sfp32", "row_k_e4m3"):
        for acc in ("fp32_chunkscale", "e6m9_chunkscale:outer=fp32:scale_order=left", "e6m9"):
            if acc == "e6m9" and its.endswith("8_k_e4m3_sfp32"):
                continue
            sums = dict.fromkeys(("fprop", "dgrad", "wgrad"), acc)
            recipe = lp.Recipe(**dict.fromkeys(OPERANDS, its), **sums)
            q = recipe.input
            weight = scaled(w, q, -1)
            right = lp.Scaled(
                weight.values.mT, weight.scale.mT, weight.tensor_scale, along_axis(q.fmt, -2)
            )
            y = lp.matmul(scaled(rows, q, -1), right, acc)
            outermost = recipe.fprop.outermost
            y = lp.quantize(y.double() + b.double(), outermost).float()
            dx = lp.matmul(scaled(top, q, -1), scaled(w, q, -2), acc)
            dw = lp.matmul(turned(scaled(top, q, -2), q.fmt), scaled(rows, q, -2), acc)
            want = [y.view(4, 8, 48), dx.view(4, 8, 32), dw]
            for packs in (True, False):
                same(gradients(F.linear, (x, w, b), recipe, g, packs)[:3], want, f"{its} in {acc}")


def kept_bits(call: Callable[[], torch.Tensor], values: int, *excluded: torch.Tensor) -> float:
    """The bits that a call keeps for backward, by value of its input."""
    with kept_bytes(*excluded) as found:
        call()
    return sum(found.values()) * 8 / values


def test_bits_kept_for_backward_are_those_of_the_format() -> None:
    x, w = torch.randn(256, 512), torch.randn(128, 512, requires_grad=True)
    cases = (
        ("mxfp8", 8.25), ("mxfp8 from codes", 8.25), ("nvfp4 pretraining", 4.5), ("tensors", 8),
        ("deepseek", 8.25), ("apart", 32),
    )  # fmt: skip
    for name, bits in cases:
        recipe = RECIPES[name]
        for sums in ({}, SCALE) if name in ("mxfp8", "deepseek") else ({},):
            recipe = lp.Recipe(**{**recipe.to_dict(), **sums})
            got = kept_bits(lambda r=recipe: F.linear(x * 1, w, recipe=r), x.numel(), w)
            assert bits <= got <= 1.02 * bits, (name, got)


def test_recurrent_layers_keep_the_codes_that_wgrad_reads() -> None:
    torch.manual_seed(6)
    codes = lp.Recipe(**{**RECIPES["mxfp8 from codes"].to_dict(), **SCALE})
    cases = ((RECIPES["mxfp8"], 8.25), (codes, 8.25), (RECIPES["nvfp4 pretraining"], 4.5))
    for recipe, bits in (*cases, (RECIPES["apart"], 32)):
        layer, x = lp.nn.LSTM(32, 48, proj_size=32, recipe=recipe), torch.randn(4, 32, 32)
        weights, found, sizes = list(layer.parameters()), [], []
        for packs in (True, False):

            def call(layer: Any = layer, x: torch.Tensor = x, packs: bool = packs) -> torch.Tensor:
                torch.manual_seed(7)
                with packed_activations(packs):
                    return layer(x)[0]

            sizes.append(kept_bits(call, 4 * 32 * (32 + 32 + 48), x, *weights))
            y = call()
            found.append(torch.autograd.grad(y, weights, torch.ones_like(y)))
        same(*found, str(recipe))
        # The operands of wgrad: the input and the state, 32 wide, and what is projected, 48.
        assert 32 - 1.02 * bits <= sizes[1] - sizes[0] <= 32 - bits, (recipe, sizes)


def test_compiled_graphs_give_the_same_bits() -> None:
    tensors, g = operands()
    for name, sums in (("nvfp4 pretraining", {}), ("mxfp8 from codes", SCALE)):
        recipe = lp.Recipe(**{**RECIPES[name].to_dict(), **sums})
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda *t, **k: F.linear(*t, **k), fullgraph=True, backend="aot_eager"
        )
        want = gradients(F.linear, tensors, recipe, g)
        same(gradients(compiled, tensors, recipe, g), want, name)

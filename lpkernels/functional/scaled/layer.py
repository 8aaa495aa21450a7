"""A layer whose products read codes that are made for them (`Recipe.by_product`).

    forward     y = output(fprop(x, w) + bias(b))
    backward    dx = grad_input(dgrad(g, w));  dw = grad_weight(wgrad(g, x))
                db = sum of g * 1, in the accumulator and the order of wgrad

`operands` says how a product takes x, w and g. For backward a layer keeps the codes of x that wgrad
reads, and of a second activation those that dgrad reads; a weight is kept itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic import Recipe
from lpkernels.arithmetic.by_product import Taken
from lpkernels.functional._saved import Saved, packs
from lpkernels.functional.layer import Geometry, bias_gradient, quantized
from lpkernels.functional.recording import first_order, is_recorded
from lpkernels.functional.running import Scales
from lpkernels.functional.scaled.operands import (
    KEEPS,
    Call,
    Kept,
    Made,
    Side,
    check,
    kept,
    lies_on_matrix,
    output_shape,
)
from lpkernels.functional.scaled.products import Operand
from lpkernels.functional.storing import new_product
from lpkernels.ops import matmul_of
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role


def _forward(
    layer: Call, x: Tensor, w: Tensor, b: Tensor | None, made: tuple[Made, Made]
) -> Tensor:
    recipe, geometry = layer.recipe, layer.geometry
    if b is not None and recipe.bias is not None:
        b = quantized(b, recipe.bias, layer.seed, Role.BIAS, SITE_QUANTIZE, layer.backend)
    sides = [
        Side(t, layer.taken(field), known)
        for t, field, known in zip((x, w), ("input", "weight"), made, strict=True)
    ]
    pair = layer.pair("fprop", sides[0], sides[1], output_shape(x, w))
    how = layer.sum("fprop", pair)
    left, right = (each.values for each in pair)
    if left.dim() == x.dim():
        y = geometry.fprop(left, right, b, how)
    else:
        # The product is one of rows; a bias of more dimensions joins the sums in their shape.
        late = geometry.two_activations and b is not None
        y = geometry.fprop(left, right, None if late else b, how)
        # A view made inside a Function could not be changed in place by the layer that follows.
        y = torch.ops.aten._unsafe_view(y, list(output_shape(x, w)))
        if late and b is not None:
            y = y + b if how.acc.is_native else how.add_bias(y, b, -1)
    if not geometry.final:
        return y
    return quantized(y, recipe.output, layer.seed, Role.OUTPUT, SITE_OUTPUT, layer.backend)


def layer_by_product(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    recipe: Recipe,
    geometry: Geometry,
    seed: Tensor | None,
    backend: str,
    scales: Scales | None = None,
) -> Tensor:
    """`functional.layer.emulated_layer` of a recipe with operands by product."""
    layer = Call(recipe, geometry, seed, backend, scales)
    check(layer, x, w)
    if is_recorded(x, w, b):
        return _LayerByProduct.apply(x, w, b, *layer)
    new_product()
    return _forward(layer, x, w, b, ({}, {}))


class _LayerByProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        recipe: Recipe,
        geometry: Geometry,
        seed: Tensor | None,
        backend: str,
        scales: Scales | None,
    ) -> Tensor:
        ctx.sees = new_product()
        layer = Call(recipe, geometry, seed, backend, scales)
        needs_x, needs_w = ctx.needs_input_grad[:2]
        keeps_w = needs_x and geometry.two_activations
        made_x: Made = {}
        made_w: Made = {}
        # Codes that backward keeps too are made once.
        made_x[KEEPS] = needs_w and not layer.taken("wgrad_input").made and packs(x)
        made_w[KEEPS] = keeps_w and not layer.taken("dgrad_weight").made and packs(w)
        y = _forward(layer, x, w, b, (made_x, made_w))
        _release(made_x, layer.taken("wgrad_input"))
        _release(made_w, layer.taken("dgrad_weight"))
        left = right = None
        if needs_w:
            left = kept(layer, "wgrad", "wgrad_input", x, (y.shape, w.shape), made_x)
        if keeps_w:
            right = kept(layer, "dgrad", "dgrad_weight", w, (y.shape, x.shape), made_w)
        elif needs_x:
            right = Kept(Saved(w))
        ctx.save_for_backward(left and left.saved.tensor, right and right.saved.tensor, seed)
        ctx.left = left and (left.saved[1:], *left[1:])
        ctx.right = right and (right.saved[1:], *right[1:])
        ctx.recipe, ctx.geometry, ctx.backend = recipe, geometry, backend
        ctx.scales = None if scales is None else scales.of_backward()
        ctx.shapes = x.shape, w.shape, None if b is None else b.shape
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        left, right, seed = ctx.saved_tensors
        layer = Call(ctx.recipe, ctx.geometry, seed, ctx.backend, ctx.scales)
        if layer.scales is not None and layer.scales.after_backward is not None:
            layer.scales.after_backward()
        made: Made = {}
        shapes = ctx.shapes
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            kept = Kept(Saved(right, *ctx.right[0]), *ctx.right[1:])
            dx = _dgrad(layer, grad_output, made, kept, shapes)
            _release(made, layer.taken("wgrad_grad_output"))
        if ctx.needs_input_grad[1]:
            kept = Kept(Saved(left, *ctx.left[0]), *ctx.left[1:])
            dw = _wgrad(layer, grad_output, made, kept, shapes)
        if ctx.needs_input_grad[2]:
            db = _bias_gradient(layer, grad_output, made, shapes[2])
        return dx, dw, db, None, None, None, None, None


def _release(made: Made, taken: Taken) -> None:
    """Frees what was made of a tensor for one product where the next has codes of its own, so that
    they lie in the same memory: pages that are new to the process cost more than their rounding."""
    if taken.made and not taken.from_codes:
        made.clear()


_Shapes = tuple[torch.Size, torch.Size, torch.Size | None]


def _dgrad(layer: Call, g: Tensor, made: Made, kept: Kept, shapes: _Shapes) -> Tensor:
    x_shape, w_shape, _ = shapes
    left = Side(g, layer.taken("grad_output"), made)
    right = kept.side(layer, "dgrad_weight", w_shape, layer.acc("dgrad"))
    pair = layer.pair("dgrad", left, right, x_shape)
    how, (left_values, right_values) = layer.sum("dgrad", pair), (each.values for each in pair)
    if layer.geometry.matmuls:
        dx = layer.geometry.shaped(how.of(matmul_of(left_values, right_values)), x_shape)
    else:
        dx = layer.geometry.dgrad(left_values, right_values, x_shape, how)
    last = (layer.seed, Role.GRAD_INPUT, SITE_QUANTIZE, layer.backend)
    return quantized(dx, layer.recipe.grad_input, *last)


def _wgrad(layer: Call, g: Tensor, made: Made, kept: Kept, shapes: _Shapes) -> Tensor:
    x_shape, w_shape, _ = shapes
    left = Side(g, layer.taken("wgrad_grad_output"), made)
    right = kept.side(layer, "wgrad_input", x_shape, layer.acc("wgrad"))
    pair = layer.pair("wgrad", left, right, w_shape)
    how, (left_values, right_values) = layer.sum("wgrad", pair), (each.values for each in pair)
    if layer.geometry.matmuls:
        dw = layer.geometry.shaped(how.of(matmul_of(left_values.mT, right_values)), w_shape)
    else:
        # A geometry's wgrad takes x first.
        dw = layer.geometry.wgrad(right_values, left_values, w_shape, how.swapped())
    last = (layer.seed, Role.GRAD_WEIGHT, SITE_QUANTIZE, layer.backend)
    return quantized(dw, layer.recipe.grad_weight, *last)


def _bias_gradient(layer: Call, g: Tensor, made: Made, shape: torch.Size) -> Tensor:
    """The sum of the output gradient: of g itself where products have codes of their own."""
    taken, acc = layer.taken("wgrad_grad_output"), layer.acc("wgrad")
    known = Operand(g)
    if not layer.is_bias_plain:
        if lies_on_matrix(taken, acc):
            known = Operand(layer.values(g, taken, made))
        else:
            known = layer.made_of(Side(g, taken, made), acc)
    rows = layer.geometry.rows(known.values, shape)
    scales = None if acc.is_native else (Operand(rows), known._replace(values=rows))
    last = (acc, layer.seed, layer.backend, scales)
    return bias_gradient(rows, (), *last).reshape(shape)

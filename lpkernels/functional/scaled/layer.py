"""A layer whose products read codes of their own (`Recipe.by_product`).

    forward     y = output(fprop(x, w) + bias(b))
    backward    dx = grad_input(dgrad(g, w));  dw = grad_weight(wgrad(g, x))
                db = sum of g * 1, in the accumulator and the order of wgrad

`operands` says how a product reads x, w and g. For backward a layer keeps the codes of x that wgrad
reads, and of a second activation those that dgrad reads; a weight is kept itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic import Recipe
from lpkernels.functional._saved import Saved, packs
from lpkernels.functional.layer import Call, Geometry, bias_gradient
from lpkernels.functional.recording import first_order, is_recorded
from lpkernels.functional.running import Scales
from lpkernels.functional.scaled.operands import (
    Kept,
    Products,
    Source,
    check,
    kept,
    output_shape,
)
from lpkernels.functional.scaled.products import Operand
from lpkernels.functional.storing import new_product, seeing
from lpkernels.ops import DIRECT, DISPATCHED, matmul_of, operators_for


def _forward(layer: Products, x: Source, w: Source, b: Tensor | None) -> Tensor:
    call, geometry = layer.call, layer.geometry
    if b is not None and call.recipe.bias is not None:
        b = call.rounded(b, "bias")
    shape = output_shape(x.tensor, w.tensor)
    left, right = layer.pair("fprop", x, w, shape)
    how = call.sum("fprop", (left, right))
    if left.values.dim() == x.tensor.dim():
        y = geometry.fprop(left.values, right.values, b, how)
    else:
        # The product is one of rows; a bias of more dimensions joins the sums in their shape.
        late = b if geometry.two_activations else None
        y = geometry.fprop(left.values, right.values, b if late is None else None, how)
        # A view made inside a Function could not be changed in place by the layer that follows.
        y = torch.ops.aten._unsafe_view(y, list(shape))
        if late is not None:
            y = y + late if how.acc.is_native else how.add_bias(y, late, -1)
    return call.rounded(y, "output") if geometry.final and call.recipe.output is not None else y


def layer_by_product(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    recipe: Recipe,
    geometry: Geometry,
    seed: Tensor | None,
    backend: str,
    scales: Scales | None,
    direct: bool,
) -> Tensor:
    """`functional.layer.emulated_layer` of a recipe with operands by product."""
    if recipe.by_product is not None and recipe.by_product.depends_on_shapes:
        check(Products(geometry, Call(recipe, seed, backend)), x, w)
    if is_recorded(x, w, b):
        return _LayerByProduct.apply(x, w, b, recipe, geometry, seed, backend, scales, direct)
    call = Call(recipe, seed, backend, DIRECT if direct else DISPATCHED, new_product(), scales)
    return _forward(Products(geometry, call), Source(x), Source(w), b)


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
        direct: bool,
    ) -> Tensor:
        ctx.sees = sees = new_product()
        call = Call(recipe, seed, backend, DIRECT if direct else DISPATCHED, sees, scales)
        layer = Products(geometry, call)
        needs_x, needs_w, *_ = ctx.needs_input_grad
        keeps_w = needs_x and geometry.two_activations
        (_, of_dgrad), (_, of_wgrad) = layer.readings("dgrad"), layer.readings("wgrad")
        # Codes that backward keeps too are made once.
        left = Source(x, keeps=needs_w and not of_wgrad.own and packs(x))
        right = Source(w, keeps=keeps_w and not of_dgrad.own and packs(w))
        y = _forward(layer, left, right, b)
        left.release(of_wgrad)
        right.release(of_dgrad)
        kept_x = kept_w = None
        if needs_w:
            kept_x = kept(layer, "wgrad", "wgrad_input", left, (y.shape, w.shape))
        if keeps_w:
            kept_w = kept(layer, "dgrad", "dgrad_weight", right, (y.shape, x.shape))
        elif needs_x:
            kept_w = Kept(Saved(w))
        ctx.save_for_backward(kept_x and kept_x.saved.tensor, kept_w and kept_w.saved.tensor, seed)
        ctx.left = kept_x and (kept_x.saved[1:], *kept_x[1:])
        ctx.right = kept_w and (kept_w.saved[1:], *kept_w[1:])
        ctx.recipe, ctx.geometry, ctx.backend = recipe, geometry, backend
        ctx.scales = None if scales is None else scales.of_backward()
        ctx.shapes = x.shape, w.shape, None if b is None else b.shape
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        left, right, seed = ctx.saved_tensors
        run = operators_for(grad_output, left, right, seed)
        call = Call(ctx.recipe, seed, ctx.backend, run, seeing(), ctx.scales)
        layer = Products(ctx.geometry, call)
        if ctx.scales is not None and ctx.scales.after_backward is not None:
            ctx.scales.after_backward()
        x_shape, w_shape, b_shape = ctx.shapes
        needs_x, needs_w, needs_b, *_ = ctx.needs_input_grad
        g = Source(grad_output)
        dx = dw = db = None
        if needs_x:
            kept_w = Kept(Saved(right, *ctx.right[0]), *ctx.right[1:])
            dx = _dgrad(layer, g, kept_w, x_shape, w_shape)
            g.release(layer.reading("wgrad_grad_output"))
        if needs_w:
            kept_x = Kept(Saved(left, *ctx.left[0]), *ctx.left[1:])
            dw = _wgrad(layer, g, kept_x, x_shape, w_shape)
        if needs_b:
            db = _bias_gradient(layer, g, b_shape)
        return dx, dw, db, None, None, None, None, None, None


def _dgrad(
    layer: Products, g: Source, kept_w: Kept, x_shape: torch.Size, w_shape: torch.Size
) -> Tensor:
    right = kept_w.source(layer, "dgrad_weight", w_shape)
    pair = layer.pair("dgrad", g, right, x_shape)
    how, geometry = layer.call.sum("dgrad", pair), layer.geometry
    if geometry.matmuls:
        product = matmul_of(pair[0].values, pair[1].values)
        dx = geometry.shaped(how.of(product), x_shape)
    else:
        dx = geometry.dgrad(pair[0].values, pair[1].values, x_shape, how)
    return dx if layer.call.recipe.grad_input is None else layer.call.rounded(dx, "grad_input")


def _wgrad(
    layer: Products, g: Source, kept_x: Kept, x_shape: torch.Size, w_shape: torch.Size
) -> Tensor:
    right = kept_x.source(layer, "wgrad_input", x_shape)
    pair = layer.pair("wgrad", g, right, w_shape)
    how, geometry = layer.call.sum("wgrad", pair), layer.geometry
    if geometry.matmuls:
        product = matmul_of(pair[0].values.mT, pair[1].values)
        dw = geometry.shaped(how.of(product), w_shape)
    else:
        # A geometry's wgrad takes x first.
        dw = geometry.wgrad(pair[1].values, pair[0].values, w_shape, how.swapped())
    return dw if layer.call.recipe.grad_weight is None else layer.call.rounded(dw, "grad_weight")


def _bias_gradient(layer: Products, g: Source, shape: torch.Size) -> Tensor:
    """The sum of the output gradient: of g itself where products have codes of their own."""
    reading = layer.reading("wgrad_grad_output")
    operand = Operand(g.tensor)
    if not layer.is_bias_plain:
        if reading.on_matrix:
            values = layer.values(g, reading, g.tensor, reading.key, reading.ints)
            operand = Operand(values)
        else:
            operand = layer.operand(g, reading)
    rows = layer.geometry.rows(operand.values, shape)
    scales = (Operand(rows), operand._replace(values=rows))
    return bias_gradient(layer.call, rows, (), scales).reshape(shape)

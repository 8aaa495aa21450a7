"""Second derivatives: the gradients of a layer as a Function of their own.

The first order is y = x w^T, dx = g wq and dw = g^T xq, where g is the gradient of y. Let v be the
incoming gradient of dx and u that of dw. In the products of the second order v stands where x
stood, and u where w stood:

    dx = g wq       g gets v wq^T, over the sum of fprop;   w gets g^T v, over that of wgrad
    dw = g^T xq     g gets xq u^T, over the sum of fprop;   x gets g u, over that of dgrad

A product of the second order is rounded as the product of the first order that sums over the same
dimension. So the products of v are fprop and wgrad of a layer with a recipe of their own, and those
of u are fprop and dgrad of another one (`_recipes`). docs/contract.md, "Second derivatives", has
the rule.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Accumulator, FixedAxisWarning, Quantizer, Recipe
from lpkernels.arithmetic.by_product import Reading, has_axis
from lpkernels.arithmetic.hadamard import TE, signs_of
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.formats import FP32, BlockFormat
from lpkernels.functional.call import Call
from lpkernels.functional.layer import Geometry, Layer, Residual
from lpkernels.functional.matmul import gradient_of_left, gradient_of_right
from lpkernels.functional.operands import Operand, Source
from lpkernels.functional.recording import first_order
from lpkernels.functional.seeds import derived_seed
from lpkernels.functional.transforms import Context, formula_of, record
from lpkernels.ops import How, Ints, Parts, matmul_of, multiply, operators_for
from lpkernels.rng import SECOND_OF_DW, SECOND_OF_DX, Role

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def recorded(ctx: Any, g: Tensor | None) -> tuple[Tensor | None, ...]:
    """What backward of a Function returns for the gradient of its first result, recorded for second
    derivatives: at most three tensors, the gradients of x, of w and of a bias, then None."""
    saved = ctx.saved_tensors
    x, w = (_place(ctx, i, saved) for i in (0, 1))
    function = _Gradients if formula_of(ctx) else _RoundedGradient
    grads = record(function, g, x, w, Context.of(ctx), *saved)
    return *grads, *[None] * (len(ctx.needs_input_grad) - len(grads))


def _place(ctx: Any, i: int, saved: Sequence[Tensor | None]) -> Tensor | None:
    """The tensor at which gradients reach input i of a Function: the one that forward residual
    (`layer.keep_places`), the leaf of autograd's graph that the input is, or the saved input."""
    places: dict[int, Tensor | None] = getattr(ctx, "places", {})
    if i in places or isinstance(ctx, Context):
        return places.get(i)
    if not ctx.needs_input_grad[i]:
        return None
    node, number = ctx.next_functions[i]
    if node is None or hasattr(node, "variable"):
        return getattr(node, "variable", None)
    results = (x for x in saved if x is not None and x.grad_fn is node and x.output_nr == number)
    return next(results, None)


class _Gradients(torch.autograd.Function):
    """The backward pass of another Function, whose derivative a formula gives.

    x, w: at which the gradients of the gradients reach that Function's first two inputs. first: its
    context, and saved: the tensors in it.
    """

    is_second_order = True

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        x: Tensor | None,
        w: Tensor | None,
        first: Context,
        *saved: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(g, *saved)
        ctx.set_materialize_grads(False)
        ctx.first = first
        scales = getattr(first, "scales", None)
        if scales is not None:
            ctx.first = Context.of(first)
            ctx.first.scales = scales.again()
        grads = first.holding(saved).gradients(g)[:3]
        # torch.func saves no argument that is a result too.
        return tuple(x.view_as(x) if x is g else x for x in grads)

    @staticmethod
    @first_order
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        g, *saved = ctx.saved_tensors
        module, name = (formula_of(ctx.first) or "").split(".")
        formula = getattr(import_module(f"lpkernels.functional.{module}"), name)
        needs = ctx.needs_input_grad
        grads: Gradients = formula(ctx.first.holding(saved), g, incoming, needs)
        results = [x if need else None for x, need in zip(grads, needs, strict=False)]
        return *results, None, *[None] * len(saved)


class _RoundedGradient(_Gradients):
    """A gradient that a function without products rounds, straight-through."""

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        return incoming[0], *[None] * (len(ctx.needs_input_grad) - 1)


def of_layer(first: Any, g: Tensor, incoming: Sequence[Any], needs: Sequence[bool]) -> Gradients:
    """The gradients of g, x and w from those of dx, dw and db, of a layer with products.

    first: the context of the first order. needs: which of the three are asked for."""
    v, u, t = incoming
    x, w, seed = first.saved_tensors
    recipe, geometry = first.recipe, first.geometry
    run = operators_for(g, x, w, v, u, seed)
    call = Call(recipe, seed, first.backend, run, None, first.scales)
    of_x = None if x is None else Residual(x, *first.x)
    of_w = None if w is None else Residual(w, *first.w)
    operands = _First(Layer(geometry, call), g, of_x, of_w, first.shapes)
    needs_g, needs_x, needs_w, *_ = needs
    with_v, with_u = _recipes(recipe)
    of_g: list[Tensor] = []
    dx = dw = None
    if v is not None:
        layer = _layer(call, geometry, with_v, SECOND_OF_DX)
        in_place_of_x = Source(v, {}, {})
        if needs_g:
            of_g.append(layer.forward(in_place_of_x, operands.w(layer), None))
        if needs_w:
            dw = layer.gradient("wgrad", operands.g(layer, "wgrad"), in_place_of_x, first.shapes[1])
    if u is not None:
        layer = _layer(call, geometry, with_u, SECOND_OF_DW)
        in_place_of_w = Source(u, {}, {})
        if needs_g:
            of_g.append(layer.forward(operands.x(layer), in_place_of_w, None))
        if needs_x:
            dx = layer.gradient("dgrad", operands.g(layer, "dgrad"), in_place_of_w, first.shapes[0])
    if t is not None and needs_g:
        of_g.append(t if geometry.matmuls else t.reshape(-1, *[1] * (g.dim() - 2)))
    return _sum(of_g, g.shape), dx, dw


def _layer(call: Call, geometry: Geometry, recipe: Recipe, key: int) -> Layer:
    """The layer whose products are those with v or with u."""
    seed = None if call.seed is None else derived_seed(call.seed, key)
    return Layer(geometry, Call(recipe, seed, call.backend, call.run))


def of_matmul(first: Any, g: Tensor, incoming: Sequence[Any], needs: Sequence[bool]) -> Gradients:
    """The gradients of g, a and b from those of da, db and dinitial, of `lpkernels.matmul`."""
    v, u, t = incoming
    a, b, seed = first.saved_tensors
    (shape_a, shape_b), acc, backend = first.shapes, first.acc, first.backend
    of_v, of_u = (
        None if seed is None else derived_seed(seed, key) for key in (SECOND_OF_DX, SECOND_OF_DW)
    )
    of_g: list[Tensor] = []
    grad_a = grad_b = None
    if v is not None:
        if needs[0]:
            how = How(acc, of_v, Role.DIRECT)
            of_g.append(multiply(matmul_of(v.float(), b.float()), how, backend))
        if needs[2]:
            grad_b = gradient_of_right(g, v, shape_b, acc, of_v, backend).to(first.dtypes[1])
    if u is not None:
        if needs[0]:
            how = How(acc, of_u, Role.DIRECT)
            of_g.append(multiply(matmul_of(a.float(), u.float()), how, backend))
        if needs[1]:
            grad_a = gradient_of_left(g, u, shape_a, acc, of_u, backend).to(first.dtypes[0])
    if t is not None and needs[0]:
        of_g.append(t)
    return _sum(of_g, g.shape), grad_a, grad_b


def _sum(parts: list[Tensor], shape: torch.Size) -> Tensor | None:
    """The float32 sum of the parts, from the first to the last; None without any."""
    if not parts:
        return None
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total if total.shape == shape else total.expand(shape)


class _First(NamedTuple):
    """The operands of a layer's gradients, as products of the first order read them."""

    layer: Layer
    grad_output: Tensor
    x_residual: Residual | None
    w_residual: Residual | None
    shapes: tuple[torch.Size, torch.Size, torch.Size | None]

    def w(self, layer: Layer) -> Source:
        """The weight that dgrad read, for fprop."""
        x, w, _ = self.shapes
        return self._saved(self.w_residual, "dgrad", w, x, layer, 1)

    def x(self, layer: Layer) -> Source:
        """The input that wgrad read, for fprop."""
        x, w, _ = self.shapes
        return self._saved(self.x_residual, "wgrad", x, w, layer, 0)

    def _saved(
        self,
        residual: Residual | None,
        product: str,
        shape: torch.Size,
        result: torch.Size,
        layer: Layer,
        side: int,
    ) -> Source:
        """A tensor of this shape that a product of the first order read, for fprop."""
        assert residual is not None
        tensors = (self.grad_output, residual.source(self.layer, product, shape).tensor)
        operand = _operand(self.layer, product, 1, tensors, result, residual)
        return self._in_place(operand, shape, layer, "fprop", side)

    def g(self, layer: Layer, product: str) -> Source:
        """The output gradient for wgrad, as dgrad read it, or for dgrad, as wgrad read it."""
        x, w, _ = self.shapes
        first, other, result = ("dgrad", w, x) if product == "wgrad" else ("wgrad", x, w)
        tensors = (self.grad_output, self.grad_output.new_empty(()).expand(other))
        operand = _operand(self.layer, first, 0, tensors, result, None)
        return self._in_place(operand, self.grad_output.shape, layer, product, 0)

    def _in_place(
        self, first: _Operand, shape: torch.Size, layer: Layer, product: str, side: int
    ) -> Source:
        """The operand for a product of the second order: that of the first order, or codes of it.

        side: 0 of a left operand, 1 of a right one."""
        place: Reading = getattr(layer.call.recipe.readings, product)[side]
        x, w, _ = self.shapes
        other = {"fprop": w if side == 0 else x, "dgrad": w, "wgrad": x}[product]
        result = {"fprop": shape, "dgrad": x, "wgrad": w}[product]

        def laid_out(values: Tensor) -> Tensor:
            if not (place.on_matrix and layer.geometry.matmuls):
                return values
            tensors = [values, values.new_empty(()).expand(other)]
            pair = tensors if side == 0 else tensors[::-1]
            return layer.geometry.factors(product, pair[0], pair[1], result)[side]

        empty = self.grad_output.new_empty(()).expand(shape)
        reading = first.reading
        has_new_codes = reading.transform is not None or (first.lies and reading.ints != place.ints)
        parts = first.parts
        if parts is not None and place.in_parts and not has_new_codes:
            if parts[0].shape == laid_out(empty).shape:
                operand = self.layer.call.in_parts(parts, place, first.fmt)
                return Source(empty, {}, {}, operand=operand)
        values = first.values(self.layer, shape)
        if has_new_codes or (place.in_parts and place.by_scale):
            return Source(values, {}, {})
        return Source(empty, {}, {}, operand=Operand(laid_out(values)))


class _Operand(NamedTuple):
    """An operand as a product of the first order read it.

    tensor: values of the layer's tensor or, with parts, of the matrix; None with parts.
    parts, fmt: codes and scales with their format.
    reading: how the product read it.
    lies: whether its blocks run along one dimension.
    places: of each element of the matrix in the tensor; None where both have one order.
    """

    tensor: Tensor | None
    parts: Parts | None
    fmt: Ints
    reading: Reading
    lies: bool
    places: Tensor | None

    def values(self, layer: Layer, shape: torch.Size) -> Tensor:
        """The values, in the shape of the layer's tensor."""
        call, values = layer.call, self.tensor
        if values is None:
            assert self.parts is not None
            values = call.run.dequantize(*self.parts, self.fmt, call.backend)
        if self.reading.transform is not None:
            values = _transformed_back(values, *self.reading.transform, self.reading.along, call)
        if self.places is None:
            return values.reshape(shape)
        flat = values.new_empty(shape.numel())
        flat[self.places.flatten()] = values.flatten()
        return flat.reshape(shape)


def _operand(
    layer: Layer,
    product: str,
    side: int,
    tensors: tuple[Tensor, Tensor],
    result: torch.Size,
    residual: Residual | None,
) -> _Operand:
    """One operand as a product of the first order read it.

    tensors: both operands of the product; of the other operand only the shape counts. residual: of
    the operand, if forward saved it."""
    call, geometry = layer.call, layer.geometry
    reading: Reading = getattr(call.recipe.readings, product)[side]
    fmt = None if reading.quantizer is None else reading.quantizer.fmt
    lies = reading.is_block and isinstance(fmt, BlockFormat) and has_axis(fmt)
    x, key, ints, places = tensors[side], reading.key, reading.ints, None
    if reading.on_matrix and geometry.matmuls:
        key, ints = reading.matrix_key, reading.matrix_ints
        matrix = geometry.factors(product, tensors[0], tensors[1], result)[side]
        if geometry.two_activations:
            pair = list(tensors)
            numbers = torch.arange(x.numel(), dtype=torch.int64, device=x.device)
            pair[side] = numbers.reshape(x.shape)
            places = geometry.factors(product, pair[0], pair[1], result)[side]
        x = matrix
    if residual is not None and residual.shape is not None:
        if not residual.in_parts:
            return _Operand(tensors[side], None, (), reading, lies, None)
        parts = call.run.unpack_parts(residual.tensor, residual.fmt, residual.shape)
        return _Operand(None, parts, residual.fmt, reading, lies, places)
    source = Source(x, {}, {})
    if reading.is_block:
        parts = call.parts(source, reading, x, key, ints)
        return _Operand(None, parts, ints[InQuantizer.FORMAT], reading, lies, places)
    return _Operand(call.values(source, reading, x, key, ints), None, (), reading, lies, places)


def _transformed_back(x: Tensor, size: int, signs: str | int, along: int, call: Call) -> Tensor:
    """Values of transformed codes, x D H / sqrt(size) of some x, as x: each run times H D /
    sqrt(size), rounded once to bfloat16."""
    d = torch.tensor(signs_of(size, signs), dtype=torch.float32, device=x.device)
    d = d.repeat(x.shape[along] // size)
    d = d if along == -1 else d.unsqueeze(-1)
    return ops.hadamard(x * d, size, signs, along, call.backend) * d


@lru_cache(maxsize=256)
def _recipes(recipe: Recipe) -> tuple[Recipe, Recipe]:
    """The recipes of the products with v, which stands in the place of the input, and with u, which
    stands in the place of the weight."""
    shared: dict[str, Any] = {
        name: getattr(recipe, name) for name in ("grad_output", "wgrad_grad_output", "fprop")
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FixedAxisWarning)
        of_v = _standing_in(recipe, "input", "wgrad_input", "wgrad")
        with_v = Recipe(
            weight=recipe.weight,
            dgrad_weight=recipe.dgrad_weight,
            grad_weight=recipe.grad_weight,
            wgrad=recipe.wgrad,
            **of_v,
            **shared,
        )
        of_u = _standing_in(recipe, "weight", "dgrad_weight", "dgrad")
        with_u = Recipe(
            input=recipe.input,
            wgrad_input=recipe.wgrad_input,
            grad_input=recipe.grad_input,
            dgrad=recipe.dgrad,
            **of_u,
            **shared,
        )
    return with_v, with_u


def _standing_in(recipe: Recipe, general: str, single: str, product: str) -> dict[str, Any]:
    """The quantizers of v or u in its two places: that of fprop, and that of wgrad or dgrad."""
    at_fprop = _quantizer(recipe.grad_output, getattr(recipe, general), recipe.fprop)
    place, acc = getattr(recipe, single), getattr(recipe, product)
    if place is not None:
        return {general: at_fprop, single: place}
    at_product = _quantizer(recipe.grad_output, getattr(recipe, general), acc)
    if at_product == at_fprop:
        # One tensor, quantized once where its codes serve both products.
        return {general: at_fprop}
    return {general: at_fprop, single: at_product or Quantizer(FP32)}


def _quantizer(
    of_g: Quantizer | None, of_place: Quantizer | None, acc: Accumulator
) -> Quantizer | None:
    """grad_output's quantizer along the axis of a place, or the quantizer of the place itself where
    the accumulator is one for operands of certain formats."""
    if acc.operands is not None or acc.takes_scales:
        return of_place
    if of_place is None or of_place.transform is None:
        quantizer = of_g and replace(of_g, hadamard=None, signs=TE)
    else:
        size, signs = of_place.transform
        quantizer = replace(of_g or Quantizer(FP32), hadamard=size, signs=signs)
    if quantizer is None or of_place is None:
        return quantizer
    fmt, along = quantizer.fmt, of_place.fmt
    if isinstance(fmt, BlockFormat) and isinstance(along, BlockFormat):
        if has_axis(fmt) and has_axis(along):
            return replace(quantizer, fmt=replace(fmt, axis=along.axis))
    return quantizer

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
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
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
from lpkernels.functional.layer import Geometry, Layer, Residual, added
from lpkernels.functional.matmul import gradient_of_left, gradient_of_right
from lpkernels.functional.operands import Operand, Source
from lpkernels.functional.recording import first_order, no_derivative, rounding_hook
from lpkernels.functional.seeds import derived_seed
from lpkernels.ops import How, Ints, Parts, matmul_of, multiply, operators_for
from lpkernels.rng import SECOND_OF_DW, SECOND_OF_DX, Role


class Node:
    """What the backward of a Function reads, with the saved tensors unpacked: checkpointing unpacks
    them only once."""

    def __init__(self, ctx: Any) -> None:
        self.saved_tensors = ctx.saved_tensors
        self.needs_input_grad = ctx.needs_input_grad
        self.next_functions = ctx.next_functions
        self.ends: Sequence[int] = ()
        self.__dict__.update(ctx.__dict__)

    def end(self, i: int, kept: Tensor | None = None) -> Tensor:
        """The tensor at which gradients reach input i: the end that forward made (`layer.ends`),
        else the input itself, which is a leaf of autograd's graph or was kept."""
        if i in self.ends:
            end: Tensor = self.saved_tensors[self.ends.index(i) - len(self.ends)]
            return end
        variable: Any = getattr(self.next_functions[i][0], "variable", kept)
        return variable


def run_hooked(node: Any, backward: Callable[..., Any], *grads: Tensor) -> tuple[Any, ...]:
    """backward(node, *grads), under the hook that its Function keeps."""
    with nullcontext() if node.hook is None else rounding_hook(node.hook):
        results: tuple[Any, ...] = backward(node, *grads)
    return results


def gradients_of_layer(
    ctx: Any, backward: Callable[..., Any], g: Tensor | None, *of_ends: Tensor | None
) -> tuple[Tensor | None, ...]:
    """What `EmulatedLayer.backward` returns, recorded for second derivatives.

    Raises: NotImplementedError: a layer without second derivatives.
    """
    grads: tuple[Tensor | None, ...] = (None,) * 6
    if g is not None:
        if not ctx.geometry.differentiable:
            raise no_derivative(ctx.geometry.name)
        node = Node(ctx)
        x = w = None
        if node.needs_input_grad[0] and node.needs_input_grad[1]:
            x, w = node.end(0), node.end(1, node.saved_tensors[1])
        grads = (*_LayerGradients.apply(g, x, w, node, backward), None, None, None)
    return added(grads, ctx.ends, of_ends) if of_ends else grads


class _LayerGradients(torch.autograd.Function):
    is_second_order = True
    layer = "a layer"

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        end_of_x: Tensor | None,
        end_of_w: Tensor | None,
        node: Any,
        backward: Callable[..., Any],
    ) -> tuple[Tensor | None, ...]:
        x, w, seed, *_ = node.saved_tensors
        ctx.scales = node.scales
        if node.scales is not None:
            # As they are now, and not noted again.
            again = node.scales.grad_output
            again = again and again._replace(scale=again.scale.clone(), history=None)
            ctx.scales = node.scales._replace(grad_output=again, after_backward=None)
        ctx.save_for_backward(g, x, w, seed)
        ctx.set_materialize_grads(False)
        ctx.x, ctx.w, ctx.shapes = node.x, node.w, node.shapes
        ctx.recipe, ctx.geometry, ctx.backend = node.recipe, node.geometry, node.backend
        ctx.draws = seed is not None
        return run_hooked(node, backward, g)[:3]

    @staticmethod
    @first_order
    def backward(
        ctx: Any, v: Tensor | None, u: Tensor | None, t: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        g, x, w, seed = ctx.saved_tensors
        recipe, geometry = ctx.recipe, ctx.geometry
        run = operators_for(g, x, w, v, u, seed)
        call = Call(recipe, seed, ctx.backend, run, None, ctx.scales)
        first = _First(Layer(geometry, call), g, x, w, ctx.x, ctx.w, ctx.shapes)
        needs_g, needs_x, needs_w, *_ = ctx.needs_input_grad
        with_v, with_u = _recipes(recipe)
        of_g: list[Tensor] = []
        dx = dw = None
        if v is not None:
            layer = _layer(call, geometry, with_v, SECOND_OF_DX)
            in_place_of_x = Source(v, {}, {})
            if needs_g:
                of_g.append(layer.forward(in_place_of_x, first.w(layer), None))
            if needs_w:
                dw = layer.gradient("wgrad", first.g(layer, "wgrad"), in_place_of_x, ctx.shapes[1])
        if u is not None:
            layer = _layer(call, geometry, with_u, SECOND_OF_DW)
            in_place_of_w = Source(u, {}, {})
            if needs_g:
                of_g.append(layer.forward(first.x(layer), in_place_of_w, None))
            if needs_x:
                dx = layer.gradient("dgrad", first.g(layer, "dgrad"), in_place_of_w, ctx.shapes[0])
        if t is not None and needs_g:
            of_g.append(t if geometry.matmuls else t.reshape(-1, *[1] * (g.dim() - 2)))
        return _sum(of_g, g.shape), dx, dw, None, None


def _layer(call: Call, geometry: Geometry, recipe: Recipe, key: int) -> Layer:
    """The layer whose products are those with v or with u."""
    seed = None if call.seed is None else derived_seed(call.seed, key)
    return Layer(geometry, Call(recipe, seed, call.backend, call.run))


def gradients_of_matmul(
    ctx: Any, backward: Callable[..., Any], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of `lpkernels.matmul`, recorded for second derivatives."""
    node = Node(ctx)
    grads = _MatmulGradients.apply(grad, *node.saved_tensors[:2], node, backward)
    return *grads, grad if node.needs_input_grad[2] else None, None, None, None, None


class _MatmulGradients(torch.autograd.Function):
    is_second_order = True
    layer = "matmul"

    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        a: Tensor | None,
        b: Tensor | None,
        node: Any,
        backward: Callable[..., Any],
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(grad, *node.saved_tensors)
        ctx.draws = node.saved_tensors[2] is not None
        ctx.set_materialize_grads(False)
        ctx.shapes, ctx.dtypes = node.shapes, node.dtypes
        ctx.acc, ctx.backend = node.acc, node.backend
        grads: tuple[Tensor | None, ...] = backward(node, grad)[:2]
        return grads

    @staticmethod
    @first_order
    def backward(ctx: Any, v: Tensor | None, u: Tensor | None) -> tuple[Tensor | None, ...]:
        grad, a, b, seed = ctx.saved_tensors
        (shape_a, shape_b), acc, backend = ctx.shapes, ctx.acc, ctx.backend
        needs_grad, needs_a, needs_b, *_ = ctx.needs_input_grad
        of_v, of_u = (
            None if seed is None else derived_seed(seed, key)
            for key in (SECOND_OF_DX, SECOND_OF_DW)
        )
        of_grad: list[Tensor] = []
        grad_a = grad_b = None
        if v is not None:
            if needs_grad:
                how = How(acc, of_v, Role.DIRECT)
                of_grad.append(multiply(matmul_of(v.float(), b.float()), how, backend))
            if needs_b:
                grad_b = gradient_of_right(grad, v, shape_b, acc, of_v, backend)
                grad_b = grad_b.to(ctx.dtypes[1])
        if u is not None:
            if needs_grad:
                how = How(acc, of_u, Role.DIRECT)
                of_grad.append(multiply(matmul_of(a.float(), u.float()), how, backend))
            if needs_a:
                grad_a = gradient_of_left(grad, u, shape_a, acc, of_u, backend)
                grad_a = grad_a.to(ctx.dtypes[0])
        return _sum(of_grad, grad.shape), grad_a, grad_b, None, None


def rounded_gradient(ctx: Any, backward: Callable[..., Any], grad: Tensor) -> tuple[Any, ...]:
    """The gradient of a function without products, rounded straight-through, so that its own
    gradient is the identity."""
    rounded = _RoundedGradient.apply(grad, Node(ctx), backward)
    return rounded, None, None, None, None, None


class _RoundedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad: Tensor, node: Any, backward: Callable[..., Any]) -> Tensor:
        rounded: Tensor = run_hooked(node, backward, grad)[0]
        return rounded.clone() if rounded is grad else rounded

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        return v, None, None


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
    x_codes: Tensor | None
    w_codes: Tensor | None
    x_kept: Any
    w_kept: Any
    shapes: tuple[torch.Size, torch.Size, torch.Size | None]

    def w(self, layer: Layer) -> Source:
        """The weight that dgrad read, for fprop."""
        assert self.w_codes is not None
        kept, shape = Residual(self.w_codes, *self.w_kept), self.shapes[1]
        tensors = (self.grad_output, kept.source(self.layer, "dgrad", shape).tensor)
        read = _read(self.layer, "dgrad", 1, tensors, self.shapes[0], kept)
        return self._in_place(read, shape, layer, "fprop", 1)

    def x(self, layer: Layer) -> Source:
        """The input that wgrad read, for fprop."""
        assert self.x_codes is not None
        kept, shape = Residual(self.x_codes, *self.x_kept), self.shapes[0]
        tensors = (self.grad_output, kept.source(self.layer, "wgrad", shape).tensor)
        read = _read(self.layer, "wgrad", 1, tensors, self.shapes[1], kept)
        return self._in_place(read, shape, layer, "fprop", 0)

    def g(self, layer: Layer, product: str) -> Source:
        """The output gradient for wgrad, as dgrad read it, or for dgrad, as wgrad read it."""
        of_dgrad = product == "wgrad"
        other, result = self.shapes[::-1][1:] if of_dgrad else self.shapes[:2]
        tensors = (self.grad_output, self.grad_output.new_empty(()).expand(other))
        first = "dgrad" if of_dgrad else "wgrad"
        read = _read(self.layer, first, 0, tensors, result, None)
        return self._in_place(read, self.grad_output.shape, layer, product, 0)

    def _in_place(
        self, read: _Read, shape: torch.Size, layer: Layer, product: str, side: int
    ) -> Source:
        """The operand for a product of the second order: what was read, or codes made of it."""
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
        reading = read.reading
        remade = reading.transform is not None or (read.lies and reading.ints != place.ints)
        parts = read.parts
        if parts is not None and place.in_parts and not remade:
            if parts[0].shape == laid_out(empty).shape:
                operand = self.layer.call.in_parts(parts, place, read.fmt)
                return Source(empty, {}, {}, operand=operand)
        values = read.values(self.layer, shape)
        if remade or (place.in_parts and place.by_scale):
            return Source(values, {}, {})
        return Source(empty, {}, {}, operand=Operand(laid_out(values)))


class _Read(NamedTuple):
    """The value of an operand as a product read it.

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


def _read(
    layer: Layer,
    product: str,
    side: int,
    tensors: tuple[Tensor, Tensor],
    result: torch.Size,
    kept: Residual | None,
) -> _Read:
    """One operand as a product of the first order read it.

    tensors: both operands of the product; of the other operand only the shape counts. kept: how
    the operand was kept."""
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
    if kept is not None and kept.shape is not None:
        if not kept.in_parts:
            values = call.run.unpack(kept.tensor, kept.fmt, kept.shape) if kept.fmt else kept.tensor
            return _Read(values, None, (), reading, lies, None)
        parts = call.run.unpack_parts(kept.tensor, kept.fmt, kept.shape)
        return _Read(None, parts, kept.fmt, reading, lies, places)
    source = Source(x, {}, {})
    if reading.is_block:
        parts = call.parts(source, reading, x, key, ints)
        return _Read(None, parts, ints[InQuantizer.FORMAT], reading, lies, places)
    return _Read(call.values(source, reading, x, key, ints), None, (), reading, lies, places)


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


def _standing_in(recipe: Recipe, general: str, own: str, product: str) -> dict[str, Any]:
    """The quantizers of v or u in its two places: that of fprop, and that of wgrad or dgrad."""
    at_fprop = _quantizer(recipe.grad_output, getattr(recipe, general), recipe.fprop)
    place, acc = getattr(recipe, own), getattr(recipe, product)
    if place is not None:
        return {general: at_fprop, own: place}
    at_product = _quantizer(recipe.grad_output, getattr(recipe, general), acc)
    if at_product == at_fprop:
        # One tensor, quantized once where its codes serve both products.
        return {general: at_fprop}
    return {general: at_fprop, own: at_product or Quantizer(FP32)}


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

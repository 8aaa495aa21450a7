"""The common part of linear and convolution layers: an autograd Function that follows a Recipe.

A geometry makes the three products (``LinearGeometry`` in linear.py, ``ConvGeometry`` in conv.py,
and others); this file has the steps around them:

    forward     xq = input(x), wq = weight(w), bq = bias(b);  y = output(fprop(xq, wq, bq))
    backward    g = grad_output(dy), once
                dx = grad_input(dgrad(g, wq));  dw = grad_weight(wgrad(xq, g))
                db = sum of g * 1, in the accumulator and the order of wgrad

Every quantizer is straight-through: its own gradient is the identity. A product applies the
quantizers that it can apply itself (`ops.Fused`), so that forward needs no rounded copy of a
tensor. Operands are kept for backward as codes (`_saved`), or as forward read them, to be rounded
again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Accumulator, Quantizer, Recipe
from lpkernels.functional import _checks
from lpkernels.functional._saved import Saved, saved
from lpkernels.functional.recording import first_order, is_recorded
from lpkernels.functional.storing import new_product, seeing, seen
from lpkernels.functional.torch_calls import native_sum, torchs
from lpkernels.ops import NOT_FUSED, Fused, How, Ints, Product, matmul_of
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role

if TYPE_CHECKING:
    from lpkernels.functional.running import Scales
    from lpkernels.functional.scaled.products import Pair


class Sum(NamedTuple):
    """How a layer's product is summed, by which backend, and which quantizers it applies itself.

    ``seed`` is a 0-d int64 tensor or None, ``backend`` a backend's name or "auto". ``fused`` and
    ``scales`` are for the two tensors in the order of the geometry's arguments. ``scales`` belong
    to tensors that are codes; only a product that is not native has them. ``emulated`` is False of
    a native product of which the recipe rounds nothing.
    """

    acc: Accumulator
    seed: Tensor | None = None
    role: Role = Role.DIRECT
    backend: str = "auto"
    fused: Fused = NOT_FUSED
    scales: Pair | None = None
    emulated: bool = True

    def by_torch(self, x: Tensor) -> AbstractContextManager[Any]:
        """The context in which torch makes a native product of x."""
        return native_sum(x, self.role, self.emulated)

    def of(self, product: Product) -> Tensor:
        """The product, by torch itself where the sums are its own."""
        if self.acc.is_native:
            with self.by_torch(product.left):
                return torchs(product)
        how = How(self.acc.to_ints(), self.seed, self.role, self.fused)
        if self.scales is None:
            return ops.multiply(product, how, self.backend)
        from lpkernels.functional.scaled import products

        return products.multiply(product, self.scales, how, self.backend)

    def swapped(self) -> Sum:
        """The same sum for a product that takes its two tensors in the other order."""
        left, right, result = self.fused
        scales = None if self.scales is None else self.scales[::-1]
        return self._replace(fused=Fused(right, left, result), scales=scales)

    def exchanged(self) -> Sum:
        """`swapped`, and the other tensor is also the left factor of the product."""
        return self.swapped()._replace(acc=self.acc.exchanged())

    def rounding(self, result: Ints) -> Sum:
        """The same product with another quantizer of its result, or () for none."""
        return self._replace(fused=self.fused._replace(result=result))

    def add_bias(self, y: Tensor, b: Tensor, channels: int) -> Tensor:
        """y + b, rounded: the last addition of this sum; the product has left y unrounded."""
        acc, seed, role, backend, fused, scales, _ = self
        if scales is None:
            return ops.add_bias(y, b, channels, acc, seed, role, backend, fused.result)
        from lpkernels.functional.scaled import products

        return products.add_bias(y, b, channels, How(acc.to_ints(), seed, role, fused), backend)


def sum_of(
    recipe: Recipe,
    product: str,
    seed: Tensor | None,
    backend: str,
    scales: Pair | None = None,
) -> Sum:
    """The sum of "fprop", "dgrad" or "wgrad" by a recipe; it applies no quantizers itself."""
    role, emulated = Role[product.upper()], product in recipe.emulated
    return Sum(getattr(recipe, product), seed, role, backend, NOT_FUSED, scales, emulated)


class Geometry(Protocol):
    """The three products of a layer on float32 tensors, and its output gradient as a matrix.

    ``final`` says whether y is the layer's output, which the recipe's `output` rounds, or the
    operand of a second product of the layer. ``two_activations`` says whether w is an activation,
    as x is, and ``matmuls`` whether the products are matmuls. ``rounds`` says whether the sum can
    round the result itself, because nothing follows it.
    """

    @property
    def final(self) -> bool: ...

    @property
    def two_activations(self) -> bool: ...

    @property
    def matmuls(self) -> bool: ...

    @property
    def rounds(self) -> bool: ...

    def fprop(self, x: Tensor, w: Tensor, b: Tensor | None, how: Sum) -> Tensor: ...

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size, how: Sum) -> Tensor: ...

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size, how: Sum) -> Tensor: ...

    def rows(self, g: Tensor, shape: torch.Size) -> Tensor:
        """The output gradient as a matrix for the gradient of a bias of this shape: a column for
        each element of the bias, with its terms in wgrad's order."""
        ...

    def factors(
        self, product: str, left: Tensor, right: Tensor, shape: torch.Size
    ) -> tuple[Tensor, Tensor]:
        """The operands of fprop (x, w), dgrad (g, w) or wgrad (g, x) as matrices in the last two
        dimensions: the sum runs along axis -1 of x and w in fprop and of g in dgrad, else along
        -2. shape: of the gradient that is the result. The tensors themselves where the products
        are no matmuls."""
        ...

    def shaped(self, y: Tensor, shape: torch.Size) -> Tensor:
        """The gradient of this shape, from the matmul of the factors of dgrad or wgrad."""
        ...


def widened(x: Tensor) -> Tensor:
    """A float16 or bfloat16 tensor as float32, exactly; its gradient returns in its dtype."""
    return x if x.dtype is torch.float32 else x.float()


def quantized(
    x: Tensor, quantizer: Quantizer | None, seed: Tensor | None, role: Role, site: int, backend: str
) -> Tensor:
    """``x`` itself where the recipe has no quantizer for it, else a new tensor."""
    seen(x, quantizer, role)
    return x if quantizer is None else ops.quantize(x, quantizer, seed, role, site, backend)


def _operand(
    x: Tensor, recipe: Recipe, name: str, seed: Tensor | None, role: Role, backend: str
) -> tuple[Tensor, Ints]:
    """The named operand for the two products that read it: x and its quantizer, or x rounded and no
    quantizer."""
    quantizer, ints = getattr(recipe, name), getattr(recipe.fused, name)
    if ints:
        seen(x, quantizer, role)
        return x, ints
    return quantized(x, quantizer, seed, role, SITE_QUANTIZE, backend), ()


class _Last(NamedTuple):
    """How the result of a product is rounded: by the sum itself, if there are integers."""

    quantizer: Quantizer | None
    ints: Ints
    role: Role
    site: int = SITE_QUANTIZE


_UNROUNDED = _Last(None, (), Role.OUTPUT)


def _made(
    geometry: Geometry,
    product: Callable[..., Tensor],
    operands: tuple[Any, ...],
    ints: tuple[Ints, Ints],
    how: Sum,
    last: _Last,
) -> Tensor:
    """A product of the geometry, rounded."""
    # A sum that rounds its result leaves nothing to be seen before it is rounded.
    result = last.ints if geometry.rounds and seeing() is None else ()
    y = product(*operands, how._replace(fused=Fused(*ints, result)))
    if result or last.quantizer is None:
        return y
    return quantized(y, last.quantizer, how.seed, last.role, last.site, how.backend)


def bias_gradient(
    g: Tensor,
    quantizer: Ints,
    acc: Accumulator,
    seed: Tensor | None,
    backend: str,
    scales: Pair | None = None,
) -> Tensor:
    """Column sums (C,) of g (T, C), each term g * 1 exact, accumulated in acc over T in order."""
    if acc.is_native:
        return g.sum(0)
    if scales is not None and acc.group is not None:
        # A sum without scales is none of the unit's: it has its format and rounding.
        acc = Accumulator(acc.fmt, acc.rounding)
    ones = g.new_ones(1, g.shape[0])
    # g, the left factor of wgrad, stands on the right.
    how = Sum(acc.exchanged(), seed, Role.GRAD_BIAS, backend, Fused(right=quantizer), scales)
    return how.of(matmul_of(ones, g)).reshape(-1)


class _Kept(NamedTuple):
    """fprop's operands, kept for the other products, each with the quantizer that it still
    needs."""

    x: Tensor
    x_ints: Ints
    w: Tensor
    w_ints: Ints


def _forward(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    recipe: Recipe,
    geometry: Geometry,
    seed: Tensor | None,
    backend: str,
) -> tuple[Tensor, _Kept]:
    kept = _Kept(
        *_operand(x, recipe, "input", seed, Role.INPUT, backend),
        *_operand(w, recipe, "weight", seed, Role.WEIGHT, backend),
    )
    if b is not None and recipe.bias is not None:
        b = quantized(b, recipe.bias, seed, Role.BIAS, SITE_QUANTIZE, backend)

    operands, ints = (kept.x, kept.w, b), (kept.x_ints, kept.w_ints)
    how = sum_of(recipe, "fprop", seed, backend)
    last = _Last(recipe.output, recipe.fused.output, Role.OUTPUT, SITE_OUTPUT)
    last = last if geometry.final else _UNROUNDED
    return _made(geometry, geometry.fprop, operands, ints, how, last), kept


def emulated_layer(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    recipe: Recipe,
    geometry: Geometry,
    seed: Tensor | None,
    backend: str,
    scales: Scales | None = None,
) -> Tensor:
    """y = output(fprop(input(x), weight(w), bias(b))) on float32 tensors, with its gradients.

    scales: of a recipe with delayed scaling.
    """
    _checks.scaling("lpkernels", recipe.scaling, scales)
    call = (x, w, b, recipe, geometry, seed, backend)
    if recipe.by_product is not None:
        from lpkernels.functional.scaled.layer import layer_by_product

        return layer_by_product(*call, scales)
    if is_recorded(x, w, b):
        return EmulatedLayer.apply(*call)
    new_product()
    return _forward(*call)[0]


class EmulatedLayer(torch.autograd.Function):
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
    ) -> Tensor:
        ctx.sees = new_product()
        y, kept = _forward(x, w, b, recipe, geometry, seed, backend)
        needs_x, needs_w = ctx.needs_input_grad[:2]
        # dgrad reads the weight, wgrad the input: neither is kept for a gradient nobody asked for.
        left = right = None
        if needs_w:
            left = saved(kept.x, kept.x_ints, recipe.input, x, backend)
        if needs_x:
            right = Saved(kept.w, kept.w_ints)
            # A weight that is used as it is has no copy.
            if geometry.two_activations or kept.w is not w:
                right = saved(kept.w, kept.w_ints, recipe.weight, w, backend)
        ctx.save_for_backward(left and left.tensor, right and right.tensor, seed)
        ctx.left, ctx.right = left and left[1:], right and right[1:]
        ctx.recipe, ctx.geometry, ctx.backend = recipe, geometry, backend
        ctx.x_shape, ctx.w_shape = x.shape, w.shape
        ctx.b_shape = None if b is None else b.shape
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        recipe, geometry, backend = ctx.recipe, ctx.geometry, ctx.backend
        left, right, seed = ctx.saved_tensors
        dx = dw = db = None
        its = (recipe, "grad_output", seed, Role.GRAD_OUTPUT, backend)
        g, g_ints = _operand(grad_output, *its)

        if ctx.needs_input_grad[0]:
            wq, w_ints = Saved(right, *ctx.right).restored(ctx.w_shape)
            operands, ints = (g, wq, ctx.x_shape), (g_ints, w_ints)
            how = sum_of(recipe, "dgrad", seed, backend)
            last = _Last(recipe.grad_input, recipe.fused.grad_input, Role.GRAD_INPUT)
            dx = _made(geometry, geometry.dgrad, operands, ints, how, last)
        if ctx.needs_input_grad[1]:
            xq, x_ints = Saved(left, *ctx.left).restored(ctx.x_shape)
            operands, ints = (xq, g, ctx.w_shape), (x_ints, g_ints)
            how = sum_of(recipe, "wgrad", seed, backend)
            last = _Last(recipe.grad_weight, recipe.fused.grad_weight, Role.GRAD_WEIGHT)
            dw = _made(geometry, geometry.wgrad, operands, ints, how, last)
        if ctx.needs_input_grad[2]:
            rows = geometry.rows(g, ctx.b_shape)
            db = bias_gradient(rows, g_ints, recipe.wgrad, seed, backend).reshape(ctx.b_shape)
        return dx, dw, db, None, None, None, None


class RoundedBothWays(torch.autograd.Function):
    """x through one quantizer, its gradient through another; either may be None."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        forward: Quantizer | None,
        role: Role,
        site: int,
        backward: Quantizer | None,
        backward_role: Role,
        seed: Tensor | None,
        backend: str,
    ) -> Tensor:
        ctx.save_for_backward(seed)
        ctx.sees = seeing()
        ctx.backward_call = (backward, backward_role, backend)
        return x.clone() if forward is None else quantized(x, forward, seed, role, site, backend)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (seed,) = ctx.saved_tensors
        quantizer, role, backend = ctx.backward_call
        grad = quantized(grad, quantizer, seed, role, SITE_QUANTIZE, backend)
        return grad, None, None, None, None, None, None, None

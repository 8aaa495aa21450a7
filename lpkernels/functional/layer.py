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

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lpkernels.arithmetic import PRODUCTS, QUANTIZERS, Accumulator, Recipe
from lpkernels.functional import _checks
from lpkernels.functional._saved import Saved, saved
from lpkernels.functional.recording import first_order, is_recorded
from lpkernels.functional.storing import Sees, new_product, seeing
from lpkernels.functional.torch_calls import native_sum, torchs
from lpkernels.ops import (
    DIRECT,
    DISPATCHED,
    NOT_FUSED,
    Fused,
    How,
    Ints,
    Operators,
    Product,
    is_direct,
    matmul_of,
    operators_for,
)
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role

if TYPE_CHECKING:
    from lpkernels.functional.running import Scales
    from lpkernels.functional.scaled.products import Pair


class Sum(NamedTuple):
    """How a layer's product is summed, by which backend, and which quantizers it applies itself.

    ``seed`` is a 0-d int64 tensor or None, ``backend`` a backend's name or "auto". ``fused`` and
    ``scales`` are for the two tensors in the order of the geometry's arguments. ``scales`` belong
    to tensors that are codes; only a product that is not native has them. ``emulated`` is False of
    a native product whose tensors the recipe leaves as they are. ``run`` holds the operators.
    """

    acc: Accumulator
    seed: Tensor | None = None
    role: Role = Role.DIRECT
    backend: str = "auto"
    fused: Fused = NOT_FUSED
    scales: Pair | None = None
    emulated: bool = True
    run: Operators = DISPATCHED

    def by_torch(self, x: Tensor) -> AbstractContextManager[Any]:
        """The context in which torch makes a native product of x."""
        return native_sum(x, self.role, self.emulated)

    def of(self, product: Product) -> Tensor:
        """The product, by torch itself where the sums are its own."""
        if self.acc.is_native:
            if self.run.direct and not torch.is_autocast_enabled("cpu"):
                return torchs(product)
            with self.by_torch(product.left):
                return torchs(product)
        how = How(self.acc.to_ints(), self.seed, self.role, self.fused)
        if self.scales is None:
            return self.run.multiply(product, how, self.backend)
        from lpkernels.functional.scaled import products

        return products.multiply(product, self.scales, how, self.backend, self.run)

    def swapped(self) -> Sum:
        """The same sum for a product that takes its two tensors in the other order."""
        left, right, result = self.fused
        if self.scales is None and not left and not right:
            return self
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
        how = How(self.acc.to_ints(), self.seed, self.role, self.fused)
        if self.scales is not None:
            from lpkernels.functional.scaled import products

            return products.add_bias(y, b, channels, how, self.backend, self.run)
        acc, seed, role, fused = how
        return self.run.add_bias(y, b, channels, acc, seed, role, self.backend, fused.result)


_ROLES = {field: Role[field.upper()] for field in QUANTIZERS}


class Call(NamedTuple):
    """One call of a layer without its tensors: the arithmetic, and the operators that make it."""

    recipe: Recipe
    seed: Tensor | None
    backend: str
    run: Operators = DISPATCHED
    sees: Sees | None = None
    scales: Scales | None = None

    def seeded(self, seed: Tensor | None) -> Call:
        """The same call with another seed."""
        return self._replace(seed=seed)

    def rounded(self, x: Tensor, field: str) -> Tensor:
        """A tensor by the quantizer of this field of the recipe, in a new tensor; x itself where
        the recipe has none."""
        quantizer = getattr(self.recipe, field)
        if quantizer is None:
            return x
        role = _ROLES[field]
        if self.sees is not None:
            self.sees(x, quantizer, role)
        site = SITE_OUTPUT if field == "output" else SITE_QUANTIZE
        return self.run.quantize(x, quantizer.to_ints(), self.seed, role, site, self.backend)

    def operand(self, x: Tensor, field: str) -> tuple[Tensor, Ints]:
        """An operand for the products that read it: x and the quantizer that they apply, or x
        rounded and no quantizer."""
        quantizer: Ints = getattr(self.recipe.fused, field)
        if not quantizer:
            return self.rounded(x, field), ()
        if self.sees is not None:
            self.sees(x, getattr(self.recipe, field), _ROLES[field])
        return x, quantizer

    def sum(self, product: str, scales: Pair | None = None, fused: Fused = NOT_FUSED) -> Sum:
        """The sum of "fprop", "dgrad" or "wgrad"."""
        recipe, role = self.recipe, _PRODUCT_ROLES[product]
        acc, emulated = getattr(recipe, product), product in recipe.emulated
        return Sum(acc, self.seed, role, self.backend, fused, scales, emulated, self.run)

    def product(
        self,
        name: str,
        geometry: Geometry,
        operands: tuple[Any, ...],
        quantizers: tuple[Ints, Ints],
        result: str,
    ) -> Tensor:
        """A product of the geometry, rounded by the quantizer of the field `result`, if any."""
        applied = ()
        # A sum that rounds its result leaves nothing to be seen before it is rounded.
        if result and geometry.rounds and self.sees is None:
            applied = getattr(self.recipe.fused, result)
        how = self.sum(name, None, Fused(*quantizers, applied))
        y = getattr(geometry, name)(*operands, how)
        if not result or applied or getattr(self.recipe, result) is None:
            return y
        return self.rounded(y, result)


_PRODUCT_ROLES = {name: Role[name.upper()] for name in PRODUCTS}


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


def widened_all(x: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """`widened` of the three tensors of a layer."""
    if x.dtype is not torch.float32:
        x = x.float()
    if w.dtype is not torch.float32:
        w = w.float()
    if b is not None and b.dtype is not torch.float32:
        b = b.float()
    return x, w, b


def bias_gradient(
    call: Call, g: Tensor, quantizer: Ints = (), scales: Pair | None = None
) -> Tensor:
    """Column sums (C,) of g (T, C), each term g * 1 exact, in wgrad's accumulator over T in
    order."""
    acc = call.recipe.wgrad
    if acc.is_native:
        return g.sum(0)
    if scales is not None and acc.group is not None:
        # A sum without scales is none of the unit's: it has its format and rounding.
        acc = Accumulator(acc.fmt, acc.rounding)
    # g, the left factor of wgrad, stands on the right.
    acc, fused = acc.exchanged(), Fused(right=quantizer)
    how = Sum(acc, call.seed, Role.GRAD_BIAS, call.backend, fused, scales, True, call.run)
    return how.of(matmul_of(g.new_ones(1, g.shape[0]), g)).reshape(-1)


class Operands(NamedTuple):
    """fprop's operands as the other products read them too, each with the quantizer that it still
    needs."""

    x: Tensor
    x_quantizer: Ints
    w: Tensor
    w_quantizer: Ints


def _forward(
    x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry, call: Call
) -> tuple[Tensor, Operands]:
    operands = Operands(*call.operand(x, "input"), *call.operand(w, "weight"))
    if b is not None and call.recipe.bias is not None:
        b = call.rounded(b, "bias")
    quantizers = (operands.x_quantizer, operands.w_quantizer)
    result = "output" if geometry.final else ""
    y = call.product("fprop", geometry, (operands.x, operands.w, b), quantizers, result)
    return y, operands


def emulated_layer(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    recipe: Recipe,
    geometry: Geometry,
    seed: Tensor | None,
    backend: str,
    scales: Scales | None = None,
    direct: bool | None = None,
) -> Tensor:
    """y = output(fprop(input(x), weight(w), bias(b))) on float32 tensors, with its gradients.

    scales: of a recipe with delayed scaling. direct: what `ops.is_direct` says of the tensors and
    the seed, where the caller has asked.
    """
    if direct is None:
        direct = is_direct(x, w, b, seed)
    if recipe.scaling is not None or scales is not None:
        _checks.scaling("lpkernels", recipe.scaling, scales)
    if recipe.by_product is not None:
        from lpkernels.functional.scaled.layer import layer_by_product

        return layer_by_product(x, w, b, recipe, geometry, seed, backend, scales, direct)
    if is_recorded(x, w, b):
        return EmulatedLayer.apply(x, w, b, recipe, geometry, seed, backend, direct)
    call = Call(recipe, seed, backend, DIRECT if direct else DISPATCHED, new_product())
    return _forward(x, w, b, geometry, call)[0]


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
        direct: bool,
    ) -> Tensor:
        ctx.sees = sees = new_product()
        call = Call(recipe, seed, backend, DIRECT if direct else DISPATCHED, sees)
        y, operands = _forward(x, w, b, geometry, call)
        needs_x, needs_w, *_ = ctx.needs_input_grad
        # dgrad reads the weight, wgrad the input: neither is kept for a gradient nobody asked for.
        left = right = None
        if needs_w:
            left = saved(call, operands.x, operands.x_quantizer, recipe.input, x)
        if needs_x:
            right = Saved(operands.w, operands.w_quantizer)
            # A weight that is used as it is has no copy.
            if geometry.two_activations or operands.w is not w:
                right = saved(call, *right[:2], recipe.weight, w)
        ctx.save_for_backward(left and left.tensor, right and right.tensor, seed)
        ctx.left, ctx.right = left and left[1:], right and right[1:]
        ctx.recipe, ctx.geometry, ctx.backend = recipe, geometry, backend
        ctx.shapes = x.shape, w.shape, None if b is None else b.shape
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        geometry, (x_shape, w_shape, b_shape) = ctx.geometry, ctx.shapes
        left, right, seed = ctx.saved_tensors
        run = operators_for(grad_output, left, right, seed)
        call = Call(ctx.recipe, seed, ctx.backend, run, seeing())
        needs_x, needs_w, needs_b, *_ = ctx.needs_input_grad
        dx = dw = db = None
        g, g_quantizer = call.operand(grad_output, "grad_output")
        if needs_x:
            w, w_quantizer = Saved(right, *ctx.right).restored(call, w_shape)
            quantizers = (g_quantizer, w_quantizer)
            dx = call.product("dgrad", geometry, (g, w, x_shape), quantizers, "grad_input")
        if needs_w:
            x, x_quantizer = Saved(left, *ctx.left).restored(call, x_shape)
            quantizers = (x_quantizer, g_quantizer)
            dw = call.product("wgrad", geometry, (x, g, w_shape), quantizers, "grad_weight")
        if needs_b:
            db = bias_gradient(call, geometry.rows(g, b_shape), g_quantizer).reshape(b_shape)
        return dx, dw, db, None, None, None, None, None


class RoundedBothWays(torch.autograd.Function):
    """x by the quantizer of one field of a recipe, its gradient by that of another."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        field: str,
        gradient_field: str,
        recipe: Recipe,
        seed: Tensor | None,
        backend: str,
    ) -> Tensor:
        ctx.save_for_backward(seed)
        ctx.sees, ctx.field = seeing(), gradient_field
        ctx.recipe, ctx.backend = recipe, backend
        y = Call(recipe, seed, backend, operators_for(x, seed), seeing()).rounded(x, field)
        return x.clone() if y is x else y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (seed,) = ctx.saved_tensors
        call = Call(ctx.recipe, seed, ctx.backend, operators_for(grad, seed), seeing())
        return call.rounded(grad, ctx.field), None, None, None, None, None

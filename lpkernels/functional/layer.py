"""The common part of linear and convolution layers: an autograd Function that follows a Recipe.

    forward     y = output(fprop(x, w) + bias(b))
    backward    dx = grad_input(dgrad(g, w));  dw = grad_weight(wgrad(g, x))
                db = sum of g * 1, in the accumulator and the order of wgrad

A product reads its two operands as the recipe's `readings` say. In a plain recipe all products read
the same values, xq = input(x), wq = weight(w) and gq = grad_output(g). They apply these quantizers
themselves where they can (`Operand.quantizer`), so that no rounded copy of a tensor is made. In
other recipes a product reads codes of its own, or codes whose scales enter its sums.

A geometry makes the three products (``LinearGeometry`` in linear.py, ``ConvGeometry`` in conv.py,
and others). For backward a layer keeps what wgrad reads of x as codes (`Residual`), and of a second
activation what dgrad reads; a weight is kept itself. Every quantizer is straight-through: its own
gradient is the identity.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Recipe
from lpkernels.arithmetic.by_product import Reading
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.functional import _checks
from lpkernels.functional.call import Call, Sum
from lpkernels.functional.dtypes import narrowed, result_dtype, widened_all
from lpkernels.functional.operands import Operand, Pair, Source
from lpkernels.functional.recording import (
    first_order,
    hooks,
    is_recorded,
    new_rounding_hook,
)
from lpkernels.functional.scaled import shapes
from lpkernels.functional.transforms import Context, record
from lpkernels.ops import DIRECT, DISPATCHED, Ints, is_direct, needs_gradient

if TYPE_CHECKING:
    from lpkernels.functional.running import Scales


class Geometry(Protocol):
    """The three products of a layer on float32 tensors, and its output gradient as a matrix.

    ``final`` says whether y is the layer's output, which the recipe's `output` rounds, or the
    operand of a second product of the layer. ``two_activations`` says whether w is an activation,
    as x is, and ``matmuls`` whether the products are matmuls. ``rounds`` says whether the sum can
    round the result itself, because nothing follows it. ``name`` is the layer's in errors.

    The operands of a product come as `factors` gives them. ``shape`` is that of the result; None in
    fprop: as the product makes it.
    """

    @property
    def final(self) -> bool: ...

    @property
    def two_activations(self) -> bool: ...

    @property
    def matmuls(self) -> bool: ...

    @property
    def rounds(self) -> bool: ...

    @property
    def name(self) -> str: ...

    def factors(
        self, product: str, left: Tensor, right: Tensor, shape: torch.Size
    ) -> tuple[Tensor, Tensor]:
        """The operands of fprop (x, w), dgrad (g, w) or wgrad (g, x) as matrices in the last two
        dimensions: the sum runs along axis -1 of x and w in fprop and of g in dgrad, else along
        -2. shape: of the gradient that is the result. The tensors themselves where the products
        are no matmuls."""
        ...

    def fprop(
        self, x: Tensor, w: Tensor, b: Tensor | None, shape: torch.Size | None, how: Sum
    ) -> Tensor: ...

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size, how: Sum) -> Tensor: ...

    def wgrad(self, g: Tensor, x: Tensor, shape: torch.Size, how: Sum) -> Tensor: ...

    def rows(self, g: Tensor, shape: torch.Size) -> Tensor:
        """The output gradient as a matrix for the gradient of a bias of this shape: a column for
        each element of the bias, with its terms in wgrad's order."""
        ...


class Layer(NamedTuple):
    """The products of one call of a layer, without its tensors."""

    geometry: Geometry
    call: Call

    def source_of_codes(self, x: Tensor, product: str, source: Source) -> Tensor:
        """The tensor that the codes of a product's right operand are made from: x, or the values of
        fprop's codes of it."""
        readings = self.call.recipe.readings
        if not getattr(readings, product)[1].from_codes:
            return x
        general = readings.fprop[1 if product == "dgrad" else 0]
        if not general.along_k:
            return self.call.values(source, general, x, general.key, general.ints)
        # Of codes along the sum of fprop.
        rows = x if self.geometry.two_activations else x.flatten(0, -2)
        values = self.call.values(source, general, rows, general.key, general.ints)
        return values.reshape(x.shape)

    def pair(self, product: str, left: Source, right: Source, shape: torch.Size) -> Pair:
        """Both operands of a product, as `Geometry.factors`. shape: of the result."""
        call = self.call
        of_left, of_right = getattr(call.recipe.readings, product)
        first, second = left.operand, right.operand
        if first is None and not of_left.on_matrix:
            x, as_is = left.tensor, of_left.as_is and call.hook is None
            first = Operand(x, of_left.fused) if as_is else call.operand(left, of_left, x)
        if second is None and not of_right.on_matrix:
            y, as_is = right.tensor, of_right.as_is and call.hook is None
            second = Operand(y, of_right.fused) if as_is else call.operand(right, of_right, y)
        x = left.tensor if first is None or of_left.on_matrix else first.values
        y = right.tensor if second is None or of_right.on_matrix else second.values
        if self.geometry.matmuls and not x.dim() == y.dim() == 2:
            x, y = self.geometry.factors(product, x, y, shape)
        batches = self.geometry.two_activations
        if first is None:
            first = call.operand(left, of_left, x, product if batches else "")
        elif not of_left.on_matrix and x is not first.values:
            first = Operand(x, *first[1:])
        if second is None:
            second = call.operand(right, of_right, y, product if batches else "")
        elif not of_right.on_matrix and y is not second.values:
            second = Operand(y, *second[1:])
        return first, second

    def forward(self, x: Source, w: Source, b: Tensor | None) -> Tensor:
        """The layer's result."""
        call, geometry, recipe = self.call, self.geometry, self.call.recipe
        if b is not None and recipe.bias is not None:
            b = call.rounded(b, "bias")
        left, right = operands = self.pair("fprop", x, w, x.tensor.shape)
        shape = None
        if left.values.dim() != x.tensor.dim():
            shape = torch.Size([*x.tensor.shape[:-1], w.tensor.shape[-2]])
        rounds = geometry.final and recipe.output is not None
        # A sum that rounds its result leaves nothing to be seen before it is rounded.
        fused = recipe.fused.output if rounds and geometry.rounds and call.hook is None else ()
        y = geometry.fprop(left.values, right.values, b, shape, call.sum("fprop", operands, fused))
        return call.rounded(y, "output") if rounds and not fused else y

    def gradient(self, product: str, g: Source, other: Source, shape: torch.Size) -> Tensor:
        """The gradient of this shape that dgrad or wgrad makes."""
        call, geometry, recipe = self.call, self.geometry, self.call.recipe
        left, right = operands = self.pair(product, g, other, shape)
        name, make = _GRADIENTS[product], getattr(geometry, product)
        rounds = getattr(recipe, name) is not None
        fused: Ints = ()
        if rounds and geometry.rounds and call.hook is None:
            fused = getattr(recipe.fused, name)
        y: Tensor = make(left.values, right.values, shape, call.sum(product, operands, fused))
        return call.rounded(y, name) if rounds and not fused else y

    def bias_gradient(self, g: Source, shape: torch.Size) -> Tensor:
        """The sum of the output gradient: of g itself where products have codes of their own."""
        call, readings = self.call, self.call.recipe.readings
        reading = readings.wgrad[0]
        if readings.plain_bias:
            operand = Operand(g.tensor)
        elif reading.on_matrix:
            operand = Operand(call.values(g, reading, g.tensor, reading.key, reading.ints))
        else:
            operand = call.operand(g, reading, g.tensor)
        rows = self.geometry.rows(operand.values, shape)
        sums = call.bias_gradient(Operand(rows, *operand[1:]))
        return sums if sums.shape == shape else sums.view(shape)


_GRADIENTS = {"dgrad": "grad_input", "wgrad": "grad_weight"}


class _Switch(threading.local):
    packs = True


_switch = _Switch()


@contextmanager
def packed_activations(on: bool) -> Iterator[None]:
    """Inside the block, layers pack the rounded operands that they save for backward, or do not.

    By default they pack: an activation in e5m2 is kept in one byte, in e2m1 in half a byte, and
    unpacked in backward, bit for bit. Results and gradients are the same with packing on or off.
    (Native sums are the exception: their order depends on the strides, and an unpacked tensor is
    contiguous.) docs/layers.md, "Saved for backward", says which operands are never packed, and
    which layers share codes. The block counts in forward, and belongs to the thread that entered
    it. Activation checkpointing computes a function again in backward: enter the block inside that
    function.

    Args:
        on: whether layers pack.
    """
    if not isinstance(on, bool):
        raise TypeError(f"packed_activations: expected True or False, got {on!r}")
    before, _switch.packs = _switch.packs, on
    try:
        yield
    finally:
        _switch.packs = before


def shared(codes: Tensor, source: Tensor) -> Tensor:
    """The codes that another layer keeps of source, if they have the bytes of codes; else codes.

    Only the bytes tell: `.data` and NumPy change a tensor without changing its version. The host
    does not wait for a device to compare them, so they are shared in the memory of the CPU alone.
    """
    # A tensor that is a leaf may be copied and stored, with all its attributes.
    if torch.compiler.is_compiling() or source.grad_fn is None or not ops.is_in_cpu_memory(codes):
        return codes
    earlier_codes = getattr(source, "_lpkernels_codes", None)
    if earlier_codes is not None and torch.equal(earlier_codes, codes):
        return earlier_codes
    source._lpkernels_codes = codes  # type: ignore[attr-defined]
    return codes


def residual_format(x: Tensor, ints: Ints) -> Ints:
    """The format in which x, rounded by a quantizer, is kept as codes, as packing takes it: its
    integers, or the row of the quantizer. () where x is kept itself."""
    if isinstance(ints, ops.Row):
        at_once = _checks.constant(ops.packs_at_once, x.device.type)
        return ints if _switch.packs and ints.kept_bits > 0 and x.numel() > 0 and at_once else ()
    if torch.compiler.is_compiling():
        is_kept = _checks.constant(_is_kept_in_a_graph, *ints)
        return ints[InQuantizer.FORMAT] if is_kept and packs(x) else ()
    codes = ops.rounds(ints).codes
    return codes.ints if codes is not None and codes.is_kept and packs(x) else ()


def _is_kept_in_a_graph(*ints: int) -> bool:
    codes = ops.rounds(ints).codes
    return codes is not None and codes.is_kept and codes.every_code


def packs(x: Tensor) -> bool:
    """Whether codes of x are kept in its place, where they are narrower."""
    if not _switch.packs or not x.numel() or x.is_meta:
        return False
    if x.is_cpu:
        return True
    if torch.compiler.is_compiling():
        return _checks.constant(ops.packs_at_once, x.device.type)
    return ops.packs_at_once(x.device.type) and not _captured(x)


def _captured(x: Tensor) -> bool:
    """Whether x's work goes into a CUDA graph, where packing cannot wait for the device."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


class Residual(NamedTuple):
    """The right operand of dgrad or wgrad as it is kept from forward.

    Without a shape it is the layer's tensor, which the product reads as it would have read it in
    forward. Else it is a rounded tensor of this shape, or its codes in a format: codes of values,
    or of parts.
    """

    tensor: Tensor
    shape: torch.Size | None = None
    fmt: Ints = ()
    in_parts: bool = False

    def source(self, layer: Layer, product: str, shape: torch.Size) -> Source:
        """The operand that the product reads, of a tensor of this shape."""
        call = layer.call
        reading: Reading = getattr(call.recipe.readings, product)[1]
        if self.shape is None:
            source = Source(self.tensor, {}, {})
            if not reading.from_codes:
                return source
            return Source(layer.source_of_codes(self.tensor, product, source), {}, {})
        if not self.in_parts:
            values = call.run.unpack(self.tensor, self.fmt, self.shape) if self.fmt else self.tensor
            return Source(values, {}, {}, operand=Operand(values))
        apart = ops.values_format(self.fmt, len(self.shape))
        if apart and not reading.in_parts:
            operand = Operand(call.run.unpack(self.tensor, apart, self.shape))
        else:
            parts = call.run.unpack_parts(self.tensor, self.fmt, self.shape)
            operand = call.in_parts(parts, reading, self.fmt)
        # Of the tensor only the shape is read.
        values = operand.values
        tensor = values if self.shape == shape else values.new_empty(()).expand(shape)
        return Source(tensor, {}, {}, operand=operand)


def residual(
    layer: Layer,
    product: str,
    source: Source,
    left: Tensor,
    shape: torch.Size,
    codes_of: Tensor | None = None,
) -> Residual:
    """How the right operand of a product is kept.

    left: a tensor of the left operand's shape, which is not read. shape: of the result. codes_of:
    the tensor that the operand's codes are made from, where it is known.
    """
    x, call = source.tensor, layer.call
    reading: Reading = getattr(call.recipe.readings, product)[1]
    ints, key = reading.ints, reading.key
    if not ints or (reading.transform and not reading.is_block):
        return Residual(x)
    if reading.is_block:
        return _residual_in_parts(layer, product, source, left, shape, codes_of)
    fmt = residual_format(x, ints)
    if reading.fused:
        codes = call.run.encode(x, reading.fused, fmt, call.backend) if fmt else None
        return Residual(x) if codes is None else Residual(shared(codes, x), x.shape, fmt)
    values = source.values.get(key)
    if values is None:
        if not fmt:
            return Residual(x)
        tensor = layer.source_of_codes(x, product, source) if codes_of is None else codes_of
        values = call.values(source, reading, tensor, key, ints)
    codes = call.run.encode(values, (), fmt, call.backend) if fmt else None
    if codes is None:
        return Residual(values, values.shape)
    if reading.quantizer is not None and not reading.quantizer.is_stochastic:
        codes = shared(codes, x)
    return Residual(codes, values.shape, fmt)


def _residual_in_parts(
    layer: Layer,
    product: str,
    source: Source,
    left: Tensor,
    shape: torch.Size,
    codes_of: Tensor | None,
) -> Residual:
    x, call = source.tensor, layer.call
    reading: Reading = getattr(call.recipe.readings, product)[1]
    ints, key = reading.ints, reading.key
    if not packs(x) or not ops.keeps_parts(ints[InQuantizer.FORMAT]):
        return Residual(x)
    tensor = x if codes_of is None else codes_of
    if reading.from_codes and codes_of is None:
        tensor = layer.source_of_codes(x, product, source)
    if reading.on_matrix:
        _, tensor = layer.geometry.factors(product, left, tensor, shape)
        ints, key = reading.matrix_ints, reading.matrix_key
        if layer.geometry.two_activations and tensor.shape != x.shape:
            key += product
    parts = call.parts(source, reading, tensor, key, ints)
    codes = call.run.pack_parts(parts, ints[InQuantizer.FORMAT], call.backend)
    if codes is None:
        return Residual(x)
    if reading.quantizer is not None and not reading.quantizer.is_stochastic:
        codes = shared(codes, x)
    return Residual(codes, tensor.shape, ints[InQuantizer.FORMAT], True)


def _release(source: Source, reading: Reading) -> None:
    """Frees the codes of one product where the next reads codes of its own, so that these lie in
    the same memory: pages that are new to the process cost more than their rounding."""
    if reading.own and not reading.from_codes:
        source.parts.clear()
        source.values.clear()


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
    """y = output(fprop(input(x), weight(w), bias(b))), with its gradients, in float32; y is then
    `narrowed`, and the gradients return in the dtypes of their tensors.

    scales: of a recipe with delayed scaling. direct: what `ops.is_direct` says of float32 tensors
    and the seed, where the caller has asked.
    """
    dtype = torch.float32
    if not direct:
        dtype = result_dtype(x, w, b)
        x, w, b = widened_all(x, w, b)
    if direct is None:
        direct = is_direct(x, w, b, seed)
    if recipe.scaling is not None or scales is not None:
        _checks.scaling("lpkernels", recipe.scaling, scales)
    if recipe.readings.depends_on_shapes:
        shapes.check(geometry, recipe, x, w)
    run = DIRECT if direct else DISPATCHED
    if needs_gradient(x, w, b) if direct else is_recorded(x, w, b):
        apply = _apply_directly if direct else _apply_dispatched
        y = apply(x, w, b, seed, geometry, Call(recipe, None, backend, run, None, scales))
    else:
        call = Call(recipe, seed, backend, run, new_rounding_hook(), scales)
        y = Layer(geometry, call).forward(Source(x, {}, {}), Source(w, {}, {}), b)
    return y if dtype is torch.float32 else narrowed(y, dtype)


class EmulatedLayer(torch.autograd.Function):
    differentiable = "second_order.of_layer"

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        seed: Tensor | None,
        geometry: Geometry,
        call: Call,
    ) -> Tensor:
        recipe, _, backend, run, _, scales = call
        hook = hooks.rounding if hooks.make_rounding is None else new_rounding_hook()
        ctx.hook = hook
        layer = Layer(geometry, Call(recipe, seed, backend, run, hook, scales))
        readings = recipe.readings
        needs_x, needs_w, *_ = ctx.needs_input_grad
        keeps_w = needs_x and geometry.two_activations
        of_x, of_w = readings.wgrad[1], readings.dgrad[1]
        # Codes that backward keeps too are made once.
        left = Source(x, {}, {}, needs_w and of_x.is_block and not of_x.own and packs(x))
        right = Source(w, {}, {}, keeps_w and of_w.is_block and not of_w.own and packs(w))
        y = layer.forward(left, right, b)
        if readings.by_product:
            _release(left, of_x)
            _release(right, of_w)
        of_wgrad = of_dgrad = None
        # dgrad reads w, wgrad reads x: neither is kept for a gradient that nobody asks for.
        if needs_w:
            of_wgrad = residual(layer, "wgrad", left, y, w.shape)
        if keeps_w:
            of_dgrad = residual(layer, "dgrad", right, y, x.shape)
        elif needs_x:
            of_dgrad = Residual(w)
        if of_wgrad is not None and of_dgrad is not None:
            needs_place = (of_wgrad.shape is not None, of_dgrad.shape is not None)
            keep_places(ctx, x if needs_place[0] else None, w if needs_place[1] else None)
        ctx.save_for_backward(of_wgrad and of_wgrad.tensor, of_dgrad and of_dgrad.tensor, seed)
        ctx.x, ctx.w = of_wgrad and of_wgrad[1:], of_dgrad and of_dgrad[1:]
        ctx.recipe, ctx.geometry, ctx.backend = recipe, geometry, backend
        ctx.scales = None if scales is None else scales.of_backward()
        ctx.shapes = x.shape, w.shape, None if b is None else b.shape
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, w, seed = ctx.saved_tensors
        recipe, scales = ctx.recipe, ctx.scales
        run = DIRECT if is_direct(grad_output, x, w, seed) else DISPATCHED
        layer = Layer(ctx.geometry, Call(recipe, seed, ctx.backend, run, hooks.rounding, scales))
        if scales is not None and scales.after_backward is not None:
            scales.after_backward()
        x_shape, w_shape, b_shape = ctx.shapes
        needs_x, needs_w, needs_b, *_ = ctx.needs_input_grad
        g = Source(grad_output, {}, {})
        dx = dw = db = None
        if needs_x:
            right = Residual(w, *ctx.w).source(layer, "dgrad", w_shape)
            dx = layer.gradient("dgrad", g, right, x_shape)
            if recipe.readings.by_product:
                _release(g, recipe.readings.wgrad[0])
        if needs_w:
            right = Residual(x, *ctx.x).source(layer, "wgrad", x_shape)
            dw = layer.gradient("wgrad", g, right, w_shape)
        if needs_b:
            db = layer.bias_gradient(g, b_shape)
        return dx, dw, db, None, None, None


_EMPTY = torch.empty(0, dtype=torch.float32, device="cpu")


def keep_places(ctx: Any, *inputs: Tensor | None) -> None:
    """Keeps for second derivatives the places of a Function's first inputs in autograd's graph, as
    tensors without values: their gradients go to the inputs, which can be freed.

    A leaf needs none, because the graph has it. None stands for an input that needs none either,
    because it is saved itself. Inside torch.func's transforms and in a compiled graph none is kept.
    """
    if isinstance(ctx, Context) or torch.compiler.is_compiling():
        return
    ctx.places = {}
    for i, x in enumerate(inputs):
        if x is not None and not x.is_leaf:
            with torch.enable_grad():
                # The only chunk of a tensor is no view, which would hold the tensor.
                (place,) = x.unsafe_chunk(1)
            is_plain = type(place) is Tensor and place.is_cpu
            place.data = _EMPTY if is_plain else place.new_empty(0)
            ctx.places[i] = place


# `Function.apply` asks for transforms of torch.func, which a direct call has not.
_apply_directly = super(torch.autograd.Function, EmulatedLayer).apply
_apply_dispatched = functools.partial(record, EmulatedLayer)

"""Every matrix product and convolution of one forward and backward pass, with its operands."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F

from lpkernels.arithmetic import NATIVE
from lpkernels.arithmetic.products import Lengths, conv_lengths, matmul_lengths, period
from lpkernels.functional.conv import ConvGeometry
from lpkernels.functional.layer import Sum
from lpkernels.functional.matmul import one_sum
from lpkernels.nn.calls import emulates
from lpkernels.nn.observing import Call, Run, Visitor
from lpkernels.nn.selecting import callers
from lpkernels.nn.selecting import layers as convertible_layers

_NATIVE = Sum(NATIVE)
GEMMS = ("fprop", "dgrad", "wgrad")


@dataclass(frozen=True)
class Matmul:
    """x (..., M, K) @ w (..., K, N); the gradients are summed over broadcast dimensions.

    `lengths` are the products of the longest sum of fprop, dgrad and wgrad. `products` are the
    multiply-adds of one pass, the same in all three; taps on padding are none. `weights` gives
    (sums, K), the weights that meet in one sum of fprop, for every sum with others.
    """

    def fprop(self, x: Tensor, w: Tensor) -> Tensor:
        return torch.matmul(x, w)

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size) -> Tensor:
        left, right = one_sum(g, w.mT, shape)
        return torch.matmul(left, right)

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size) -> Tensor:
        left, right = one_sum(x.mT, g, shape)
        return torch.matmul(left, right)

    def lengths(self, x: torch.Size, w: torch.Size, y: torch.Size) -> Lengths:
        return matmul_lengths(x, w, y)

    def products(self, x: torch.Size, w: torch.Size, y: torch.Size) -> int:
        return math.prod(y) * x[-1]

    def weights(self, w: Tensor) -> Iterator[Tensor]:
        yield w.mT.flatten(0, -2)


@dataclass(frozen=True)
class Conv:
    """x (N, C_in, *) conv w (C_out, C_in / groups, *); the methods are those of `Matmul`."""

    layer: ConvGeometry

    def fprop(self, x: Tensor, w: Tensor) -> Tensor:
        return self.layer.fprop(x, w, None, _NATIVE)

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size) -> Tensor:
        return self.layer.dgrad(g, w, shape, _NATIVE)

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size) -> Tensor:
        return self.layer.wgrad(x, g, shape, _NATIVE)

    def lengths(self, x: torch.Size, w: torch.Size, y: torch.Size) -> Lengths:
        return conv_lengths(w, y, self.layer.stride, self.layer.dilation, self.layer.groups)

    def products(self, x: torch.Size, w: torch.Size, y: torch.Size) -> int:
        one_channel = ConvGeometry(self.layer.stride, self.layer.padding, self.layer.dilation, 1)
        image, kernel = (
            torch.ones(1, 1, *size[2:], dtype=torch.float32, device="cpu") for size in (x, w)
        )
        taps = one_channel.fprop(image, kernel, None, _NATIVE)
        return int(taps.sum(dtype=torch.float64)) * x[0] * w[0] * w[1]

    def weights(self, w: Tensor) -> Iterator[Tensor]:
        yield w.flatten(1)


@dataclass(frozen=True)
class ConvTranspose:
    """The dgrad of a convolution as a forward pass: x is the convolution's output gradient, y its
    image."""

    conv: Conv
    size: tuple[int, ...]

    def fprop(self, x: Tensor, w: Tensor) -> Tensor:
        return self.conv.dgrad(x, w, torch.Size((x.shape[0], *self.size)))

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size) -> Tensor:
        return self.conv.fprop(g, w)

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size) -> Tensor:
        return self.conv.wgrad(g, x, shape)

    def lengths(self, x: torch.Size, w: torch.Size, y: torch.Size) -> Lengths:
        fprop, dgrad, wgrad = self.conv.lengths(y, w, x)
        return dgrad, fprop, wgrad

    def products(self, x: torch.Size, w: torch.Size, y: torch.Size) -> int:
        return self.conv.products(y, w, x)

    def weights(self, w: Tensor) -> Iterator[Tensor]:
        layer = self.conv.layer
        # (C_in, C_out / groups, *) -> (C_out, C_in / groups, *)
        w = w.unflatten(0, (layer.groups, -1)).transpose(1, 2).flatten(0, 1)
        periods = [period(s, d) for s, d in zip(layer.stride, layer.dilation, strict=True)]
        for first in itertools.product(*map(range, periods)):
            met = w
            for dim, (start, step) in enumerate(zip(first, periods, strict=True), start=2):
                met = met.index_select(
                    dim, torch.arange(start, w.shape[dim], step, dtype=torch.int64, device=w.device)
                )
            yield met.flatten(1)


Geometry = Matmul | Conv | ConvTranspose


def sizes(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """`dims` ints from an int, or from one or `dims` ints."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


@dataclass(frozen=True)
class Product:
    """y = op(x, w), the operands detached; `layer` is its name in tables.

    module: the name of the module by whose recipe `convert` computes the product; None if there is
    none. weights: whether w is a layer's weights, not an activation. needs_x, needs_w: whether x
    and w want a gradient.
    """

    layer: str
    module: str | None
    geometry: Geometry
    x: Tensor
    w: Tensor
    y_shape: torch.Size
    weights: bool
    needs_x: bool
    needs_w: bool


#: (product, its output's gradient or None for the forward pass)
Sink = Callable[[Product, Tensor | None], None]

#: Geometry, x and w as it takes them, and the shape of their product.
Reading = tuple[Geometry, Tensor, Tensor, torch.Size]


class Products(Visitor):
    """Sends the products of a model, observed in parts, to sink: once in the forward pass, and
    again with their gradients when backward reaches them.

    Raises: NotImplementedError: a function that computes products in a way not known here.
    """

    def __init__(self, model: Module, sink: Sink) -> None:
        self._sink = sink
        self.found = 0
        # How often each name was given in a run; "own" is the name of the product of a layer
        # itself.
        self._names: dict[Run, dict[str, int]] = {}
        self._waiting: dict[Call, Product] = {}
        self._arguments: Mapping[str, Any] = {}
        self._layers = {
            layer.module: layer.names[0] for layer in convertible_layers(model) if not layer.why_not
        }
        self._callers = {
            layer.module: layer.names[0] for layer in callers(model) if not layer.why_not
        }

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        if call.operation not in _READINGS:
            raise NotImplementedError(
                f"{call.run} calls torch's {call.operation}, whose products are not traced; write "
                "it with matmul, torch.nn.functional.linear, a convolution or attention, or take "
                "the part of the model without it"
            )
        self._arguments = arguments

    def after(self, call: Call, result: Any) -> None:
        arguments, self._arguments = self._arguments, {}
        left, right = (arguments[name] for name in _OPERANDS[call.operation])
        is_layer, layer = self._layer_of(call)
        geometry, x, w, shape = _READINGS[call.operation](left, right, arguments, result)
        weights = is_layer or _is_parameter(right)
        operands = (geometry, x.detach(), w.detach(), shape, weights)
        needs = (left.requires_grad, right.requires_grad)
        product = Product(layer, self._owner(call), *operands, *needs)
        self.found += 1
        self._sink(product, None)
        if any(needs):
            self._waiting[call] = product

    def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
        if of == "result" and call in self._waiting:
            product = self._waiting.pop(call)
            self._sink(product, gradient.reshape(product.y_shape))

    def _layer_of(self, call: Call) -> tuple[bool, str]:
        """Whether the call is a layer's own product, and the product's name in tables."""
        run = call.run
        given = self._names.setdefault(run, {})
        if not call.part and run.module in self._layers and "own" not in given:
            given["own"] = 1
            return True, run.name or type(run.module).__name__
        kind = call.part or call.operation
        count = given[kind] = given.get(kind, 0) + 1
        name = kind if count == 1 else f"{kind}_{count}"
        return False, f"{run.name}.{name}" if run.name else name

    def _owner(self, call: Call) -> str | None:
        """The innermost layer, or module with a forward of its own, that is running; such a module
        owns only the products that `convert` emulates.
        """
        run: Run | None = call.run
        while run is not None:
            if run.module in self._layers:
                return self._layers[run.module]
            if run.module in self._callers:
                return self._callers[run.module] if emulates(call.function) else None
            run = run.outer
        return None


def _is_parameter(w: Tensor) -> bool:
    """Whether w is a parameter, or a part or another view of one."""
    return isinstance(w if w._base is None else w._base, torch.nn.Parameter)


def _rows(x: Tensor) -> Tensor:
    """(..., C) as (rows, C)."""
    return x.reshape(-1, x.shape[-1])


def _matmul(left: Tensor, right: Tensor, of: Mapping[str, Any], y: Tensor) -> Reading:
    shape = list(y.shape)
    if right.dim() == 1:
        right = right.unsqueeze(1)
        shape.append(1)
    if left.dim() == 1:
        left = left.unsqueeze(0)
        shape.insert(len(shape) - 1, 1)
    return Matmul(), left, right, torch.Size(shape)


def _linear(x: Tensor, w: Tensor, of: Mapping[str, Any], y: Tensor) -> Reading:
    return Matmul(), _rows(x), w.mT, _rows(y).shape


def _batched(x: Tensor, y: Tensor, dims: int) -> tuple[Tensor, torch.Size]:
    """x and y's shape with a batch dimension."""
    if x.dim() == dims + 2:
        return x, y.shape
    return x.unsqueeze(0), torch.Size((1, *y.shape))


def _conv(x: Tensor, w: Tensor, of: Mapping[str, Any], y: Tensor) -> Reading:
    dims = w.dim() - 2
    stride, dilation = (sizes(of.get(name, 1), dims) for name in ("stride", "dilation"))
    padding = of.get("padding", 0)
    if padding == "same":
        extra = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
        x = F.pad(x, [side for e in extra[::-1] for side in (e // 2, e - e // 2)])
    paddings = (0,) * dims if isinstance(padding, str) else sizes(padding, dims)
    geometry = Conv(ConvGeometry(stride, paddings, dilation, of.get("groups", 1)))
    x, shape = _batched(x, y, dims)
    return geometry, x, w, shape


def _conv_transpose(x: Tensor, w: Tensor, of: Mapping[str, Any], y: Tensor) -> Reading:
    dims = w.dim() - 2
    stride, dilation = (sizes(of.get(name, 1), dims) for name in ("stride", "dilation"))
    padding = sizes(of.get("padding", 0), dims)
    conv = Conv(ConvGeometry(stride, padding, dilation, of.get("groups", 1)))
    x, shape = _batched(x, y, dims)
    return ConvTranspose(conv, tuple(shape[1:])), x, w, shape


_OPERANDS: dict[str, tuple[str, str]] = {
    "matmul": ("input", "other"),
    "mm": ("input", "mat2"),
    "bmm": ("input", "mat2"),
    "mv": ("input", "vec"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "linear": ("input", "weight"),
    **{f"conv{d}d": ("input", "weight") for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": ("input", "weight") for d in (1, 2, 3)},
}
_READINGS: dict[str, Callable[[Tensor, Tensor, Mapping[str, Any], Tensor], Reading]] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "addmm", "baddbmm"), _matmul),
    "linear": _linear,
    **dict.fromkeys([f"conv{d}d" for d in (1, 2, 3)], _conv),
    **dict.fromkeys([f"conv_transpose{d}d" for d in (1, 2, 3)], _conv_transpose),
}

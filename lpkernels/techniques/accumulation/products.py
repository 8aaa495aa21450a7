"""The statistics of every matrix product and convolution of one forward and backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from lpkernels.arithmetic import Quantizer, Recipe
from lpkernels.arithmetic.products import Lengths, conv_lengths, matmul_lengths
from lpkernels.formats import BlockFormat, FixedFormat, FloatFormat, Format, TableFormat
from lpkernels.functional import Scaled, quantize, scaled
from lpkernels.nn.observing import Call, Run, Visitor
from lpkernels.nn.selecting import candidates
from lpkernels.nn.torch_functions import emulation_of, names_of
from lpkernels.techniques.accumulation.measuring import mantissa_bits, product_bits

GEMMS = ("fprop", "dgrad", "wgrad")
# The operands of fprop, dgrad and wgrad, and the dimension of each that a matrix product sums.
_ROLES = (("input", "weight"), ("grad_output", "weight"), ("input", "grad_output"))
_SUMMED = ((-1, -2), (-1, -1), (-2, -2))
# A format must resolve a typical product of the sum at this quantile of so many sums.
_SAMPLE = 1 << 16
_QUANTILE = 0.01
#: y of x and w, which adds up products of one element of each: linear in both.
Forward = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Product:
    """y = forward(x, w), the operands detached; `layer` is its name in tables.

    y_shape: of y.  lengths: products of the longest sum of fprop, dgrad and wgrad.
    weights: whether w is a layer's weights, not an activation. needs_x, needs_w: whether x and w
    want a gradient.
    """

    layer: str
    forward: Forward
    x: Tensor
    w: Tensor
    y_shape: torch.Size
    lengths: Lengths
    weights: bool
    needs_x: bool
    needs_w: bool

    @cached_property
    def count(self) -> float:
        """How many products fprop adds up; dgrad and wgrad add up as many."""
        kind: Any = {"dtype": torch.float32, "device": self.x.device}
        ones = (torch.ones(x.shape, **kind) for x in (self.x, self.w))
        return _total(self.forward(*ones))

    def sums(self, gemm: int, left: Tensor, right: Tensor) -> Tensor:
        """The sums of fprop, dgrad or wgrad (0, 1, 2), for any values of the two operands."""
        if gemm == 0:
            return self.forward(left, right)
        shape = self.x.shape if gemm == 1 else self.w.shape
        other = torch.zeros(shape, dtype=left.dtype, device=left.device, requires_grad=True)
        with torch.enable_grad():
            y = self.forward(other, right) if gemm == 1 else self.forward(left, other)
        return torch.autograd.grad(y, other, left if gemm == 1 else right)[0]


@dataclass(frozen=True)
class Statistics:
    """Statistics of all sums of one GEMM.

    product_bits: mantissa bits of an exact product of the operands' values.
    operand_bits: of the wider operand.
    nzr: share of the products that are not zero.
    exponents: (low, high) that the accumulator's exponents must cover: of a product of typical size
        in a small sum (the 1 % quantile of the sums), and of the largest sum of magnitudes, which
        no partial sum exceeds in any order. None: every product is zero, or nothing was measured.
    growth: E[sum^2] / E[sum of p^2]: 1 for independent products of mean zero, more where they add
        up; None where nothing was measured.
    """

    product_bits: int
    operand_bits: int
    nzr: float = 1.0
    exponents: tuple[int, int] | None = None
    growth: float | None = None


#: `forward`, `x`, `w`, `y_shape` and `lengths` of a Product.
Reading = tuple[Forward, Tensor, Tensor, torch.Size, Lengths]


class Products(Visitor):
    """The statistics of every product of a model, observed in parts: of fprop in the forward pass,
    of dgrad and wgrad when backward reaches it.

    quantizers: a Recipe whose input, weight and grad_output round the operands.
    batch, examples: the length of a weight's wgrad is multiplied by batch / examples, unless batch
        is None.
    Raises: NotImplementedError: a function that computes products in another way than these.
    """

    def __init__(self, model: Module, quantizers: Recipe, batch: int | None, examples: int) -> None:
        self._quantizers, self._batch, self._examples = quantizers, batch, examples
        #: {(layer, GEMM): (length, Statistics) for every call of the layer}.
        self.statistics: dict[tuple[str, str], list[tuple[int, Statistics]]] = {}
        #: {layer: the name of the module that gives it a recipe}.
        self.modules: dict[str, str] = {}
        #: Layers whose operands want gradients, until the gradients come.
        self.waiting: set[str] = set()
        #: {layer: the largest share of its gradients that became zero}.
        self.flushed: dict[str, float] = {}
        # How often a name was used in a run; "own" is the name of the product of a layer itself.
        self._names: dict[Run, dict[str, int]] = {}
        self._products: dict[Call, Product] = {}
        self._arguments: Mapping[str, Any] = {}
        self._layers, self._callers = (
            {x.module: x.names[0] for x in candidates(model) if not x.why_not and x.calls == calls}
            for calls in (False, True)
        )

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
        names = names_of(call.operation)
        # An addend stands before the operands, a bias and options stand behind them.
        left, right = (arguments[x] for x in (names[:2] if "weight" in names else names[-2:]))
        is_layer, layer = self._layer_of(call)
        forward, x, w, shape, lengths = _READINGS[call.operation](
            call.operation, left, right, arguments, result.shape
        )
        # w is a parameter, or a part or another view of one.
        base = right if right._base is None else right._base
        weights = is_layer or isinstance(base, torch.nn.Parameter)
        needs = left.requires_grad, right.requires_grad
        product = Product(layer, forward, x.detach(), w.detach(), shape, lengths, weights, *needs)
        module = self._owner(call)
        if module is not None:
            self.modules[layer] = module
        for gemm in GEMMS:
            self.statistics.setdefault((layer, gemm), [])
        self._add(product, 0, product.x, product.w)
        if any(needs):
            self._products[call] = product
            self.waiting.add(layer)

    def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
        if of != "result" or call not in self._products:
            return
        product = self._products.pop(call)
        self.waiting.discard(product.layer)
        g = gradient.reshape(product.y_shape)
        if product.needs_x:
            self._add(product, 1, g, product.w)
        if product.needs_w:
            self._add(product, 2, product.x, g)

    def _add(self, product: Product, gemm: int, left: Tensor, right: Tensor) -> None:
        length = product.lengths[gemm]
        if self._batch is not None and gemm == 2 and product.weights:
            if length % self._examples:
                raise ValueError(
                    f"plan: batch={self._batch}: the wgrad of {product.layer!r} sums {length} "
                    f"products of the sample, no multiple of its {self._examples} examples (the "
                    "first dimension of its first tensor); give a sample of that batch instead"
                )
            length = length // self._examples * self._batch
        if left.is_meta:
            quantizers = (getattr(self._quantizers, role) for role in _ROLES[gemm])
            bits = [_format_bits(q.fmt if q is not None else None) for q in quantizers]
            statistics = Statistics(product_bits(*bits), max(bits))
        else:
            # A mode that counts the model's operators would only slow these.
            with torch.autocast(left.device.type, enabled=False), _disable_current_modes():
                operands = zip((left, right), _ROLES[gemm], _SUMMED[gemm], strict=True)
                left, right = (self._rounded(product.layer, *operand) for operand in operands)
                statistics = _statistics(product, gemm, left, right)
        if length:
            self.statistics[product.layer, GEMMS[gemm]].append((length, statistics))

    def _rounded(self, layer: str, x: Tensor, role: str, axis: int) -> Tensor:
        """x as the sums along this dimension add it."""
        quantizer = getattr(self._quantizers, role)
        if not torch.isfinite(x).all():
            raise ValueError(
                f"plan: the {role} of {layer!r} holds infinities or NaN on this sample"
            )
        result = x.float() if quantizer is None else _summed(x, quantizer, axis)
        if not torch.isfinite(result).all():
            raise ValueError(
                f"plan: the {role} of {layer!r} reaches {x.abs().max().item():.4g}, which "
                f"overflows in {quantizer}; scale it, or use a format that saturates or has a "
                "larger range"
            )
        if role == "grad_output":
            nonzero = int(x.count_nonzero())
            lost = 1 - int(result.count_nonzero()) / nonzero if nonzero else 0.0
            self.flushed[layer] = max(lost, self.flushed.get(layer, 0.0))
        return result

    def _layer_of(self, call: Call) -> tuple[bool, str]:
        """Whether the call is a layer's own product, and the product's name in tables."""
        run = call.run
        counts = self._names.setdefault(run, {})
        if not call.part and run.module in self._layers and "own" not in counts:
            counts["own"] = 1
            return True, run.name or type(run.module).__name__
        kind = call.part or call.operation
        count = counts[kind] = counts.get(kind, 0) + 1
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
                return self._callers[run.module] if emulation_of(call.function) else None
            run = run.outer
        return None


def _matmul(operation: str, x: Tensor, w: Tensor, of: Mapping[str, Any], y: torch.Size) -> Reading:
    # A vector is a matrix of one row or of one column.
    shape = torch.Size((*y, 1) if w.dim() == 1 else y)
    if x.dim() == 1:
        shape = torch.Size((*shape[:-1], 1, shape[-1]))
    x, w = torch.atleast_2d(x), w.unsqueeze(1) if w.dim() == 1 else w
    return torch.matmul, x, w, shape, matmul_lengths(x.shape, w.shape, shape)


def _linear(operation: str, x: Tensor, w: Tensor, of: Mapping[str, Any], y: torch.Size) -> Reading:
    rows = x.reshape(-1, x.shape[-1])
    return _matmul(operation, rows, w.mT, of, torch.Size((len(rows), y[-1])))


def _conv(operation: str, x: Tensor, w: Tensor, of: Mapping[str, Any], y: torch.Size) -> Reading:
    options = {name: of[name] for name in _OPTIONS if name in of}
    stride, dilation = (
        (value,) * (w.dim() - 2) if isinstance(value, int) else tuple(value)
        for value in (options.get("stride", 1), options.get("dilation", 1))
    )
    if x.dim() < w.dim():
        x, y = x.unsqueeze(0), torch.Size((1, *y))
    is_transposed = operation.startswith("conv_transpose")
    image = x.shape if is_transposed else y
    lengths = conv_lengths(w.shape, image, stride, dilation, options.get("groups", 1))
    if is_transposed:
        # Its forward pass is the dgrad of a convolution.
        lengths = lengths[1], lengths[0], lengths[2]
    return partial(getattr(F, operation), **options), x, w, y, lengths


_OPTIONS = ("stride", "padding", "output_padding", "dilation", "groups")
_READINGS: dict[str, Callable[..., Reading]] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "addmm", "baddbmm"), _matmul),
    "linear": _linear,
    **dict.fromkeys([f"conv{d}d" for d in (1, 2, 3)], _conv),
    **dict.fromkeys([f"conv_transpose{d}d" for d in (1, 2, 3)], _conv),
}


def _summed(x: Tensor, quantizer: Quantizer, axis: int) -> Tensor:
    """x as sums along this dimension add it: rounded, and without the scales of rows and of the
    whole tensor, which multiply results."""
    fmt = quantizer.fmt
    if not isinstance(fmt, BlockFormat):
        return quantize(x, quantizer).float()
    if fmt.axis == "k":
        fmt = replace(fmt, axis=axis)
    codes = scaled(x, replace(quantizer, fmt=fmt))
    one = torch.ones_like(codes.tensor_scale)
    scale = torch.ones_like(codes.scale) if fmt.block_size in ("row", "tensor") else codes.scale
    return Scaled(codes.values, scale, one, fmt).dequantize()


def _format_bits(fmt: Format | None) -> int:
    """The fewest mantissa bits in which every value of a format is exact, as sums add it: without
    the scales of rows and of the whole tensor; 23 where there is no format, or a float32 scale."""
    if isinstance(fmt, FloatFormat):
        return fmt.man_bits
    if isinstance(fmt, FixedFormat):
        return max(0, fmt.word_bits - 1 - fmt.signed)
    if isinstance(fmt, TableFormat):
        return mantissa_bits(torch.from_numpy(fmt.values()))
    if isinstance(fmt, BlockFormat):
        inside = _format_bits(fmt.element)
        if fmt.scale == "e8m0" or fmt.block_size in ("row", "tensor"):
            return inside
        if isinstance(fmt.scale, FloatFormat):
            return min(23, product_bits(inside, fmt.scale.man_bits))
    return 23


def _statistics(product: Product, gemm: int, left: Tensor, right: Tensor) -> Statistics:
    """The statistics of the sums of one GEMM, for float32 operands without infinities and NaN. The
    sums are bilinear, so the same map adds up magnitudes, squares and counts."""
    combine = partial(product.sums, gemm)
    bits = mantissa_bits(left), mantissa_bits(right)
    zero = Statistics(product_bits(*bits), max(bits), nzr=0.0, growth=1.0)
    # Scaled by powers of two, squares of small gradients do not underflow.
    scale_left, scale_right = _exponent(left), _exponent(right)
    if scale_left is None or scale_right is None:
        return zero
    a, b = torch.ldexp(left, -scale_left), torch.ldexp(right, -scale_right)
    nonzero = _total(combine((a != 0).float(), (b != 0).float()))
    energy = combine(a.square(), b.square())
    squares = _total(energy)
    if nonzero == 0 or squares == 0:
        return zero
    shift = int(scale_left + scale_right)
    per_sum = max(1.0, nonzero / energy.numel())
    return replace(
        zero,
        nzr=min(1.0, nonzero / product.count),
        exponents=(
            math.floor(math.log2(math.sqrt(_small(energy) / per_sum))) + shift,
            math.floor(math.log2(combine(a.abs(), b.abs()).max().item())) + shift,
        ),
        growth=_total(combine(a, b).square()) / squares,
    )


def _total(sums: Tensor) -> float:
    return sums.sum(dtype=torch.float64).item()


def _exponent(x: Tensor) -> Tensor | None:
    """The e with max|x| in [2^(e-1), 2^e); None if x holds nothing but zeros."""
    largest = x.abs().max() if x.numel() else x.new_zeros(())
    return None if largest == 0 else torch.frexp(largest)[1]


def _small(energy: Tensor) -> float:
    flat = energy.flatten()
    sample = flat[:: max(1, flat.numel() // _SAMPLE)]
    sample = sample[sample > 0]
    if not sample.numel():
        return energy[energy > 0].min().item()
    return torch.quantile(sample.double(), _QUANTILE).item()

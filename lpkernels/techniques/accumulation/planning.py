"""The accumulator that each product of a model needs, from one batch or from shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from lpkernels.arithmetic import Quantizer, Recipe, as_quantizer
from lpkernels.formats import BlockFormat, FixedFormat, Format
from lpkernels.functional import Scaled, quantize, scaled
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.observing import trace
from lpkernels.nn.observing.operators import Operators
from lpkernels.nn.observing.reporting import Runs
from lpkernels.nn.observing.tracing import arguments
from lpkernels.nn.selecting import check_model
from lpkernels.recipes import as_recipe, recipes
from lpkernels.techniques import checks
from lpkernels.techniques._nested import all_tensors
from lpkernels.techniques.accumulation import theory
from lpkernels.techniques.accumulation._products import GEMMS, Product, Products
from lpkernels.techniques.accumulation._rows import (
    UNSEEN,
    AccumulatorPlan,
    exponent_bits,
    plan_rows,
)
from lpkernels.techniques.accumulation.measuring import (
    Statistics,
    integer_bits,
    statistics,
    unmeasured,
)

#: Exponent bits beyond those that one batch needs: training goes on to larger values and smaller
#: gradients.
HEADROOM = 1
#: Mantissa bits beyond the widths of the metric, which alone cost accuracy in training.
MARGIN = 1
_MOST_MARGIN = 23
# The left and the right operand of fprop, dgrad and wgrad.
_ROLES = (("input", "weight"), ("grad_output", "weight"), ("input", "grad_output"))


def plan(
    model: Module,
    sample: Any,
    *,
    loss: Callable[[Any], Tensor],
    operand: Format | Quantizer | Recipe | str,
    chunk: int | str | None = None,
    headroom: int = HEADROOM,
    exp_bits: int | None = None,
    batch: int | None = None,
    criterion: str = "level",
    cutoff: float = theory.CUTOFF,
    metric: str = "nmse",
    eps: float = theory.EPS,
    margin: int = MARGIN,
    rounding: str = "nearest_even",
) -> AccumulatorPlan:
    """The accumulator that every product of a model needs, forward and backward.

    It runs the model once on the sample, in the mode it is in, and its loss backward, in torch's
    own arithmetic. It looks at every linear layer, convolution (transposed ones too), recurrent
    layer and cell, attention and call of matmul, bmm, mm, mv, addmm or baddbmm: it reads the
    lengths of the three GEMMs, and, on the operands rounded to `operand`, the mantissa bits of the
    products, the share that is not zero and the range of exponents. These give the format. Its
    mantissa bits are those of :func:`min_mantissa_bits` by the error law, and `margin` more;
    ``metric="vrr", margin=0`` is the rule of Sakr et al. 2019. Its exponent bits (IEEE bias, at
    least 2) are the fewest that cover the range: no partial sum of this batch, in any order,
    exceeds the largest value, and the normal numbers reach down to a product of typical size in the
    smallest hundredth of the sums. One batch does not show what training will reach, so `headroom`
    exponent bits are added.

    On torch's meta device the lengths come from the shapes alone, and nothing is computed: no
    product is known to be zero (nzr is 1), the mantissa bits of the products are those of the
    operand's format, and the exponents have `exp_bits`, or 8 where they are not given: the table
    then says "not measured".

    The model and torch's random state are left as found (`lpkernels.nn.observing.trace`). A layer
    that is called several times has the widest of its formats. The products of one module that
    `convert` computes by one recipe (attention, recurrent layers, calls in a forward) share the
    widest accumulators. The length of a strided dgrad is its longest sum.

    Args:
        model: a module of torch's own layers, its parameters initialised, or on the meta device.
        sample: its input: a tensor, a tuple of arguments or a dict of keyword arguments; on the
            meta device where the model is.
        loss: from the model's output to a scalar; scale it here if gradients underflow.
        operand: format, Quantizer or its text of input, weight and grad_output; or a Recipe (or its
            name) whose three quantizers are taken. The exponents are of the values that a sum
            adds: scales of rows and of whole tensors multiply its result. Blocks along "k" lie
            along the last dimension here, so that zeros and exponents in wgrad are estimates.
        chunk: None: one sum each, the best chunk is shown beside it. A length: chunks of that
            length. "best": every row with the chunk length, of 16 to 1024, that needs the fewest
            bits; where several do, the one that loses least.
        headroom: exponent bits beyond those that this batch needs, up to 8 in all; neither with
            exp_bits nor on the meta device.
        exp_bits: of every accumulator, 2..8; None: measured, as above.
        batch: examples of the batch that the lengths are for. The first dimension of the sample's
            first tensor counts its own; the sum of a weight's wgrad runs over all examples, so its
            length is the sample's times batch and divided by this count. Zeros, exponents and
            growth stay those of the sample. None: the sample's own lengths.
        criterion, cutoff, metric, eps, rounding: of :func:`min_mantissa_bits`, whose own default
            is the paper's metric; the accumulators round so too (:func:`accumulator_of`).
        margin: mantissa bits, 0..23, that every accumulator has beyond those of the metric. 0 is
            the bare formula, whose widths cost accuracy in training.

    Returns:
        An AccumulatorPlan. With operands in fixed point its rows also say in how many bits a
        fixed-point accumulator can never overflow with the layer's weights as they are
        (`PlanRow.integer_bits`). Products that this trace did not see, but that reach torch, are
        named below the table (`AccumulatorPlan.uncovered`).

    Raises:
        TypeError, ValueError: arguments of the wrong kind; another headroom than the default beside
            exp_bits or on the meta device; an option of the other metric; a loss that is no scalar
            or has no gradient; a layer that is emulated already or not initialised; operands that
            are not finite, or overflow in their format; a model on the meta device and a sample
            elsewhere; a batch of no whole number of samples in a sum.
        NotImplementedError: an operation that cannot be traced, by name.

    >>> from lpkernels.techniques.accumulation import plan
    >>> model = torch.nn.Linear(256, 8)
    >>> found = plan(model, torch.randn(64, 256), loss=lambda y: y.square().sum(), operand="e4m3fn")
    >>> [(row.gemm, row.length) for row in found.rows]
    [('fprop', 256), ('wgrad', 64)]
    >>> lp.convert(model, found).recipe.input.fmt == lp.parse_format("e4m3fn")
    True
    """
    _check(chunk, headroom, exp_bits, margin)
    theory.check_criteria("plan", criterion, metric, rounding)
    _check_metric(metric, criterion, cutoff, eps)
    _check_model(model)
    quantizers = _operands(operand)
    measured = _Measured(quantizers, batch, _examples(model, sample, batch))
    if headroom != HEADROOM and any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(
            f"plan: headroom={headroom} adds to exponent bits that are measured, and from shapes "
            "alone nothing is; measure a sample, give exp_bits, or leave headroom out"
        )
    products = Products(model, measured.add)

    def checked_loss(output: Any) -> Tensor:
        value = loss(output)
        if not products.found:
            raise ValueError(
                "plan: the model made no matrix product and no convolution; there is nothing to "
                "accumulate"
            )
        return value

    args, kwargs = arguments(sample)
    below = Operators(Runs())
    trace(model, products, *args, kwargs=kwargs, loss=checked_loss, depth="parts", operators=below)
    options = {"criterion": criterion, "cutoff": cutoff, "metric": metric, "eps": eps}
    exponent = partial(exponent_bits, given=exp_bits, headroom=headroom)
    options["rounding"] = rounding
    rows = plan_rows(measured.sums, measured.flushed, chunk, exponent, options, margin)
    for i, row in enumerate(rows):
        if row.layer in measured.waiting:
            rows[i] = row = replace(row, notes=(*row.notes, UNSEEN))
        if row.gemm == "fprop":
            rows[i] = replace(row, integer_bits=measured.integer_bits.get(row.layer))
    uncovered = below.uncovered(lambda operation: operation.told)
    return AccumulatorPlan(tuple(rows), quantizers, measured.modules, uncovered)


def _check(chunk: Any, headroom: Any, exp_bits: Any, margin: Any) -> None:
    if chunk != "best" and not isinstance(chunk, int | None):
        raise TypeError(f'plan: chunk: expected a length, "best" or None, got {chunk!r}')
    if isinstance(chunk, int):
        checks.whole("plan: chunk", chunk, 1)
    if exp_bits is not None:
        checks.whole("plan: exp_bits", exp_bits, 2, 8)
    checks.whole("plan: headroom", headroom, 0)
    if exp_bits is not None and headroom != HEADROOM:
        raise ValueError(
            f"plan: headroom={headroom} adds to exponent bits that are measured, and "
            f"exp_bits={exp_bits} gives them; leave one of the two out"
        )
    try:
        checks.whole("plan: margin", margin, 0, _MOST_MARGIN)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{error}; a margin is mantissa bits beyond the metric's; for fewer bits than these "
            "take narrowed() of the plan"
        ) from error


def _check_metric(metric: str, criterion: str, cutoff: float, eps: float) -> None:
    """Raises ValueError where an option of the other metric would have no effect."""
    options: dict[str, dict[str, tuple[Any, Any]]] = {
        "nmse": {"criterion": (criterion, "level"), "cutoff": (cutoff, theory.CUTOFF)},
        "vrr": {"eps": (eps, theory.EPS)},
    }
    for name, (value, default) in options[metric].items():
        if value != default:
            other = "vrr" if metric == "nmse" else "nmse"
            raise ValueError(
                f"plan: {name}={value!r} is an option of metric={other!r} and has no effect with "
                f"{metric!r}; pass metric={other!r}, or leave {name} out"
            )


def _examples(model: Module, sample: Any, batch: int | None) -> int:
    """The examples of the sample, 1 where no batch asks for them; checks that model and sample are
    both on the meta device, or neither."""
    inputs = all_tensors({"sample": sample})
    found = [*model.named_parameters(), *model.named_buffers(), *inputs.items()]
    there = [name for name, x in found if x.is_meta]
    elsewhere = [name for name, x in found if not x.is_meta]
    if there and elsewhere:
        raise ValueError(
            f"plan: {there[0]} is on the meta device and {elsewhere[0]} is not; model and sample "
            'must both be there, or neither: make them under torch.device("meta"), or move them '
            'by .to("meta")'
        )
    if batch is None:
        return 1
    checks.whole("plan: batch", batch, 1)
    first = next(iter(inputs.values()), None)
    if first is None or first.dim() == 0 or len(first) == 0:
        raise ValueError(
            f"plan: batch={batch} needs the examples of the sample, counted by the first dimension "
            "of its first tensor, and there is none"
        )
    return len(first)


def _operands(operand: Format | Quantizer | Recipe | str) -> Recipe:
    if isinstance(operand, Recipe) or (isinstance(operand, str) and operand in recipes()):
        given = as_recipe(operand)
        return Recipe(input=given.input, weight=given.weight, grad_output=given.grad_output)
    try:
        q = as_quantizer(operand)
    except (TypeError, ValueError) as error:
        raise type(error)(f"plan: operand: {error}") from error
    return Recipe(input=q, weight=q, grad_output=q)


def _check_model(model: Any) -> None:
    """Checks that the model is a module of torch's own layers, its parameters initialised."""
    check_model("plan", model)
    for name, module in model.named_modules():
        where = f"plan: module {name!r} ({type(module).__name__})"
        if isinstance(module, Emulated):
            raise ValueError(f"{where} is emulated already; lp.revert(model) gives the plain model")
        for key, parameter in module.named_parameters(recurse=False):
            if is_lazy(parameter):
                raise ValueError(
                    f"{where}: parameter {key!r} has no shape yet; run the model on a batch first"
                )


def _summed(x: Tensor, quantizer: Quantizer) -> Tensor:
    """x as sums add it: rounded, and without the scales of rows and of the whole tensor, which
    multiply results."""
    fmt = quantizer.fmt
    if not isinstance(fmt, BlockFormat):
        return quantize(x, quantizer).float()
    if fmt.axis == "k":
        fmt = replace(fmt, axis=-1)
    codes = scaled(x, replace(quantizer, fmt=fmt))
    one = torch.ones_like(codes.tensor_scale)
    scale = torch.ones_like(codes.scale) if fmt.block_size in ("row", "tensor") else codes.scale
    return Scaled(codes.values, scale, one, fmt).dequantize()


class _Measured:
    """The statistics of every (layer, GEMM), one for each call of the layer."""

    def __init__(self, quantizers: Recipe, batch: int | None, examples: int) -> None:
        self.quantizers = quantizers
        self.batch, self.examples = batch, examples
        self.modules: dict[str, str] = {}
        self.sums: dict[tuple[str, str], list[tuple[int, Statistics]]] = {}
        self.flushed: dict[str, float] = {}
        self.integer_bits: dict[str, int] = {}
        # Layers whose operands want gradients, until the gradients come.
        self.waiting: set[str] = set()

    def add(self, product: Product, g: Tensor | None) -> None:
        """The sink of Products."""
        layer, geometry = product.layer, product.geometry
        x = self._rounded(product.x, "input", layer)
        w = self._rounded(product.w, "weight", layer)
        if product.module is not None:
            self.modules[layer] = product.module
        of = partial(self._add, product)
        if g is None:
            for gemm in GEMMS:
                self.sums.setdefault((layer, gemm), [])
            of(0, x, w, geometry.fprop)
            self._find_integer_bits(product, w)
            if product.needs_x or product.needs_w:
                self.waiting.add(layer)
            return
        self.waiting.discard(layer)
        g = self._gradient(g, layer)
        if product.needs_x:
            of(1, g, w, lambda a, b: geometry.dgrad(a, b, x.shape))
        if product.needs_w:
            of(2, x, g, lambda a, b: geometry.wgrad(a, b, w.shape))

    def _add(self, product: Product, gemm: int, left: Tensor, right: Tensor, combine: Any) -> None:
        shapes = (product.x.shape, product.w.shape, product.y_shape)
        length = product.geometry.lengths(*shapes)[gemm]
        if self.batch is not None and gemm == 2 and product.weights:
            length = self._of_batch(product.layer, length)
        if left.is_meta:
            found = unmeasured(*(self._format(role) for role in _ROLES[gemm]))
        else:
            with torch.no_grad(), torch.autocast(left.device.type, enabled=False):
                found = statistics(left, right, combine, product.geometry.products(*shapes))
        if length:
            self.sums[product.layer, GEMMS[gemm]].append((length, found))

    def _of_batch(self, layer: str, length: int) -> int:
        """The length of a weight's wgrad in the batch that was asked for."""
        if length % self.examples:
            raise ValueError(
                f"plan: batch={self.batch}: the wgrad of {layer!r} sums {length} products of the "
                f"sample, which is no multiple of its {self.examples} examples (the first "
                "dimension of its first tensor); give a sample of that batch instead"
            )
        return length // self.examples * (self.batch or 1)

    def _gradient(self, g: Tensor, layer: str) -> Tensor:
        """The rounded gradient of an output; how much of it became zero is kept."""
        if g.is_meta:
            return g
        nonzero = int(g.count_nonzero())
        g = self._rounded(g, "grad_output", layer)
        lost = 1 - int(g.count_nonzero()) / nonzero if nonzero else 0.0
        self.flushed[layer] = max(lost, self.flushed.get(layer, 0.0))
        return g

    def _format(self, role: str) -> Format | None:
        quantizer = getattr(self.quantizers, role)
        return None if quantizer is None else quantizer.fmt

    def _find_integer_bits(self, product: Product, w: Tensor) -> None:
        formats = [q.fmt for q in (self.quantizers.weight, self.quantizers.input) if q is not None]
        if not product.weights or w.numel() == 0 or w.is_meta or len(formats) < 2:
            return
        weight, operand = formats
        if isinstance(weight, FixedFormat) and isinstance(operand, FixedFormat):
            sums = product.geometry.weights(w)
            self.integer_bits[product.layer] = integer_bits(sums, weight, operand)

    def _rounded(self, x: Tensor, role: str, layer: str) -> Tensor:
        if x.is_meta:
            return x
        quantizer = getattr(self.quantizers, role)
        if not torch.isfinite(x).all():
            raise ValueError(
                f"plan: the {role} of {layer!r} holds infinities or NaN on this sample"
            )
        result = x.float() if quantizer is None else _summed(x, quantizer)
        if not torch.isfinite(result).all():
            raise ValueError(
                f"plan: the {role} of {layer!r} reaches {x.abs().max().item():.4g}, which "
                f"overflows in {quantizer}; scale it, or use a format that saturates or has a "
                "larger range"
            )
        return result

"""The counts of a diagnosis: a visitor of a model's calls that counts tensors without waiting."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.weak import WeakTensorKeyDictionary

from lpkernels.arithmetic import TORCH, Quantizer, Recipe
from lpkernels.formats import FP32, FloatFormat, Format
from lpkernels.functional.unchecked import counting_to_nearest
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.layers import WITHOUT_PRODUCTS
from lpkernels.nn.observing import Call, Run, Visitor
from lpkernels.nn.observing.visiting import tensors
from lpkernels.nn.scaling import is_leaf
from lpkernels.techniques.loss_scaling.rows import GRADIENTS, Counts, Histogram, TensorRow
from lpkernels.techniques.loss_scaling.scaler import local_values

# The counts of `lp.count`: overflow, underflow, zeros, nonfinite; then a bin for each exponent.
_EVENTS, _WIDTH = 4, 260


class _Key(NamedTuple):
    """The row of a tensor; the fields are those of a `TensorRow`."""

    layer: str
    kind: str
    tensor: str
    format: Format
    rounded: Format | None


class _Sums:
    """calls: the tensors of a row so far. counts: by device, (260,) int64 twice, as seen and
    without the loss scale."""

    def __init__(self, key: _Key) -> None:
        self.key, self.calls = key, 0
        self.counts: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self.fmt = key.format if isinstance(key.format, FloatFormat) else FP32
        self.count = counting_to_nearest(self.fmt)


@dataclass(eq=False)
class _Layer:
    """The layer of a call, and the row of each of the call's tensors whose gradient is counted."""

    name: str
    recipe: Recipe = TORCH
    gradients: dict[str, _Sums] = field(default_factory=dict)


class CountingVisitor(Visitor):
    """Counts the tensors that it is shown.

    formats: those of arguments, results and their gradients, by kind. None: the tensors that the
        quantizers of recipes round are counted, each as its quantizer gets it.
    scaled: multiplies a tensor by the loss scale as it is now; None: there is none.
    """

    def __init__(
        self, formats: Mapping[str, Format] | None, scaled: Callable[[Tensor], Tensor] | None
    ) -> None:
        self.formats, self._scaled = formats, scaled
        self._sums: dict[_Key, _Sums] = {}
        # The layers in the order of their first calls; backward meets them in another.
        self._order: dict[str, int] = {}
        self._products: WeakKeyDictionary[Run, Counter[str]] = WeakKeyDictionary()
        self._layers: WeakKeyDictionary[Call, _Layer] = WeakKeyDictionary()
        # By tensor: its version, and its counts by format. A tensor comes again as the input of
        # several layers, or as the result of one layer and the input of the next.
        self._counted = WeakTensorKeyDictionary()
        # By device: the backward pass that runs, and where its counts go without the loss scale.
        self._passes: dict[torch.device, tuple[int, Tensor]] = {}

    def rows(self) -> list[TensorRow]:
        """The rows so far, by layer; it waits for every device once."""
        totals: dict[_Sums, Any] = {sums: 0 for sums in self._sums.values() if sums.calls}
        for device in {device for sums in totals for device in sums.counts}:
            counted = [sums for sums in totals if device in sums.counts]
            pairs = torch.stack([x for sums in counted for x in sums.counts[device]])
            counts = pairs.cpu().numpy().reshape(-1, 2, _WIDTH)
            for sums, count in zip(counted, counts, strict=True):
                totals[sums] = totals[sums] + count
        order = sorted(totals, key=lambda sums: self._order[sums.key.layer])
        return [self._row(sums, totals[sums]) for sums in order]

    def _row(self, sums: _Sums, counts: Counts) -> TensorRow:
        key, (seen, unscaled) = sums.key, counts
        # A format without a range of its own is not asked which elements over- and underflow.
        over, under = seen[:2].tolist() if isinstance(key.format, FloatFormat) else (0, 0)
        if self._scaled is None or key.kind not in GRADIENTS:
            unscaled = seen
        histograms = Histogram.of_counts(seen), Histogram.of_counts(unscaled)
        return TensorRow(*key[:4], sums.calls, *histograms, over, under, key.rounded)

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        module = call.run.module
        if self.formats is None:
            self._layers[call] = _Layer(self._name(call))
            if isinstance(module, Emulated) and hasattr(module, "input_range"):
                # A layer with a running range rounds its input before it makes this call.
                assert module.recipe.input is not None
                self.rounding(call, 0, "input", module.recipe.input, arguments["input"])
            return
        classes = WITHOUT_PRODUCTS.get(call.operation)
        if classes is not None and not isinstance(module, classes):
            return
        layer = self._layers[call] = _Layer(self._name(call), _recipe_of(call.run))
        floating = {name: x for name, x in tensors(arguments).items() if x.is_floating_point()}
        dimensions = tuple([(name, x.dim()) for name, x in floating.items()])
        for name, kind, shown in _operands(call.operation, dimensions):
            self._enter(layer, name, kind, shown, floating[name])

    def after(self, call: Call, result: Any) -> None:
        layer = self._layers.get(call)
        if layer is None or self.formats is None:
            return
        # Other results, such as the last state of a recurrent layer, are parts of the first, or
        # weights.
        name, x = next(iter(tensors({"result": result}).items()), ("", None))
        if x is not None and x.is_floating_point():
            self._enter(layer, name, "output", "", x)

    def wants_gradient(self, call: Call, of: str) -> bool:
        layer = self._layers.get(call)
        if layer is None or self.formats is None:
            return False
        # A result is entered after this.
        is_result = of.split(".")[0] == "result"
        return of in layer.gradients or (is_result and "grad_output" in self.formats)

    def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
        layer = self._layers.get(call)
        if layer is not None and of in layer.gradients:
            self._count(layer.gradients[of], gradient)

    def rounding(
        self, call: Call, product: int, kind: str, quantizer: Quantizer, x: Tensor
    ) -> None:
        if self.formats is None:
            shown = str(product) if product > 1 else ""
            name = self._layers[call].name
            self._count(self._sums_of(_Key(name, kind, shown, quantizer.fmt, quantizer.fmt)), x)

    def _enter(self, layer: _Layer, name: str, kind: str, shown: str, x: Tensor) -> None:
        """Counts an argument or a result, and has its gradient counted."""
        assert self.formats is not None
        for tensor in (kind, f"grad_{kind}"):
            if tensor not in self.formats or (tensor != kind and not x.requires_grad):
                continue
            quantizer = getattr(layer.recipe, tensor)
            rounded = None if quantizer is None else quantizer.fmt
            # Rows keep the order of the arguments; their gradients come in another order.
            sums = self._sums_of(_Key(layer.name, tensor, shown, self.formats[tensor], rounded))
            if tensor == kind:
                self._count(sums, x)
            else:
                layer.gradients[name] = sums

    def _sums_of(self, key: _Key) -> _Sums:
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = _Sums(key)
        return sums

    def _count(self, sums: _Sums, x: Tensor) -> None:
        """Adds the counts of x to a row."""
        local = local_values(x)
        if local.layout != torch.strided or local.is_meta:
            return
        sums.calls += 1
        by_format = self._counts_of(x)
        counts = by_format.get(sums.fmt)
        if counts is None:
            counts = by_format[sums.fmt] = _zeros(local.device)
            sums.count(local, counts)
        totals = sums.counts.get(local.device)
        if totals is None:
            totals = sums.counts[local.device] = _zeros(local.device), _zeros(local.device)
        totals[0].add_(counts)
        if self._scaled is not None and sums.key.kind in GRADIENTS:
            totals[1].index_add_(0, self._without_scale(self._scaled, local.device), counts)

    def _counts_of(self, x: Tensor) -> dict[FloatFormat, Tensor]:
        """The counts of x so far, by format. A weight has none: a write to its .data does not
        change its version."""
        if isinstance(x, Parameter):
            return {}
        version = 0 if x.is_inference() else x._version
        counted: tuple[int, dict[FloatFormat, Tensor]] | None = self._counted.get(x)
        if counted is None or counted[0] != version:
            counted = self._counted[x] = version, {}
        return counted[1]

    def _without_scale(self, scaled: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
        """Where each of the 260 counts goes without the loss scale, whose value is taken when a
        backward pass asks first. A number that leaves float32's normal numbers goes to the first or
        the last of their bins."""
        this = torch._C._current_graph_task_id()
        if device not in self._passes or self._passes[device][0] != this:
            scale = scaled(torch.ones((), dtype=torch.float32, device=device))
            exponent = 1 - torch.frexp(scale).exponent.long()
            index = torch.arange(_WIDTH, dtype=torch.int64, device=device)
            bins = index - _EVENTS
            moved = (bins + exponent).clamp(1, 254) + _EVENTS
            moved = torch.where((bins < 1) | (bins == 255), index, moved)
            self._passes[device] = this, moved
        return self._passes[device][1]

    def _name(self, call: Call) -> str:
        """The name of the layer that computes, or of the product in a module's forward."""
        run = call.run
        name = run.name or ("" if run.module is None else type(run.module).__name__)
        products = self._products.setdefault(run, Counter())
        kind = call.operation
        if run.module is not None and not products and is_leaf(run.module):
            kind = ""
        products[kind] += 1
        count = f"_{products[kind]}" if products[kind] > 1 else ""
        layer = ".".join(filter(None, (name, kind + count)))
        self._order.setdefault(layer, len(self._order))
        return layer


def _zeros(device: torch.device) -> Tensor:
    if torch.is_inference_mode_enabled():
        # Counting goes on outside of it.
        with torch.inference_mode(False):
            return _zeros(device)
    return torch.zeros(_WIDTH, dtype=torch.int64, device=device)


def _recipe_of(run: Run) -> Recipe:
    """The recipe of what `run` computes; torch's own outside of converted modules."""
    inner: Run | None = run
    while inner is not None and not isinstance(inner.module, Emulated):
        inner = inner.outer
    return TORCH if inner is None else cast(Emulated, inner.module).recipe


_LEFT = frozenset("input input1 input2 data mat mat1 batch1 query key value hx".split())
_RIGHT = frozenset(
    "weight other tensor mat2 batch2 vec w_ih w_hh in_proj_weight out_proj_weight q_proj_weight "
    "k_proj_weight v_proj_weight".split()
)
# In these functions "input" is the addend of their product.
_ADDING = ("addmm", "baddbmm", "addbmm", "addmv")
_NUMBER = re.compile(r"\.?\d+$")


@lru_cache(maxsize=4096)
def _operands(
    operation: str, arguments: Sequence[tuple[str, int]]
) -> tuple[tuple[str, str, str], ...]:
    """(argument's name, "input" or "weight", the name as a row shows it) of each tensor that is
    multiplied.

    arguments: names and numbers of dimensions of the floating-point arguments.
    """
    kinds = {name: _kind_of(operation, name, dimensions) for name, dimensions in arguments}
    operands = []
    for kind in ("input", "weight"):
        names = [name for name in kinds if kinds[name] == kind]
        operands += [(name, kind, name if len(names) > 1 else "") for name in names]
    return tuple(operands)


def _kind_of(operation: str, name: str, dimensions: int) -> str:
    """ "input" or "weight"; "" for biases, masks and everything that no product multiplies."""
    bare = _NUMBER.sub("", name)
    # A recurrent layer has its biases among its weights.
    if bare in _RIGHT or (bare == "params" and dimensions > 1):
        return "weight"
    # torch gives some arguments no name, but a number.
    is_input = (bare in _LEFT or not bare) and not (name == "input" and operation in _ADDING)
    return "input" if is_input else ""

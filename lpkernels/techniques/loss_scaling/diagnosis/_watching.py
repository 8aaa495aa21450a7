"""The counting: a visitor of a model's calls, and the table of counts that it fills."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.weak import WeakTensorKeyDictionary

from lpkernels.arithmetic import TORCH, Quantizer, Recipe
from lpkernels.formats import FP32, FloatFormat, Format
from lpkernels.functional.count import counting_to_nearest
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.observing import WITHOUT_PRODUCTS, Call, Run, Visitor, tensors
from lpkernels.nn.scaling import is_leaf
from lpkernels.techniques.loss_scaling._gradients import values
from lpkernels.techniques.loss_scaling.diagnosis.histograms import BINS, Counts
from lpkernels.techniques.loss_scaling.diagnosis.rows import BACKWARD

#: Overflow, underflow, zeros, nonfinite; then a bin for each exponent.
EVENTS = 4
WIDTH = EVENTS + BINS


class RowKey(NamedTuple):
    """The row of a tensor; the fields are those of a `rows.TensorRow`."""

    layer: str
    kind: str
    tensor: str
    format: Format
    rounded: Format | None


def _zeros(device: torch.device) -> Tensor:
    if torch.is_inference_mode_enabled():
        # Counting goes on outside of it.
        with torch.inference_mode(False):
            return _zeros(device)
    return torch.zeros(WIDTH, dtype=torch.int64, device=device)


class _Tally:
    """A row while tensors are counted into it, one after the other, without waiting.

    calls: how many it got since they were last taken.
    counts: by device, (260,) int64 twice: as seen, and without the loss scale.
    """

    def __init__(self, fmt: Format) -> None:
        self.calls, self.counts = 0, dict[torch.device, tuple[Tensor, Tensor]]()
        # A format without a range of its own is not asked which elements over- and underflow.
        self.format = fmt if isinstance(fmt, FloatFormat) else None
        self._count = counting_to_nearest(self.format or FP32)

    def add(self, x: Tensor, known: dict[FloatFormat | None, Tensor], moved: Tensor | None) -> None:
        """Counts x.

        known: the counts of the same tensor by format, which are added in place of counting again.
        moved: where each of the 260 counts goes without the loss scale; None: nowhere.
        """
        self.calls += 1
        counts = known.get(self.format)
        if counts is None:
            counts = known[self.format] = _zeros(x.device)
            self._count(x, counts)
        into = self.counts.get(x.device)
        if into is None:
            into = self.counts[x.device] = _zeros(x.device), _zeros(x.device)
        into[0].add_(counts)
        if moved is not None:
            into[1].index_add_(0, moved, counts)


@dataclass
class _Seen:
    """The counts, by format, of a tensor that is not changed in place, and of its gradient in one
    backward pass. The tensor may come again: it may be the input of several layers, or a result
    that is the next layer's input."""

    version: int = 0
    values: dict[FloatFormat | None, Tensor] = field(default_factory=dict)
    backward: int = -1
    gradient: dict[FloatFormat | None, Tensor] = field(default_factory=dict)

    def of_gradient(self, backward: int) -> dict[FloatFormat | None, Tensor]:
        """The counts of the gradient in this pass; another pass has another gradient."""
        if self.backward != backward:
            self.backward, self.gradient = backward, {}
        return self.gradient


@dataclass(eq=False)
class _Called:
    """A call, by its layer: the row and the tensor of each gradient that it may get."""

    layer: str
    recipe: Recipe = TORCH
    of: dict[str, tuple[_Tally, _Seen]] = field(default_factory=dict)


class Watcher(Visitor):
    """Counts the tensors that it is shown.

    formats: those of arguments, results and their gradients, by kind. None: the tensors that the
        quantizers of recipes round are counted, each as its quantizer gets it.
    scaled: multiplies a tensor by the loss scale as it is now; None: there is none.
    """

    def __init__(
        self, formats: Mapping[str, Format] | None, scaled: Callable[[Tensor], Tensor] | None
    ) -> None:
        self.formats, self._scaled = formats, scaled
        self._rows: dict[RowKey, _Tally] = {}
        # The layers in the order of their first calls; backward meets them in another.
        self._order: dict[str, int] = {}
        self._products: WeakKeyDictionary[Run, dict[str, int]] = WeakKeyDictionary()
        self._calls: WeakKeyDictionary[Call, _Called] = WeakKeyDictionary()
        self._seen = WeakTensorKeyDictionary()
        # By device: the backward pass that runs, and where its counts go without the loss scale.
        self._passes: dict[torch.device, tuple[int, Tensor | None]] = {}

    def take(self) -> dict[RowKey, tuple[int, Counts]]:
        """The calls of each row since the last time, and its (2, 260) counts; rows without a call
        are left out. It waits for every device once."""
        rows = {key: row for key, row in self._rows.items() if row.calls}
        found = {key: np.zeros((2, WIDTH), dtype=np.int64) for key in rows}
        for device in {device for row in rows.values() for device in row.counts}:
            there = [key for key, row in rows.items() if device in row.counts]
            parts = [part for key in there for part in rows[key].counts[device]]
            everything = torch.stack(parts).cpu().numpy().reshape(-1, 2, WIDTH)
            torch._foreach_zero_(parts)
            for key, counts in zip(there, everything, strict=True):
                found[key] += counts
        # Products are met from the last to the first in backward.
        order = sorted(
            rows, key=lambda k: (self._order[k.layer], int(k.tensor) if k.tensor.isdigit() else 0)
        )
        taken = {key: (rows[key].calls, found[key]) for key in order}
        for row in rows.values():
            row.calls = 0
        return taken

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        if self.formats is None:
            self._calls[call] = _Called(self._layer(call))
            module = call.run.module
            if isinstance(module, Emulated) and hasattr(module, "input_range"):
                # A layer with a running range rounds its input before it makes this call.
                assert module.recipe.input is not None
                self.rounding(call, 0, "input", module.recipe.input, arguments["input"])
            return
        classes = WITHOUT_PRODUCTS.get(call.operation)
        if classes is not None and not isinstance(call.run.module, classes):
            return
        called = self._calls[call] = _Called(self._layer(call), recipe_of(call.run))
        given = {n: x for n, x in tensors(arguments).items() if x.is_floating_point()}
        shapes = tuple([(name, x.dim()) for name, x in given.items()])
        for name, kind, shown in operands(call.operation, shapes):
            self._enter(called, name, kind, shown, given[name])

    def after(self, call: Call, result: Any) -> None:
        called = self._calls.get(call)
        if called is None or self.formats is None:
            return
        # Other results, such as the last state of a recurrent layer, are parts of the first, or
        # weights.
        name, x = next(iter(tensors({"result": result}).items()), ("", None))
        if x is not None and x.is_floating_point():
            self._enter(called, name, "output", "", x)

    def wants_gradient(self, call: Call, of: str) -> bool:
        called = self._calls.get(call)
        if called is None or self.formats is None:
            return False
        # A result is entered after this.
        return of in called.of or (of.split(".")[0] == "result" and "grad_output" in self.formats)

    def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
        called = self._calls.get(call)
        if called is not None and of in called.of:
            row, seen = called.of[of]
            backward, moved = self._in_pass(gradient.device)
            self._add(row, gradient, seen.of_gradient(backward), moved)

    def rounding(
        self, call: Call, product: int, kind: str, quantizer: Quantizer, x: Tensor
    ) -> None:
        if self.formats is not None:
            return
        shown = str(product) if product > 1 else ""
        row = self._row(self._calls[call].layer, kind, shown, quantizer.fmt, quantizer.fmt)
        moved = self._in_pass(x.device)[1] if kind in BACKWARD else None
        self._add(row, x, self._of(x).values, moved)

    def _enter(self, called: _Called, name: str, kind: str, shown: str, x: Tensor) -> None:
        """Counts an argument or a result, and has its gradient counted."""
        assert self.formats is not None
        seen = self._of(x)
        for each in (f"grad_{kind}", kind):
            if each not in self.formats or (each != kind and not x.requires_grad):
                continue
            quantizer = getattr(called.recipe, each)
            rounded = None if quantizer is None else quantizer.fmt
            row = self._row(called.layer, each, shown, self.formats[each], rounded)
            if each == kind:
                self._add(row, x, seen.values, None)
            else:
                called.of[name] = row, seen

    def _row(self, *key: Any) -> _Tally:
        found = self._rows.get(RowKey(*key))
        if found is None:
            found = self._rows[RowKey(*key)] = _Tally(RowKey(*key).format)
        return found

    def _of(self, x: Tensor) -> _Seen:
        """The counts of x so far; a weight has none, because no other row gets it."""
        if isinstance(x, Parameter):
            return _Seen()
        version = 0 if x.is_inference() else x._version
        found: _Seen | None = self._seen.get(x)
        if found is None or found.version != version:
            found = self._seen[x] = _Seen(version)
        return found

    def _add(
        self, row: _Tally, x: Tensor, known: dict[FloatFormat | None, Tensor], moved: Tensor | None
    ) -> None:
        x = values(x)
        if x.layout == torch.strided and not x.is_meta:
            row.add(x, known, moved)

    def _in_pass(self, device: torch.device) -> tuple[int, Tensor | None]:
        """The backward pass that runs, and where its counts go without the loss scale."""
        this = torch._C._current_graph_task_id()
        found = self._passes.get(device)
        if found is None or found[0] != this:
            moved = None
            if self._scaled is not None:
                one = torch.ones((), dtype=torch.float32, device=device)
                moved = _moved(1 - torch.frexp(self._scaled(one)).exponent)
            found = self._passes[device] = this, moved
        return found

    def _layer(self, call: Call) -> str:
        """The name of the layer that computes, or of the product in a module's forward."""
        run = call.run
        name = run.name or ("" if run.module is None else type(run.module).__name__)
        given = self._products.setdefault(run, {})
        kind = call.operation
        if run.module is not None and not given and is_leaf(run.module):
            kind = ""
        count = given[kind] = given.get(kind, 0) + 1
        layer = ".".join(filter(None, (name, kind if count == 1 else f"{kind}_{count}")))
        self._order.setdefault(layer, len(self._order))
        return layer


def _moved(exponent: Tensor) -> Tensor:
    """Where each of the 260 counts goes when the numbers are multiplied by 2 ** exponent, a 0-d
    tensor. A number that leaves float32's normal numbers goes to the first or last of their bins.
    """
    at = torch.arange(WIDTH, dtype=torch.int64, device=exponent.device)
    bins = at - EVENTS
    moved = (bins + exponent.long()).clamp(1, BINS - 2) + EVENTS
    return torch.where((bins < 1) | (bins == BINS - 1), at, moved)


def recipe_of(run: Run) -> Recipe:
    """The recipe of what `run` computes; torch's own outside of converted modules."""
    inner: Run | None = run
    while inner is not None and not isinstance(inner.module, Emulated):
        inner = inner.outer
    return TORCH if inner is None else cast(Emulated, inner.module).recipe


_LEFT = frozenset("input input1 input2 data mat1 batch1 query key value hx".split())
_RIGHT = frozenset(
    "weight other mat2 batch2 vec w_ih w_hh in_proj_weight out_proj_weight q_proj_weight "
    "k_proj_weight v_proj_weight".split()
)
# In these functions "input" is the addend of their product.
_ADDING = ("addmm", "baddbmm", "addbmm", "addmv")
_NUMBER = re.compile(r"\.?\d+$")


@lru_cache(maxsize=4096)
def operands(operation: str, given: Sequence[tuple[str, int]]) -> tuple[tuple[str, str, str], ...]:
    """(argument's name, "input" or "weight", the name as a row shows it) of each tensor that is
    multiplied.

    given: names and numbers of dimensions of the floating-point arguments.
    """
    kinds = {name: _kind_of(operation, name, dimensions) for name, dimensions in given}
    found = []
    for kind in ("input", "weight"):
        names = [name for name in kinds if kinds[name] == kind]
        found += [(name, kind, name if len(names) > 1 else "") for name in names]
    return tuple(found)


def _kind_of(operation: str, name: str, dimensions: int) -> str:
    """ "input" or "weight"; "" for biases, masks and everything that no product multiplies."""
    if name == "input" and operation in _ADDING:
        return ""
    bare = _NUMBER.sub("", name)
    if bare == "params":
        # A recurrent layer has its biases among its weights.
        return "weight" if dimensions > 1 else ""
    if bare in _RIGHT:
        return "weight"
    # torch gives some arguments no name, but a number.
    return "input" if bare in _LEFT or not bare else ""

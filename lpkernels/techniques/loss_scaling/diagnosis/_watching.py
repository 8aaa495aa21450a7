"""The counting: a visitor of a model's calls, and the rows that the calls' tensors belong to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.nn import Parameter

from lpkernels.arithmetic import TORCH, Quantizer, Recipe
from lpkernels.formats import FloatFormat, Format
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.observing import WITHOUT_PRODUCTS, Call, Run, Visitor, tensors
from lpkernels.nn.scaling import is_leaf
from lpkernels.techniques.loss_scaling._gradients import values
from lpkernels.techniques.loss_scaling.diagnosis._counting import Counters, Vectors, counting
from lpkernels.techniques.loss_scaling.diagnosis.rows import BACKWARD


@dataclass(frozen=True)
class RowKey:
    """A row of the report.

    layer: the name of the module; "" stands for its class. Where the forward of a module with
        layers or other products computes a product itself, the module's name and the function's
        ("block.matmul").
    kind: one of `rows.KINDS`.
    tensor: torch's name of the argument, where a function has several of a kind ("query"), or the
        product in the call, from the second on, where a recipe rounds the tensor ("2"); else "".
    format: the one that the tensor is compared with.
    rounded: the format in which the layer's recipe rounds the tensor; None: it does not.
    """

    layer: str
    kind: str
    tensor: str
    format: Format
    rounded: Format | None

    @property
    def float_format(self) -> FloatFormat | None:
        return self.format if isinstance(self.format, FloatFormat) else None


class _Tally:
    """A row of the report while tensors are counted into it. calls: how many it got since they were
    last taken."""

    __slots__ = ("_counters", "_of", "calls", "count", "float_format", "key")

    def __init__(self, key: RowKey, counters: Counters[RowKey]) -> None:
        self.key, self.float_format, self.calls = key, key.float_format, 0
        self.count = counting(key.float_format)
        self._counters = counters
        self._of: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The row's counts on a device, which stay in one memory from now on."""
        found = self._of.get(device)
        if found is None:
            found = self._of[device] = self._counters.row(self.key, device)
        return found


class _Seen:
    """A tensor that may come again, and its gradient: it may be the input of several layers, or a
    result that is the next layer's input. The counts of both are held by format, so that they are
    read once.

    This does not keep the tensor alive. A tensor that is changed in place counts as another tensor,
    with another gradient.
    """

    __slots__ = ("_gradients", "_of", "_pass", "_version", "values")

    def __init__(self, x: Tensor, version: int) -> None:
        self._of, self._version = ref(x), version
        self.values: dict[FloatFormat | None, Tensor] = {}
        self._gradients: dict[FloatFormat | None, Tensor] = {}
        self._pass = -1

    def lives(self) -> bool:
        return self._of() is not None

    def is_of(self, x: Tensor, version: int) -> bool:
        return self._version == version and self._of() is x

    def gradients(self, backward: int) -> dict[FloatFormat | None, Tensor]:
        """The counts of the gradient in one backward pass; another pass has another gradient."""
        if self._pass != backward:
            self._pass, self._gradients = backward, {}
        return self._gradients


# Tensors that are gone are looked for when there are this many, or twice as many as are alive.
_FEW_TENSORS = 256


class _Tensors:
    """The `_Seen` of each tensor that is alive, by its id. A tensor that is gone may leave its id
    to another. (A WeakIdKeyDictionary takes several times as long.)"""

    def __init__(self) -> None:
        self._found: dict[int, _Seen] = {}
        self._limit = _FEW_TENSORS

    def seen(self, x: Tensor, version: int) -> _Seen:
        found = self._found.get(id(x))
        if found is not None and found.is_of(x, version):
            return found
        if len(self._found) >= self._limit:
            self._found = {at: each for at, each in self._found.items() if each.lives()}
            self._limit = max(_FEW_TENSORS, 2 * len(self._found))
        made = self._found[id(x)] = _Seen(x, version)
        return made


class Watcher(Visitor):
    """Counts the tensors that it is shown, into counters.

    forward, backward: the counters of values, and of gradients.
    new_pass: called before the first gradient of every backward pass, with its device.
    """

    def __init__(
        self,
        forward: Counters[RowKey],
        backward: Counters[RowKey],
        new_pass: Callable[[torch.device], None],
    ) -> None:
        self._new_pass = new_pass
        self._counters = {False: forward, True: backward}
        # In the order of their first calls.
        self._rows: dict[RowKey, _Tally] = {}
        self._layers: WeakKeyDictionary[Run, dict[str, int]] = WeakKeyDictionary()
        self._tensors = _Tensors()
        self._vectors = Vectors()
        self._passes: dict[torch.device, int] = {}

    def take_calls(self) -> dict[RowKey, int]:
        """How many tensors each row got since the last time; rows that got none are left out."""
        found = {row.key: row.calls for row in self._rows.values() if row.calls}
        for row in self._rows.values():
            row.calls = 0
        return found

    def _row(self, key: RowKey) -> _Tally:
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = _Tally(key, self._counters[key.kind in BACKWARD])
        return found

    def _seen(self, x: Tensor) -> _Seen | None:
        """The `_Seen` of x; None for a weight, which no other row gets."""
        if isinstance(x, Parameter):
            return None
        return self._tensors.seen(x, 0 if x.is_inference() else x._version)

    def _in_pass(self, device: torch.device) -> int:
        """The backward pass that runs; tells of it if it is a new one."""
        this = torch._C._current_graph_task_id()
        if self._passes.get(device) != this:
            self._passes[device] = this
            self._new_pass(device)
        return this

    def _add(self, row: _Tally, known: dict[FloatFormat | None, Tensor] | None, x: Tensor) -> None:
        """Counts x in a row.

        known: counts by format of the same tensor, which are added in place of counting again; None
            where no other row may get the same tensor.
        """
        x = values(x)
        if x.layout != torch.strided or x.is_meta:
            return
        row.calls += 1
        into, fmt = row.on(x.device), row.float_format
        if known is None:
            row.count(x, into)
            return
        counts = known.get(fmt)
        if counts is None:
            counts = known[fmt] = self._vectors.take(x.device)
            row.count(x, counts)
        into.add_(counts)

    def _layer(self, call: Call) -> str:
        """The name of the layer that computes, or of the product in a module's forward."""
        run = call.run
        name = run.name or ("" if run.module is None else type(run.module).__name__)
        given = self._layers.setdefault(run, {})
        kind = call.operation
        if run.module is not None and not given and is_leaf(run.module):
            kind = ""
        count = given[kind] = given.get(kind, 0) + 1
        kind = kind if count == 1 else f"{kind}_{count}"
        return ".".join(filter(None, (name, kind)))


class RecipeWatcher(Watcher):
    """Counts the tensors that the quantizers of recipes round, each as its quantizer gets it."""

    def __init__(self, *counting: Any) -> None:
        super().__init__(*counting)
        self._names: WeakKeyDictionary[Call, str] = WeakKeyDictionary()
        # The layers in the order of their first calls; backward meets them in another.
        self._order: dict[str, int] = {}

    def take_calls(self) -> dict[RowKey, int]:
        found = super().take_calls().items()
        return dict(sorted(found, key=lambda x: (self._order[x[0].layer], x[0].tensor)))

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        name = self._names[call] = self._layer(call)
        self._order.setdefault(name, len(self._order))
        module = call.run.module
        if isinstance(module, Emulated) and hasattr(module, "input_range"):
            # A layer with a running range rounds its input before it makes this call.
            assert module.recipe.input is not None
            self.rounding(call, 0, "input", module.recipe.input, arguments["input"])

    def rounding(
        self, call: Call, product: int, kind: str, quantizer: Quantizer, x: Tensor
    ) -> None:
        shown = str(product) if product > 1 else ""
        row = self._row(RowKey(self._names[call], kind, shown, quantizer.fmt, quantizer.fmt))
        if kind in BACKWARD:
            self._in_pass(x.device)
        seen = self._seen(x)
        self._add(row, None if seen is None else seen.values, x)


@dataclass(eq=False)
class _Awaited:
    """A call that may get gradients: the row of each tensor's gradient, and the `_Seen` of each
    tensor that may come again."""

    layer: str
    recipe: Recipe
    of: dict[str, tuple[_Tally, _Seen | None]] = field(default_factory=dict)


class FormatWatcher(Watcher):
    """Counts the arguments and results of layers, and their gradients, in formats by kind."""

    def __init__(self, formats: Mapping[str, Format], *counting: Any) -> None:
        super().__init__(*counting)
        self._formats = formats
        self._called: WeakKeyDictionary[Call, _Awaited] = WeakKeyDictionary()

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        classes = WITHOUT_PRODUCTS.get(call.operation)
        if classes is not None and not isinstance(call.run.module, classes):
            return
        called = self._called[call] = _Awaited(self._layer(call), recipe_of(call.run))
        given = {n: x for n, x in tensors(arguments).items() if x.is_floating_point()}
        shapes = tuple([(name, x.dim()) for name, x in given.items()])
        for name, kind, shown in operands(call.operation, shapes):
            self._enter(called, name, kind, shown, given[name])

    def after(self, call: Call, result: Any) -> None:
        called = self._called.get(call)
        found = tensors({"result": result})
        # Other results, such as the last state of a recurrent layer, are parts of the first, or
        # weights.
        name = next(iter(found), "")
        if called is not None and name and found[name].is_floating_point():
            self._enter(called, name, "output", "", found[name])

    def _enter(self, called: _Awaited, name: str, kind: str, shown: str, x: Tensor) -> None:
        seen, of_gradient = self._seen(x), f"grad_{kind}"
        if of_gradient in self._formats and x.requires_grad:
            called.of[name] = self._row_of(called, of_gradient, shown), seen
        if kind in self._formats:
            row = self._row_of(called, kind, shown)
            self._add(row, None if seen is None else seen.values, x)

    def _row_of(self, called: _Awaited, kind: str, shown: str) -> _Tally:
        quantizer = getattr(called.recipe, kind)
        rounded = None if quantizer is None else quantizer.fmt
        return self._row(RowKey(called.layer, kind, shown, self._formats[kind], rounded))

    def wants_gradient(self, call: Call, of: str) -> bool:
        called = self._called.get(call)
        if called is None:
            return False
        if of == "result" or of.startswith("result."):
            # The tensor is entered after this.
            return "grad_output" in self._formats
        return of in called.of

    def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
        called = self._called.get(call)
        if called is None or of not in called.of:
            return
        this = self._in_pass(gradient.device)
        row, seen = called.of[of]
        self._add(row, None if seen is None else seen.gradients(this), gradient)


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

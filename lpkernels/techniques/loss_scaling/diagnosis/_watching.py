"""Who counts: a visitor of a model's calls, and the rows that their tensors belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from lpkernels.formats import FloatFormat, Format
from lpkernels.nn.observing import Call, Run, Visitor, tensors
from lpkernels.techniques.loss_scaling._gradients import values
from lpkernels.techniques.loss_scaling.diagnosis._counters import Counters
from lpkernels.techniques.loss_scaling.diagnosis._counting import WIDTH, counted
from lpkernels.techniques.loss_scaling.diagnosis._formats import BACKWARD, Formats
from lpkernels.techniques.loss_scaling.diagnosis._operands import operands

#: The version of a tensor, and the backward pass of a gradient.
Stamp = tuple[int, int]


@dataclass(frozen=True)
class Key:
    """A row of the report.

    layer: the module's name, "" as its class; of a product that a module with layers or products of
        its own computes in its forward, that name and the function's ("block.matmul").
    kind: one of `_formats.KINDS`.
    tensor: torch's name of the argument, where a function has several of a kind ("query"); else "".
    format: what it is held against.
    """

    layer: str
    kind: str
    tensor: str
    format: Format

    @property
    def float_format(self) -> FloatFormat | None:
        return self.format if isinstance(self.format, FloatFormat) else None


class _Row:
    """A row that is counted into. calls: how many tensors it got since they were last taken."""

    __slots__ = ("_counters", "_of", "calls", "float_format", "key")

    def __init__(self, key: Key, counters: Counters[Key]) -> None:
        self.key, self.float_format, self.calls = key, key.float_format, 0
        self._counters = counters
        self._of: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """Its counts on a device: one memory from now on."""
        found = self._of.get(device)
        if found is None:
            found = self._of[device] = self._counters.row(self.key, device)
        return found


@dataclass(eq=False)
class _Called:
    """A call whose gradients may come: the rows of those of its tensors, which it does not keep
    alive, and their versions."""

    layer: str
    formats: Mapping[str, Format]
    of: dict[str, tuple[_Row, ref[Tensor], int]] = field(default_factory=dict)


class _Seen:
    """The counts of tensors that may come again: the input of several layers, a result that is the
    next layer's input, and their gradients. They go with the tensor."""

    def __init__(self) -> None:
        self._found: Any = WeakIdKeyDictionary()

    def counts(self, x: Tensor, stamp: Stamp, fmt: FloatFormat | None) -> Tensor | None:
        found = self._found.get(x)
        return None if found is None or found[0] != stamp else found[1].get(fmt)

    def keep(self, x: Tensor, stamp: Stamp, fmt: FloatFormat | None, counts: Tensor) -> None:
        found = self._found.get(x)
        if found is None or found[0] != stamp:
            found = self._found[x] = (stamp, {})
        found[1][fmt] = counts


class Watcher(Visitor):
    """Counts what it is shown, into counters.

    forward, backward: the counters of values, and of gradients.
    new_pass: called before the first gradient of every backward pass, with its device.
    """

    def __init__(
        self,
        formats: Formats,
        forward: Counters[Key],
        backward: Counters[Key],
        new_pass: Callable[[torch.device], None],
    ) -> None:
        self._formats, self._new_pass = formats, new_pass
        self._counters = {False: forward, True: backward}
        # In the order of their first calls.
        self._rows: dict[tuple[str, str, str, Format], _Row] = {}
        self._layers: WeakKeyDictionary[Run, dict[str, int]] = WeakKeyDictionary()
        self._called: WeakKeyDictionary[Call, _Called] = WeakKeyDictionary()
        self._seen, self._seen_backward = _Seen(), _Seen()
        self._passes: dict[torch.device, int] = {}

    def take_calls(self) -> dict[Key, int]:
        """How many tensors each row got since the last time, of those that got any."""
        found = {row.key: row.calls for row in self._rows.values() if row.calls}
        for row in self._rows.values():
            row.calls = 0
        return found

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        called = self._called[call] = _Called(self._layer(call), self._formats.of(call.run))
        given = {n: x for n, x in tensors(arguments).items() if x.is_floating_point()}
        shapes = tuple([(name, x.dim()) for name, x in given.items()])
        for name, kind, shown in operands(call.operation, shapes):
            self._enter(called, name, kind, shown, given[name])

    def after(self, call: Call, result: Any) -> None:
        found = tensors({"result": result})
        # Others, such as the last state of a recurrent layer, are parts of the first, or weights.
        name = next(iter(found), "")
        if name and found[name].is_floating_point():
            self._enter(self._called[call], name, "output", "", found[name])

    def _enter(self, called: _Called, name: str, kind: str, shown: str, x: Tensor) -> None:
        formats = called.formats
        # What changes a tensor in place makes another version, with another gradient.
        version = 0 if x.is_inference() else x._version
        of_gradient = formats.get(f"grad_{kind}")
        if of_gradient is not None and x.requires_grad:
            row = self._row(called.layer, f"grad_{kind}", shown, of_gradient)
            called.of[name] = row, ref(x), version
        fmt = formats.get(kind)
        if fmt is not None:
            self._add(self._row(called.layer, kind, shown, fmt), self._seen, x, x, (version, -1))

    def wants_gradient(self, call: Call, of: str) -> bool:
        called = self._called[call]
        if of == "result" or of.startswith("result."):
            # It is entered after this.
            return "grad_output" in called.formats
        return of in called.of

    def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
        called = self._called.get(call)
        if called is None or of not in called.of:
            return
        this = torch._C._current_graph_task_id()
        if self._passes.get(gradient.device) != this:
            self._passes[gradient.device] = this
            self._new_pass(gradient.device)
        row, x, version = called.of[of]
        self._add(row, self._seen_backward, x(), gradient, (version, this))

    def _row(self, layer: str, kind: str, shown: str, fmt: Format) -> _Row:
        at = (layer, kind, shown, fmt)
        found = self._rows.get(at)
        if found is None:
            counters = self._counters[kind in BACKWARD]
            found = self._rows[at] = _Row(Key(*at), counters)
        return found

    def _add(
        self, row: _Row, seen: _Seen, identity: Tensor | None, x: Tensor, stamp: Stamp
    ) -> None:
        """Counts x in a row; what was counted for the same tensor is added, not counted again.

        identity: the tensor that x is, or is the gradient of, if it lives.
        """
        x = values(x)
        if x.layout != torch.strided or x.is_meta:
            return
        row.calls += 1
        into, fmt = row.on(x.device), row.float_format
        if identity is None or isinstance(identity, torch.nn.Parameter):
            counted(x, fmt, into)
            return
        counts = seen.counts(identity, stamp, fmt)
        if counts is None:
            counts = torch.zeros(WIDTH, dtype=torch.int64, device=x.device)
            counted(x, fmt, counts)
            seen.keep(identity, stamp, fmt, counts)
        into += counts

    def _layer(self, call: Call) -> str:
        """The name of what computes: a layer's own, or that of a product in a module's forward."""
        run = call.run
        name = run.name or ("" if run.module is None else type(run.module).__name__)
        given = self._layers.setdefault(run, {})
        kind = call.operation
        if run.module is not None and not given and next(run.module.children(), None) is None:
            kind = ""
        count = given[kind] = given.get(kind, 0) + 1
        kind = kind if count == 1 else f"{kind}_{count}"
        return ".".join(filter(None, (name, kind)))

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
from lpkernels.techniques.loss_scaling.diagnosis._formats import Formats
from lpkernels.techniques.loss_scaling.diagnosis._operands import kind_of

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


@dataclass(eq=False)
class _Called:
    """A call whose gradients may come: where those of its tensors go. It keeps none alive."""

    layer: str = ""
    wants_result: bool = False
    keys: dict[str, Key] = field(default_factory=dict)
    of: dict[str, tuple[ref[Tensor], int]] = field(default_factory=dict)


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
        self._forward, self._backward = forward, backward
        #: How many tensors each row has, in the order of their first calls.
        self.calls: dict[Key, int] = {}
        self._layers: WeakKeyDictionary[Run, dict[str, int]] = WeakKeyDictionary()
        self._called: WeakKeyDictionary[Call, _Called] = WeakKeyDictionary()
        self._seen, self._seen_backward = _Seen(), _Seen()
        self._passes: dict[torch.device, int] = {}

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        called = self._called[call] = _Called()
        layer = self._layer(call)
        given = {n: x for n, x in tensors(arguments).items() if x.is_floating_point()}
        kinds = {n: kind for n, x in given.items() if (kind := kind_of(call.operation, n, x))}
        for kind in ("input", "weight"):
            names = [name for name in kinds if kinds[name] == kind]
            for name in names:
                shown = name if len(names) > 1 else ""
                self._enter(called, call.run, name, (layer, kind, shown), given[name])
        called.layer = layer
        called.wants_result = self._formats.of("grad_output", call.run) is not None

    def after(self, call: Call, result: Any) -> None:
        called = self._called[call]
        found = tensors({"result": result})
        # Others, such as the last state of a recurrent layer, are parts of the first, or weights.
        name = next(iter(found), "")
        if name and found[name].is_floating_point():
            self._enter(called, call.run, name, (called.layer, "output", ""), found[name])

    def _enter(
        self, called: _Called, run: Run, name: str, row: tuple[str, str, str], x: Tensor
    ) -> None:
        layer, kind, shown = row
        # What changes a tensor in place makes another version, with another gradient.
        version = 0 if x.is_inference() else x._version
        of_gradient = self._formats.of(f"grad_{kind}", run)
        if of_gradient is not None and x.requires_grad:
            called.keys[name] = Key(layer, f"grad_{kind}", shown, of_gradient)
            called.of[name] = ref(x), version
        fmt = self._formats.of(kind, run)
        if fmt is not None:
            key = Key(layer, kind, shown, fmt)
            self._add(self._forward, self._seen, key, x, x, (version, -1))

    def wants_gradient(self, call: Call, of: str) -> bool:
        called = self._called[call]
        if of == "result" or of.startswith("result."):
            return called.wants_result
        return of in called.keys

    def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
        called = self._called.get(call)
        if called is None or of not in called.keys:
            return
        this = torch._C._current_graph_task_id()
        if self._passes.get(gradient.device) != this:
            self._passes[gradient.device] = this
            self._new_pass(gradient.device)
        x, version = called.of[of]
        seen = self._seen_backward
        self._add(self._backward, seen, called.keys[of], x(), gradient, (version, this))

    def _add(
        self,
        counters: Counters[Key],
        seen: _Seen,
        key: Key,
        identity: Tensor | None,
        x: Tensor,
        stamp: Stamp,
    ) -> None:
        """Counts x in a row; what was counted for the same tensor is added, not counted again.

        identity: the tensor that x is, or is the gradient of, if it lives.
        """
        x = values(x)
        if x.layout != torch.strided or x.is_meta:
            return
        self.calls[key] = self.calls.get(key, 0) + 1
        row, fmt = counters.row(key, x.device), key.float_format
        if identity is None or isinstance(identity, torch.nn.Parameter):
            counted(x, fmt, row)
            return
        counts = seen.counts(identity, stamp, fmt)
        if counts is None:
            counts = torch.zeros(WIDTH, dtype=torch.int64, device=x.device)
            counted(x, fmt, counts)
            seen.keep(identity, stamp, fmt, counts)
        row += counts

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

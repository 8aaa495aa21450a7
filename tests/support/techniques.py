"""The audit of a step under an assignment; operands and rows for plans of accumulators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from lpkernels import functional
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.nn.observing import EVERYTHING, Call, Visitor, observe
from lpkernels.nn.observing.visiting import all_tensors
from lpkernels.techniques.accumulation import plan
from lpkernels.techniques.accumulation.planning import PlanRow
from lpkernels.techniques.assignment import Assigned, running
from lpkernels.techniques.assignment.graph import key_of
from lpkernels.techniques.assignment.rounding import RoundingTable
from lpkernels.techniques.assignment.running import Session
from lpkernels.techniques.assignment.tracing import Trace, TracedCall


class Audit(NamedTuple):
    """The roundings of one step: how often each tensor of the assignment was rounded, and a line
    for each point in which the step is not as the assignment says."""

    rounded: Mapping[str, int]
    departures: tuple[str, ...]


def audit(assigned: Assigned, batch: tuple[Any, Any]) -> Audit:
    """Runs one forward and backward pass and compares it with the assignment.

    Each tensor of the assignment that an operation reads, and each gradient that comes back to a
    result, must be in its format, and no other tensor may have been rounded. Every tensor must have
    been rounded as often as `fan_out` says: once, or a gradient once for each consumer.
    """
    watch = _Watch(assigned, assigned._plan(assigned.loss, *batch))
    assigned.model.zero_grad()
    with watch.patched(), observe(assigned.model, watch, operations=EVERYTHING):
        # The gradients are observed too, while it lasts.
        assigned(*batch).backward()
    for name, p in assigned.model.named_parameters():
        if p.grad is not None:
            watch.check_gradient(key_of(name, "grad_weight"), p.grad)
    watch.check_numbers()
    return Audit(dict(watch.rounded), tuple(watch.departures))


class _Watch(Visitor):
    """Looks at the tensors of one step."""

    def __init__(self, assigned: Assigned, plan: Trace) -> None:
        self.rounded: Counter[str] = Counter()
        self.departures: list[str] = []
        self._assigned, self._plan = assigned, plan
        self._assignment = assigned.assignment
        self._memories: dict[StorageWeakRef, str] = {}
        self._results: dict[Call, str] = {}
        # The forward pass, and the call that is being computed.
        self._session: Session | None = None
        self._computes: TracedCall | None = None

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Inside it, roundings and calls of several operations are seen too."""
        round_, see, in_parts = RoundingTable.rounded, Session.see, running.in_parts

        def rounded(table: RoundingTable, x: Tensor, key: str, *, in_place: bool = False) -> Tensor:
            with torch._C.DisableTorchFunction():
                before = x.detach().clone() if in_place else x.detach()
            y = round_(table, x, key, in_place=in_place)
            self._rounds(key, before, y)
            return y

        def seen(session: Session, function: Any, args: Any, kwargs: Any, compute: Any) -> Any:
            self._session = session
            return see(session, function, args, kwargs, self._computing(session, compute))

        def parts(name: str, function: Any, args: Any, kwargs: Any, *rest: Any) -> Any:
            assert self._session is not None
            self.reads(self._session.plan.calls[self._session.met - 1], (args, kwargs))
            return in_parts(name, function, args, kwargs, *rest)

        with (
            mock.patch.object(RoundingTable, "rounded", rounded),
            mock.patch.object(Session, "see", seen),
            mock.patch.object(running, "in_parts", parts),
        ):
            yield

    def _computing(self, session: Session, compute: Callable[..., Any]) -> Callable[..., Any]:
        def computing(*args: Any, **kwargs: Any) -> Any:
            planned = session.plan.calls[session.met - 1]
            self._computes = None if planned.parts else planned
            try:
                return compute(*args, **kwargs)
            finally:
                self._computes = None

        return computing

    def _rounds(self, key: str, before: Tensor, after: Tensor) -> None:
        self.rounded[key] += 1
        self._memories[StorageWeakRef(after.untyped_storage())] = key
        quantizer = self._assignment.format_of(key)
        with torch._C.DisableTorchFunction():
            expected = functional.quantize(before, quantizer)
        if not quantizer.is_stochastic and not _same(expected, after):
            self.departures.append(f"{key} was not rounded to {quantizer}")

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        planned = self._computes
        if planned is None:
            return
        if len(planned.results) == 1:
            (step,) = planned.results.values()
            if not planned.in_place:
                self._results[call] = step.name
        self.reads(planned, arguments)

    def reads(self, planned: TracedCall, arguments: Any) -> None:
        """Looks at the arguments of a call."""
        if not planned.makes:
            return
        what = next((step.name for step in planned.results.values()), planned.operation)
        for x, key in zip(all_tensors({"": arguments}).values(), planned.keys, strict=True):
            found = self._memories.get(StorageWeakRef(x.untyped_storage()))
            if key is None or key not in self._assignment.tensors:
                if found is not None:
                    self.departures.append(f"{what} reads {found} in place of another tensor")
            elif not self._is_in_format(x, key):
                self.departures.append(f"{what} reads {key}, which is not in its format")

    def wants_gradient(self, call: Call, of: str) -> bool:
        return of == "result" and call in self._results

    def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
        op = self._results[call]
        key = key_of(op, "grad_activation")
        shared = (
            self._assigned.fan_out == "branches"
            and key_of(op, "activation") in self._plan.times_read
        )
        if not shared and key not in self._plan.unrounded_gradients:
            self.check_gradient(key, gradient)

    def check_gradient(self, key: str, gradient: Tensor) -> None:
        """Checks that a gradient is in its format."""
        if key in self._assignment.tensors and not self._is_in_format(gradient, key):
            self.departures.append(f"{key} is not in its format")

    def check_numbers(self) -> None:
        """Checks how often each tensor was rounded."""
        for key, times in _expected(self._assigned, self._plan).items():
            if self.rounded[key] != times:
                self.departures.append(f"{key} was rounded {self.rounded[key]} times, not {times}")

    def _is_in_format(self, x: Tensor, key: str) -> bool:
        quantizer = self._assignment.format_of(key)
        # In other formats a value's neighbours decide too.
        elementwise = isinstance(quantizer.fmt, FloatFormat | FixedFormat)
        if x.is_floating_point() and elementwise:
            with torch._C.DisableTorchFunction():
                return _same(functional.quantize(x, quantizer.fmt), x)
        return True


def _rounded_once(plan: Trace, trained: Container[str]) -> set[str]:
    """The tensors that a step rounds, if these parameters have gradients; a result that depends on
    none of them has no gradient."""
    found: set[str] = set()
    reached: set[str] = set()
    for op in plan.ops:
        found.add(key_of(op.name, "activation"))
        for name in op.full_params:
            found.add(key_of(name, "weight"))
            if name in trained:
                found.add(key_of(name, "grad_weight"))
                reached.add(op.name)
        if not reached.isdisjoint(op.inputs):
            reached.add(op.name)
        gradient = key_of(op.name, "grad_activation")
        if op.name in reached and gradient not in plan.unrounded_gradients:
            found.add(gradient)
    return found


def _expected(assigned: Assigned, plan: Trace) -> dict[str, int]:
    trained = {name for name, p in assigned.model.named_parameters() if p.requires_grad}
    edges = plan.times_read if assigned.fan_out == "branches" else Counter[str]()
    found = dict.fromkeys(assigned.assignment.tensors, 0)
    found |= dict.fromkeys(_rounded_once(plan, trained), 1)
    for op in plan.ops:
        gradient = key_of(op.name, "grad_activation")
        found[gradient] *= edges[key_of(op.name, "activation")] or 1
    return found


def _same(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach(), b.detach()
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def mean_square(y: Any) -> Tensor:
    """A loss of the first result, large enough that its gradients survive narrow formats."""
    return (y[0] if isinstance(y, tuple) else y).square().mean() * 1024


def grad(*size: int) -> Tensor:
    return torch.randn(*size, requires_grad=True)


def linear_rows(x: Tensor, w: Tensor, **options: Any) -> tuple[PlanRow, ...]:
    """The plan of a linear layer with the weight w."""
    model = nn.Linear(w.shape[1], w.shape[0], bias=False)
    model.weight = nn.Parameter(w)
    return plan(model, x, loss=lambda y: y.sum(), **{"operand": "fp32", **options}).rows

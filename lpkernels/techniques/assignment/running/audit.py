"""The check that a step does what its assignment says, from outside, call by call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lpkernels import functional
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.nn.observing import EVERYTHING, Call, Visitor, observe
from lpkernels.techniques._nested import all_tensors
from lpkernels.techniques.assignment.operations import key_of
from lpkernels.techniques.assignment.running._plan import PlannedCall, RunPlan
from lpkernels.techniques.assignment.running.assigned import Assigned, check_assigned
from lpkernels.techniques.assignment.tracing.following import as_pair


@dataclass(frozen=True)
class Audit:
    """The roundings of one step.

    rounded: how often each tensor of the assignment was rounded. departures: one line for each
    point in which the step is not as the assignment says; () where there is none.
    """

    rounded: Mapping[str, int]
    departures: tuple[str, ...]

    def check(self) -> None:
        """Raises: RuntimeError: there are departures; it names the first ones."""
        if self.departures:
            shown = "; ".join(self.departures[:5])
            raise RuntimeError(f"audit: {len(self.departures)} departures: {shown}")


def audit(assigned: Assigned, batch: tuple[Any, Any]) -> Audit:
    """Runs one forward and backward pass and compares it with the assignment.

    An observer around the run looks at every call of a function that the operations themselves
    make: each tensor of the assignment that one reads, and each gradient that comes back to a
    result, must be in its format, and no other tensor may have been rounded. Every tensor must have
    been rounded as often as `fan_out` says: once, or a gradient once for each consumer. The
    gradients of the network's inputs, which nobody computes, and the loss's own must not have been
    rounded at all.

    The audit counts as a batch: gradients are added to those that are there, and buffers and random
    states change as in training. Call it between steps.

    Args:
        assigned: made by `assign`.
        batch: (input, target), as `assigned` takes them.
    Returns: an Audit.
    Raises: TypeError: `assign` did not make `assigned`, or batch is no pair. Else as
        assigned(input, target).

    >>> from lpkernels.techniques.assignment import assign, audit, demote, group, trace
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> assigned = assign(model, loss, demote(group(trace(model, loss, batch)), 1))
    >>> audit(assigned, batch).departures
    ()
    """
    check_assigned("audit", assigned)
    input, target = as_pair("audit", batch)
    plan, table = assigned._plan(assigned.loss, input, target), assigned._table
    watch = _Watch(assigned, plan)
    table.told, table.read_in_parts = watch.told, watch.reads
    try:
        before = {n: p.grad for n, p in assigned.model.named_parameters()}
        for p in assigned.model.parameters():
            p.grad = None
        with observe(assigned.model, watch, operations=EVERYTHING):
            # The gradients are observed too, while it lasts.
            assigned(input, target).backward()
    finally:
        table.told = table.read_in_parts = None
    for name, p in assigned.model.named_parameters():
        gradient, earlier = p.grad, before[name]
        if gradient is not None:
            watch.check_gradient(key_of(name, "grad_weight"), gradient)
        if earlier is not None:
            p.grad = earlier if gradient is None else earlier.add_(gradient)
    watch.check_numbers()
    return Audit(dict(watch.rounded), tuple(watch.departures))


class _Watch(Visitor):
    """Looks at the tensors of one step."""

    def __init__(self, assigned: Assigned, plan: RunPlan) -> None:
        self.rounded: Counter[str] = Counter()
        self.departures: list[str] = []
        self._assigned, self._plan = assigned, plan
        self._assignment = assigned.assignment
        self._memories: dict[StorageWeakRef, str] = {}
        self._results: dict[Call, str] = {}

    def told(self, key: str, before: Tensor, after: Tensor) -> None:
        """A tensor was rounded, or a gradient passed."""
        if after is before and key in self._plan.passed:
            return
        self.rounded[key] += 1
        self._memories[StorageWeakRef(after.untyped_storage())] = key
        with torch._C.DisableTorchFunction():
            expected = functional.quantize(before, self._assignment.format_of(key))
        if not self._assignment.format_of(key).is_stochastic and not _same(expected, after):
            self.departures.append(f"{key} was not rounded to {self._assignment.format_of(key)}")

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        session = self._assigned._running
        planned = None if session is None else session.computes
        if planned is None:
            return
        if len(planned.results) == 1 and planned.results[0].place == "result":
            self._results[call] = planned.results[0].op
        self.reads(planned, arguments)

    def reads(self, planned: PlannedCall, arguments: Any) -> None:
        """Looks at the arguments of a call."""
        if not planned.makes:
            return
        what = planned.results[0].op if planned.results else planned.operation
        for x, key in zip(all_tensors({"": arguments}).values(), planned.reads, strict=True):
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
            self._assigned.fan_out == "branches" and key_of(op, "activation") in self._plan.consumed
        )
        if not shared and key not in self._plan.passed:
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


def _expected(assigned: Assigned, plan: RunPlan) -> dict[str, int]:
    trained = {name for name, p in assigned.model.named_parameters() if p.requires_grad}
    edges: Counter[str] = Counter()
    if assigned.fan_out == "branches":
        for call in plan.calls:
            if call.makes:
                edges.update(key for key in call.reads if key is not None)
    found = dict.fromkeys(assigned.assignment.tensors, 0)
    found |= dict.fromkeys(plan.elements(trained), 1)
    for op in plan.ops:
        gradient = key_of(op.name, "grad_activation")
        found[gradient] *= edges[key_of(op.name, "activation")] or 1
    return found


def _same(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach(), b.detach()
    return bool(((a == b) | (a.isnan() & b.isnan())).all())

"""Training under an assignment: every tensor of it is rounded, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Module

from lpkernels.formats.checks import checked_bool
from lpkernels.nn.observing.tracing import arguments
from lpkernels.nn.selecting import check_model
from lpkernels.techniques import checks
from lpkernels.techniques._nested import all_tensors
from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.operations import group
from lpkernels.techniques.assignment.promotion import FORWARD, Promoter, Promotion
from lpkernels.techniques.assignment.running._plan import RunPlan, kind_of, planned
from lpkernels.techniques.assignment.running._rounding import (
    CopiedCounts,
    Count,
    Flagged,
    RoundingTable,
)
from lpkernels.techniques.assignment.running._session import Session
from lpkernels.techniques.assignment.running.keeping import Keeper, Memory, Meter

FanOut = Literal["sum", "branches"]


def assign(
    model: Module,
    loss: Callable[[Any, Any], Tensor],
    assignment: Assignment,
    *,
    promote: float | Promoter | None = 0.01,
    fan_out: FanOut = "sum",
    pack: bool = True,
    counts: bool = True,
) -> Assigned:
    """A model and its loss to be trained under an assignment; the model itself is not changed.

    Every tensor of the assignment is rounded once: a result when it is made, a parameter when it is
    first read (the optimizer keeps the values it has, as master weights), a gradient when backward
    has summed it. Inside, an operation computes as it would without the assignment: in float32, or
    by the recipe of the model's layers. Operations read only rounded tensors, also where backward
    reads the operation's own result (ReLU, softmax, sigmoid): it reads the stored one.

    The gradient of the loss's own value, which is the loss scale, is not rounded, nor is that of a
    scalar that nothing else reads and that gets the loss's gradient as it is or negated. A loop
    that trains so stands in docs/assignments.md.

    Args:
        model, loss: as for `trace`.
        assignment: of this model, this loss and this batch size.
        promote: the share of a tensor's elements that overflow from which `Assigned.step` promotes
            it; None: none is promoted. Or a Promoter of this assignment.
        fan_out: how the gradient of a tensor that several operations read is rounded: "sum", the
            sum of their shares, which is one stored tensor; or "branches", as the paper's released
            code does: each share, and not their sum. Parameters: always the sum.
        pack: whether operations keep their tensors for backward as codes, bit for bit the same: a
            tensor of the assignment once, in its format, however many operations keep it.
        counts: whether overflow and underflow are counted; without it nothing is promoted.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), and their released code for when tensors are
        rounded. The tensors of their Algorithm 1 are inputs of operations, parameters and the
        gradients of both: the loss's value, which no operation reads, has no gradient among them.
        Ours: a sum of scalars counts as the loss's value; fan_out="sum"; and ReLU's backward, which
        reads its rounded result (in the release the one before rounding).
    Raises:
        TypeError: no module, no Assignment, another type of an option.
        ValueError: a promoter of another assignment, or promotion without counts. Another model,
            loss or batch is found by the first call.

    >>> from lpkernels.techniques.assignment import assign, demote, group, trace
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> assigned = assign(model, loss, demote(group(trace(model, loss, batch)), 1))
    >>> assigned(*batch).backward()
    """
    return Assigned(model, loss, assignment, promote, fan_out, pack, counts)


class Assigned:
    """Made by `assign`, with its model, loss, assignment, promote, fan_out, pack, counts."""

    def __init__(
        self,
        model: Module,
        loss: Callable[[Any, Any], Tensor],
        assignment: Assignment,
        promote: float | Promoter | None,
        fan_out: FanOut,
        pack: bool,
        counts: bool,
    ) -> None:
        check_model("assign", model)
        self._promoter = _promoter(assignment, promote, counts)
        _check_options(fan_out, pack, counts)
        self.model, self.loss = model, loss
        self.fan_out, self.packs = fan_out, pack
        self._table = RoundingTable(assignment, counts)
        self._table.check_parameters(model)
        self._plans: dict[Any, RunPlan] = {}
        self._meter = Meter()
        self._flag: Tensor | None = None
        self._stepped = True
        self._copied: CopiedCounts | None = None
        self._counts: dict[str, Count] = {}
        self._loss_key = ""

    @property
    def assignment(self) -> Assignment:
        """The assignment of the next step."""
        return self._promoter.assignment

    @property
    def promotions(self) -> list[Promotion]:
        """The promotions so far, in order; their step is a number of calls of `step`."""
        return self._promoter.promotions

    @property
    def counts(self) -> Mapping[str, Count]:
        """The counts of the step that `step` looked at last: by key, for each tensor that was
        rounded in it. They are empty before the second call of `step`."""
        return self._counts

    @property
    def overflowed(self) -> Tensor:
        """A 0-d bool tensor on the device: whether, since `step`, the loss was not finite or a
        tensor that is kept for backward held a value without a code. Gradients are then NaN, so
        that a loss scaler skips the step."""
        if self._flag is None:
            return torch.zeros((), dtype=torch.bool, device="cpu")
        return self._flag

    def __call__(self, input: Any, target: Any) -> Tensor:
        """The loss of one batch, rounded; its gradient is not. Several calls before `step` are one
        step (their gradients add up).

        Args: input, target: as for `trace`. A later batch may have another size (the last of an
            epoch, say): the operations must be the same.
        Raises:
            ValueError: the assignment is of another model, loss or batch; nothing is changed then.
            RuntimeError: the model calls other functions than on the batch before.
        """
        plan = self._plan(self.loss, input, target)
        args, kwargs = arguments(input)
        flag = self._started(input)
        keeper = self._keeper(args, kwargs, target)
        session = self._session(plan, keeper)
        with session.running():
            args, kwargs = session.inputs(args, kwargs)
            value = self.loss(self.model(*args, **kwargs), target)
        flag |= ~value.detach().isfinite().all()
        result: Tensor = Flagged.apply(value, flag)
        return result

    def check_batch(self, input: Any, target: Any) -> None:
        """Checks a batch as the first call checks its batch, without a step. Afterwards batches
        of other sizes may come first, as they do where a run is resumed.

        Raises: ValueError: the assignment is of another model, loss or batch.
        """
        self._plan(self.loss, input, target)

    def output(self, input: Any) -> Any:
        """The model's output under the current formats, to evaluate it; the loss is not computed.
        Without gradients and counts. The model's output in float32 is model(input).

        Raises: ValueError: operations that the assignment has no tensors for.
        """
        args, kwargs = arguments(input)
        with torch.no_grad(), self._table.not_counting():
            session = self._session(self._plan(None, input, None), None)
            with session.running():
                args, kwargs = session.inputs(args, kwargs)
                return self.model(*args, **kwargs)

    def step(self) -> tuple[str, ...]:
        """After the optimizer: the keys that are in high precision from the next step on.

        The counts of this step start on their way to the host; the counts of the step before have
        arrived and decide. So a tensor that overflows in step t is promoted when step t + 1 ends,
        and is in high precision from step t + 2 on, on every device. The paper's rule is one step
        faster. A step whose loss was not finite promotes nothing.
        """
        self._stepped = True
        self._meter.last = None
        if not self._table.counting:
            return ()
        before, self._copied = self._copied, self._table.copied()
        return () if before is None else self._tell_promoter(self._table.read(before))

    def memory(self) -> Memory:
        """The most that was kept for backward at any moment since the last call of `memory`."""
        most = self._meter.most
        self._meter.reset()
        return most

    def state_dict(self) -> dict[str, Any]:
        """Plain values: the promotions, and the counts that wait for the next step."""
        waiting = None
        if self._copied is not None:
            read = self._table.read(self._copied)
            waiting = {
                key: (c.overflow, c.underflow, c.nonfinite, c.numel) for key, c in read.items()
            }
        return {"promoter": self._promoter.state_dict(), "waiting": waiting}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over the state of another object of the same assignment; call it between steps.

        Raises: ValueError: the state is of another assignment, or this object has promoted already.
        """
        waiting = state["waiting"]
        unknown = [key for key in waiting or () if key not in self._table.rows]
        if unknown:
            raise ValueError(
                f"Assigned: the state counts {unknown[0]!r}, which the assignment lacks; load it "
                "for the assignment it was saved with"
            )
        self._promoter.load_state_dict(state["promoter"])
        self._table.write(self.assignment)
        counts = {key: Count(*values) for key, values in (waiting or {}).items()}
        self._copied = None if waiting is None else self._table.as_copied(counts)

    def _tell_promoter(self, counts: dict[str, Count]) -> tuple[str, ...]:
        self._counts = counts
        tensors = self.assignment.tensors
        last = counts.get(self._loss_key)
        if last is not None and last.nonfinite:
            counts = {}
        overflow = {
            key: count.overflow_ratio
            for key, count in counts.items()
            if tensors[key].kind in FORWARD
        }
        promoted = self._promoter.update(overflow)
        if promoted:
            self._table.write(self.assignment)
        return promoted

    def _session(self, plan: RunPlan, keeper: Keeper | None) -> Session:
        names = {id(p): name for name, p in self.model.named_parameters()}
        return Session(self._table, plan, names, keeper, self.fan_out == "branches")

    def _keeper(self, args: Any, kwargs: Any, target: Any) -> Keeper | None:
        if self._flag is None or not torch.is_grad_enabled():
            return None
        there = [*self.model.parameters(), *self.model.buffers()]
        there += all_tensors({"": [*args, *kwargs.values(), target]}).values()
        known = {StorageWeakRef(x.untyped_storage()) for x in there}
        return Keeper(self._meter, known, self._flag, self.packs)

    def _started(self, input: Any) -> Tensor:
        """The flag of this step."""
        if self._stepped or self._flag is None:
            self._stepped = False
            self._flag = torch.zeros((), dtype=torch.bool, device=self._device(input))
        return self._flag

    def _device(self, input: Any) -> torch.device:
        known = [*self.model.parameters(), *all_tensors({"": input}).values()]
        return known[0].device if known else torch.device("cpu")

    def _plan(self, loss: Callable[[Any, Any], Tensor] | None, input: Any, target: Any) -> RunPlan:
        """The run plan of batches of these sizes, in the modes of the modules."""
        kind = self._kind(loss, input, target)
        if kind not in self._plans:
            batch, records = (input, target), torch.is_grad_enabled()
            plan = planned(self.model, loss, batch, records)
            self._check(plan, loss is None)
            self._plans[kind] = plan
        return self._plans[kind]

    def _kind(self, loss: Any, input: Any, target: Any) -> Any:
        modes = tuple(module.training for module in self.model.modules())
        return (loss is None, torch.is_grad_enabled(), modes, kind_of(input), kind_of(target))

    def _check(self, plan: RunPlan, is_output: bool) -> None:
        groups = group(plan.ops)
        if not self._plans and not is_output:
            self.assignment.check(groups)
            self._loss_key = f"{plan.ops[-1].name}.Y"
            return
        found = {tensor.key for each in groups for tensor in each.tensors}
        if not is_output:
            self.assignment.check(groups, batch=False)
        unknown = found - self._table.rows.keys()
        if unknown:
            raise ValueError(
                f"assign: in this mode the model has tensors that the assignment lacks, such as "
                f"{min(unknown)!r}; it was made of a trace of other operations"
            )


def check_assigned(function: str, assigned: Any) -> None:
    """Raises: TypeError: `assign` did not make it. function: the caller, as the error names it."""
    if not isinstance(assigned, Assigned):
        raise TypeError(
            f"{function}: expected what assign(model, loss, assignment) makes, got "
            f"{type(assigned).__name__}"
        )


def _promoter(assignment: Any, promote: Any, counts: Any) -> Promoter:
    if not isinstance(assignment, Assignment):
        raise TypeError(
            f"assign: expected an Assignment, such as demote(...), got {type(assignment).__name__}"
        )
    if promote is not None and counts is False:
        raise ValueError(
            "assign: promotion needs counts; give promote=None, or leave counts=False away"
        )
    if not isinstance(promote, Promoter):
        return Promoter(assignment, promote)
    if promote.assignment != assignment:
        raise ValueError(
            "assign: the Promoter is of another assignment; make it of the one that is given"
        )
    return promote


def _check_options(fan_out: Any, pack: Any, counts: Any) -> None:
    checks.choice("assign: fan_out", fan_out, get_args(FanOut))
    checked_bool("assign", "pack", pack)
    checked_bool("assign", "counts", counts)

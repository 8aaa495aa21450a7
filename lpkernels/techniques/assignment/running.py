"""Training under an assignment: every tensor of it is rounded, forward and backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Module, Parameter
from torch.overrides import TorchFunctionMode

from lpkernels.formats.checks import checked_bool
from lpkernels.functional.torch_calls import watching
from lpkernels.nn.observing.observer import arguments
from lpkernels.nn.observing.visiting import all_tensors
from lpkernels.nn.selecting import check_model
from lpkernels.nn.torch_functions import name_of, operation_of
from lpkernels.techniques import checks
from lpkernels.techniques.assignment.graph import Assignment, group, key_of
from lpkernels.techniques.assignment.operations import in_parts
from lpkernels.techniques.assignment.rounding import (
    Count,
    Flagged,
    Keeper,
    Memory,
    Meter,
    Rounded,
    RoundingTable,
)
from lpkernels.techniques.assignment.rules import FORWARD, Promoter, Promotion
from lpkernels.techniques.assignment.tracing import (
    Loss,
    Trace,
    TracedCall,
    TracedOp,
    trace_calls,
)
from lpkernels.techniques.state import Stateful

FanOut = Literal["sum", "branches"]

# Attributes of a parameter that do not share its values.
_APART = frozenset("grad grad_fn".split())


class Session(TorchFunctionMode):
    """A forward pass: it meets every function that the model calls, or that an emulated layer
    computes in the function's place, and rounds its tensors. `running` is the context around it.

    branches: the shares of a gradient are rounded, and not their sum.
    """

    def __init__(
        self,
        table: RoundingTable,
        plan: Trace,
        model: Module,
        keeper: Keeper | None,
        branches: bool,
    ) -> None:
        super().__init__()
        self.plan = plan
        #: Calls of the plan so far.
        self.met = 0
        # The rounded parameters so far, by key: one copy for all that read it.
        self._rounded: dict[str, Tensor] = {}
        self._table, self._keeper, self._branches = table, keeper, branches
        # By id, the keys of the parameters that the plan reads.
        keys = {parameter.name: parameter.key for parameter in plan.parameters}
        named = model.named_parameters()
        self._keys = {id(p): keys[name] for name, p in named if name in keys}
        # Whether the call that runs keeps its result, because its gradient is a function of the
        # result.
        self._settles = False
        self._records = torch.is_grad_enabled()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Raises: RuntimeError: the model called other functions than the trace met."""
        keeping = nullcontext() if self._keeper is None else self._keeper.keeping()
        with keeping, watching(self), self:
            yield
        self._rounded.clear()
        if self.met != len(self.plan.calls):
            raise self._departs("ended")

    def result(self, x: Tensor, step: TracedOp, *, in_place: bool = False) -> Tensor:
        """An operation's result, rounded, in x's memory if `in_place`."""
        key, gradient = key_of(step.name, "activation"), key_of(step.name, "grad_activation")
        with torch._C.DisableTorchFunction():
            shared = self._branches and key in self.plan.times_read
            back = None if shared else self._back(gradient)
            y: Tensor = Rounded.apply(x, self._table, key, back, in_place)
            if self._keeper is not None:
                self._keeper.stores(y, self._table.quantizers[key])
                if self._settles:
                    self._keeper.settles(x, y)
        return y

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The network's inputs, rounded."""

        def of(number: int, x: Tensor) -> Tensor:
            step = self.plan.inputs[number]
            return x if step is None else self.result(x, step)

        return changed((tuple(args), dict(kwargs)), of)

    def results(self, call: TracedCall, args: Any, kwargs: Any, result: Any) -> Any:
        """The result of a call, whose tensors of the assignment are rounded."""

        def rounds(number: int, x: Tensor) -> Tensor:
            if number not in call.results:
                return x
            y = self.result(x, call.results[number], in_place=call.in_place)
            return x if call.in_place else y

        if call.in_place:
            changed((args, kwargs), rounds)
            return result
        return changed(result, rounds)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func)
        if name == "get" and not kwargs:
            return self._attribute(func, args)
        if name in ("set", "delete"):
            return func(*args, **(kwargs or {}))
        return self.see(func, args, kwargs or {}, func)

    def see(
        self, function: Callable[..., Any], args: Any, kwargs: Any, compute: Callable[..., Any]
    ) -> Any:
        """A function's result under the assignment."""
        args, kwargs = tuple(args), dict(kwargs)
        name = name_of(function)
        call = self._next(operation_of(name))
        if any(key is not None and (self._branches or key.endswith(".P")) for key in call.keys):
            args, kwargs = changed((args, kwargs), partial(self._operand, call))
        self._settles = call.by_its_result
        if self._keeper is not None:
            self._keeper.starts()
        if call.parts:

            def store(x: Tensor, part: str) -> Tensor:
                return self.result(x, call.parts[part]) if part in call.parts else x

            result = in_parts(name, function, args, kwargs, compute, store)
        else:
            result = compute(*args, **kwargs)
            if call.results:
                result = self.results(call, args, kwargs, result)
            elif self._keeper is not None and call.copies in self._table.rows:
                if isinstance(result, Tensor):
                    self._keeper.copies(result, self._table.quantizers[call.copies])
        for key in call.last_reads:
            self._rounded.pop(key, None)
        return result

    def _attribute(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """An attribute of a tensor; an attribute that shares a parameter's values has the rounded
        values."""
        name = getattr(getattr(function, "__self__", None), "__name__", "")
        value = function(*args)
        if name in _APART or id(args[0]) not in self._keys or not isinstance(value, Tensor):
            return value
        return function(self._parameter(args[0]))

    def _next(self, operation: str) -> TracedCall:
        calls = self.plan.calls
        if self.met == len(calls) or calls[self.met].operation != operation:
            raise self._departs(f"calls {operation!r}")
        self.met += 1
        return calls[self.met - 1]

    def _departs(self, what: str) -> RuntimeError:
        calls = self.plan.calls
        expected = "ended" if self.met == len(calls) else f"called {calls[self.met].operation!r}"
        return RuntimeError(
            f"assign: the model {what} where its trace {expected}, at call {self.met}; a model "
            "that computes other operations from step to step cannot run under one assignment"
        )

    def _operand(self, call: TracedCall, number: int, x: Tensor) -> Tensor:
        """Tensor `number` among the arguments of a call, as the call reads it."""
        if isinstance(x, Parameter) and id(x) in self._keys:
            return self._parameter(x)
        maker = call.reads[number]
        if not self._branches or not call.makes or not isinstance(maker, TracedOp):
            return x
        if not maker.name or not x.requires_grad or not torch.is_grad_enabled():
            return x
        # One consumer's share of the gradient is rounded here.
        back = self._back(key_of(maker.name, "grad_activation"))
        in_place = call.in_place and number in call.results
        with torch._C.DisableTorchFunction():
            branch: Tensor = Rounded.apply(x, self._table, None, back, in_place)
        return branch

    def _back(self, gradient: str) -> Callable[[Tensor], Tensor]:
        """The function that rounds the gradient `gradient`."""
        passed = gradient in self.plan.unrounded_gradients
        return partial(self._table.passed if passed else self._table.rounded, key=gradient)

    def _parameter(self, p: Tensor) -> Tensor:
        """The rounded copy of a parameter: one copy for all calls that read it."""
        key = self._keys[id(p)]
        if key not in self._rounded:
            back = self._back(key_of(key.removesuffix(".P"), "grad_weight"))
            with torch._C.DisableTorchFunction(), torch.set_grad_enabled(self._records):
                y: Tensor = Rounded.apply(p, self._table, key, back, False)
                if self._keeper is not None:
                    self._keeper.stores(y, self._table.quantizers[key])
            self._rounded[key] = y
        return self._rounded[key]


def assign(
    model: Module,
    loss: Loss,
    assignment: Assignment,
    *,
    promote: float | Promoter | None = 0.01,
    fan_out: FanOut = "sum",
    pack: bool = True,
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
            it; None: none is promoted, and nothing is counted. Or a Promoter of this assignment.
        fan_out: how the gradient of a tensor that several operations read is rounded: "sum", the
            sum of their shares, which is one stored tensor; or "branches", as the paper's released
            code does: each share, and not their sum. Parameters: always the sum.
        pack: whether operations keep their tensors for backward as codes, bit for bit the same: a
            tensor of the assignment once, in its format, however many operations keep it.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), and their released code for when tensors are
        rounded. The tensors of their Algorithm 1 are inputs of operations, parameters and the
        gradients of both: the loss's value, which no operation reads, has no gradient among them.
        Ours: a sum of scalars counts as the loss's value; fan_out="sum"; and ReLU's backward, which
        reads its rounded result (in the release the one before rounding).
    Raises:
        TypeError: no module, no Assignment, another type of an option.
        ValueError: a promoter of another assignment. Another model, loss or batch is found by the
            first call.

    >>> from lpkernels.techniques.assignment import assign, demote, group, trace
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> assigned = assign(model, loss, demote(group(trace(model, loss, batch)), 1))
    >>> assigned(*batch).backward()
    """
    return Assigned(model, loss, assignment, promote, fan_out, pack)


class Assigned(Stateful):
    """Made by `assign`, with its model, loss, assignment, promote, fan_out and pack.

    Its state holds the promotions, the counts that wait for the next step, and the mean bit ratio.
    """

    _progress = ("_promotion_state", "_pending_counts", "_steps", "_bit_ratios")

    def __init__(
        self,
        model: Module,
        loss: Loss,
        assignment: Assignment,
        promote: float | Promoter | None,
        fan_out: FanOut,
        pack: bool,
    ) -> None:
        check_model("assign", model)
        checks.function("assign: loss", loss, "loss(output, target)")
        checks.choice("assign: fan_out", fan_out, get_args(FanOut))
        checked_bool("assign", "pack", pack)
        promoter = promote if isinstance(promote, Promoter) else Promoter(assignment, promote)
        if promoter.assignment != assignment:
            raise ValueError(
                "assign: the Promoter is of another assignment; make it of the one that is given"
            )
        self.model, self.loss = model, loss
        self.fan_out, self.packs = fan_out, pack
        self._promoter = promoter
        self._table = RoundingTable(assignment, promote is not None)
        for name, parameter in model.named_parameters():
            for key in (key_of(name, "weight"), key_of(name, "grad_weight")):
                if key in self._table.rows:
                    self._table.check_axis(key, parameter)
        self._plans: dict[Any, Trace] = {}
        self._meter = Meter()
        self._flag: Tensor | None = None
        self._begins_step = True
        # Reads the counts of the step before.
        self._read_counts: Callable[[], dict[str, Count]] = dict
        #: By key, the counts of every tensor that was rounded in the step that `step` looked at
        #: last; empty before the second call of `step`.
        self.counts: dict[str, Count] = {}
        self._loss_key = ""
        self._steps, self._bit_ratios = 0, 0.0

    @property
    def assignment(self) -> Assignment:
        """The assignment of the next step."""
        return self._promoter.assignment

    @property
    def promotions(self) -> list[Promotion]:
        """The promotions so far, in order; their step is a number of calls of `step`."""
        return self._promoter.promotions

    @property
    def mean_bit_ratio(self) -> float:
        """The mean of the assignments' bit ratios over the steps so far, which the paper plots as
        memory; 0 before the first."""
        return self._bit_ratios / self._steps if self._steps else 0.0

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
        resident = [*self.model.parameters(), *self.model.buffers()]
        resident += all_tensors({"": [*args, *kwargs.values(), target]}).values()
        if self._begins_step or self._flag is None:
            device = next(iter(resident)).device if resident else torch.device("cpu")
            self._flag, self._begins_step = torch.zeros((), dtype=torch.bool, device=device), False
        flag = self._flag
        keeper = None
        if torch.is_grad_enabled():
            storages = {StorageWeakRef(x.untyped_storage()) for x in resident}
            keeper = Keeper(self._meter, storages, flag, self.packs)
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

    @contextmanager
    def evaluating(self, *, in_formats: bool = True) -> Iterator[None]:
        """Inside it the model itself gives its output under the current formats, to be evaluated;
        without gradients and counts. Its arguments are given all in their places, or all by name.

        in_formats: False: the model computes in float32 again, within such a context as well.

        A call there raises: ValueError: operations that the assignment has no tensors for.
        """
        attributes = vars(self.model)
        before = attributes.pop("forward", None)
        if in_formats:
            attributes["forward"] = self._forward
        try:
            yield
        finally:
            attributes.pop("forward", None)
            if before is not None:
                attributes["forward"] = before

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        counting, self._table.counting = self._table.counting, False
        try:
            with self.evaluating(in_formats=False), torch.no_grad():
                session = self._session(self._plan(None, kwargs or args, None), None)
                with session.running():
                    inputs, named = session.inputs(args, kwargs)
                    return self.model(*inputs, **named)
        finally:
            self._table.counting = counting

    def step(self) -> tuple[str, ...]:
        """After the optimizer: the keys that are in high precision from the next step on.

        The counts of this step start on their way to the host; the counts of the step before have
        arrived and decide. So a tensor that overflows in step t is promoted when step t + 1 ends,
        and is in high precision from step t + 2 on, on every device. The paper's rule is one step
        faster. A step whose loss was not finite promotes nothing.
        """
        self._begins_step = True
        self._steps += 1
        self._bit_ratios += self.assignment.bit_ratio
        self._meter.unpacked = None
        if not self._table.counting:
            return ()
        counts = self.counts = self._pending_counts
        self._read_counts = self._table.take_counts()
        if not counts:
            return ()
        loss = counts.get(self._loss_key)
        if loss is not None and loss.nonfinite:
            counts = {}
        tensors = self.assignment.tensors
        overflow = {k: c.overflow_ratio for k, c in counts.items() if tensors[k].kind in FORWARD}
        promoted = self._promoter.update(overflow)
        if promoted:
            self._table.write(self.assignment)
        return promoted

    def memory(self) -> Memory:
        """The most that was kept for backward at any moment since the last call of `memory`."""
        most = self._meter.most
        self._meter.reset()
        return most

    @property
    def _promotion_state(self) -> dict[str, Any]:
        return self._promoter.state_dict()

    @_promotion_state.setter
    def _promotion_state(self, state: Mapping[str, Any]) -> None:
        self._promoter.load_state_dict(state)

    @property
    def _pending_counts(self) -> dict[str, Count]:
        return self._read_counts()

    @_pending_counts.setter
    def _pending_counts(self, counts: Mapping[str, Iterable[int]]) -> None:
        for key in counts:
            if key not in self._table.rows:
                raise ValueError(
                    f"load_state_dict: pending_counts: counts {key!r}, which the assignment lacks; "
                    "load the state for the assignment it was saved with"
                )
        self._read_counts = partial(dict, {key: Count(*values) for key, values in counts.items()})

    def _resume(self) -> None:
        self._table.write(self.assignment)

    def _session(self, plan: Trace, keeper: Keeper | None) -> Session:
        return Session(self._table, plan, self.model, keeper, self.fan_out == "branches")

    def _plan(self, loss: Loss | None, input: Any, target: Any) -> Trace:
        """The trace of batches of these sizes, in the modes of the modules."""
        modes = tuple(module.training for module in self.model.modules())
        grad = torch.is_grad_enabled()
        kind = (loss is None, grad, modes, _kind_of(input), _kind_of(target))
        if kind not in self._plans:
            plan = trace_calls(self.model, loss, (input, target), grad=grad)
            self._check(plan, loss is None)
            self._plans[kind] = plan
        return self._plans[kind]

    def _check(self, plan: Trace, is_output: bool) -> None:
        groups = group(plan.ops)
        if not is_output:
            self.assignment.check(groups, batch=not self._plans)
            self._loss_key = self._loss_key or key_of(plan.steps[-1].name, "activation")
        keys = {tensor.key for home in groups for tensor in home.tensors}
        unknown = keys - self._table.rows.keys()
        if unknown:
            raise ValueError(
                f"assign: in this mode the model has tensors that the assignment lacks, such as "
                f"{min(unknown)!r}; it was made of a trace of other operations"
            )


def changed(value: Any, change: Callable[[int, Tensor], Tensor]) -> Any:
    """value with change(number, tensor) for each tensor inside nested tuples, lists and mappings,
    in the order of `all_tensors`; containers without changes stay."""
    numbers = itertools.count()

    def walk(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(next(numbers), value)
        if isinstance(value, Mapping):
            fields = {key: walk(field) for key, field in value.items()}
            if all(fields[key] is field for key, field in value.items()):
                return value
            if type(value) is dict or not all(isinstance(key, str) for key in fields):
                return fields
            return type(value)(**fields)
        if isinstance(value, list | tuple):
            items = [walk(item) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    return walk(value)


def _kind_of(value: Any) -> Any:
    """The sizes and types of the tensors in `value`, and its other values: they decide on the
    operations."""
    if isinstance(value, Tensor):
        return (value.shape, value.dtype)
    if isinstance(value, Mapping):
        return tuple((key, _kind_of(field)) for key, field in value.items())
    if isinstance(value, list | tuple):
        return tuple(_kind_of(item) for item in value)
    return repr(value) if isinstance(value, bool | int | float | str) else type(value)

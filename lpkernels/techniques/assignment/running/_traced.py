"""A step under an assignment where torch.compile traces it: the same bits, in one graph.

Formats stand in a table that the graph reads when it runs, so a promotion changes numbers in memory
and no code. Codes that are kept for backward have the width of high precision for the same reason.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from lpkernels.functional.recording import first_order
from lpkernels.functional.unchecked import keeps_codes, rounded_by_row, through_codes
from lpkernels.nn.observing.tracing import arguments
from lpkernels.techniques._nested import changed
from lpkernels.techniques.assignment.operations import canonical, key_of
from lpkernels.techniques.assignment.running._plan import ForwardPass, PlannedCall, RunPlan
from lpkernels.techniques.assignment.running._rounding import RoundingTable
from lpkernels.techniques.assignment.tracing.parts import cross_entropy

# A row's number, whether it draws random bits, and the bits of its codes (0 where none are made).
RowUse = tuple[int, bool, int]

# The gradients of what reads its result: (gradient, result, dimension) -> gradient of the operand.
_BY_RESULT: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "relu": lambda g, y, dim: torch.where(y > 0, g, 0),
    "sigmoid": lambda g, y, dim: torch.ops.aten.sigmoid_backward(g, y),
    "tanh": lambda g, y, dim: torch.ops.aten.tanh_backward(g, y),
    "exp": lambda g, y, dim: g * y,
    "softmax": lambda g, y, dim: torch.ops.aten._softmax_backward_data(g, y, dim, y.dtype),
    "log_softmax": lambda g, y, dim: torch.ops.aten._log_softmax_backward_data(g, y, dim, y.dtype),
}

# What the compiler calls for Python's operators, whichever method of a tensor the trace has met.
_OPERATORS: dict[Callable[..., Any], str] = {
    **{getattr(operator, f"{i}{name}"): name for name in ("add", "sub", "mul") for i in ("", "i")},
    operator.truediv: "div",
    operator.itruediv: "div",
    operator.matmul: "matmul",
    operator.neg: "neg",
    operator.pow: "pow",
}


class _Rounded(torch.autograd.Function):
    """x by one row of the table, its gradient by another."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        rows: Tensor,
        counts: Tensor | None,
        flag: Tensor,
        value: RowUse,
        gradient: RowUse,
    ) -> Tensor:
        ctx.save_for_backward(rows, counts)
        ctx.gradient = gradient
        return _stored(x, rows, counts, flag, value)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, counts = ctx.saved_tensors
        return _by_row(grad, rows, counts, ctx.gradient), *[None] * 5


class _OfResult(torch.autograd.Function):
    """`_Rounded` of a function's result, where backward computes the gradient from the result; x is
    the function's operand."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        result: Tensor,
        rows: Tensor,
        counts: Tensor | None,
        flag: Tensor,
        value: RowUse,
        gradient: RowUse,
        name: str,
        dim: int,
    ) -> Tensor:
        y = _stored(result, rows, counts, flag, value)
        ctx.save_for_backward(rows, counts, y)
        ctx.gradient, ctx.name, ctx.dim = gradient, name, dim
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, counts, y = ctx.saved_tensors
        grad = _by_row(grad, rows, counts, ctx.gradient)
        return _BY_RESULT[ctx.name](grad, y, ctx.dim), *[None] * 8


def _by_row(x: Tensor, rows: Tensor, counts: Tensor | None, use: RowUse) -> Tensor:
    number, stochastic, _ = use
    if counts is not None:
        counts = counts[number] if number < len(counts) else None
    return rounded_by_row(x, rows, number, stochastic, counts)


def _stored(x: Tensor, rows: Tensor, counts: Tensor | None, flag: Tensor, use: RowUse) -> Tensor:
    """x rounded, and decoded from its codes where codes are kept."""
    number, _, bits = use
    y = _by_row(x, rows, counts, use)
    return through_codes(y, flag, rows, number, bits) if bits else y


class Traced(ForwardPass):
    """A forward pass that the compiler follows."""

    def __init__(
        self,
        table: RoundingTable,
        plan: RunPlan,
        device: torch.device,
        code_bits: Mapping[str, int],
    ) -> None:
        super().__init__(plan)
        self._rows, self._code_bits = table.rows, code_bits
        self._table, self._counts, self._draws = table.for_compilers(device)
        self._names = [canonical(call.operation) for call in plan.calls]
        self._functions = _OPERATORS | {
            function: canonical(name) for function, name in plan.operations.items()
        }

    def started(self, flag: Tensor) -> Traced:
        """For one pass, which raises the flag where a value has no code."""
        self._flag = flag
        self._rounded, self._met = {}, 0
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        planned = self._next(func)
        if planned is None:
            return func(*args, **kwargs)
        args, kwargs = changed((tuple(args), dict(kwargs)), self._replacing(planned))
        if planned.parts is not None:
            return self._in_parts(planned, args, kwargs)
        name = canonical(planned.operation)
        if name in _BY_RESULT and planned.results:
            return self._by_its_result(planned, name, func, args, kwargs)
        result = func(*args, **kwargs)
        return self.results(planned, args, kwargs, result) if planned.results else result

    def _next(self, func: Any) -> PlannedCall | None:
        """The plan's next call; None for a call that the trace has not met, which makes no tensor
        of the assignment."""
        name = self._functions.get(func)
        calls, at = self.plan.calls, self._met
        while at < len(calls):
            if self._names[at] == name:
                self._met = at + 1
                return calls[at]
            if calls[at].makes:
                return None
            at += 1
        return None

    def ended(self) -> None:
        """Raises: RuntimeError: the model did not make every call of the plan."""
        for call in self.plan.calls[self._met :]:
            if call.makes:
                raise RuntimeError(
                    f"assign: torch.compile does not call {call.operation!r} as the model does; "
                    "run it without compiling"
                )

    def _use(self, key: str) -> RowUse:
        number = self._rows[key]
        draws = self._draws[number]
        if key in self.plan.passed:
            # A row that keeps every bit, and draws a seed where `RoundingTable.passed` does.
            return len(self._rows) + draws, draws, 0
        return number, draws, self._code_bits.get(key, 0)

    def result(self, x: Tensor, op: str) -> Tensor:
        uses = self._use(key_of(op, "activation")), self._use(key_of(op, "grad_activation"))
        y: Tensor = _Rounded.apply(x, self._table, self._counts, self._flag, *uses)
        return y

    def _replacing(self, planned: PlannedCall) -> Callable[[int, Tensor], Tensor]:
        def replaced(number: int, x: Tensor) -> Tensor:
            key = planned.reads[number]
            if not isinstance(x, Parameter) or key is None or key not in self._rows:
                return x
            if key not in self._rounded:
                gradient = key_of(key.removesuffix(".P"), "grad_weight")
                uses = self._use(key), self._use(gradient)
                self._rounded[key] = _Rounded.apply(x, self._table, self._counts, self._flag, *uses)
            return self._rounded[key]

        return replaced

    def _by_its_result(
        self, planned: PlannedCall, name: str, func: Any, args: Any, kwargs: Any
    ) -> Tensor:
        x, *rest = args
        in_place = planned.results[0].place == "argument"
        with torch.no_grad():
            result = func(x.clone() if in_place else x, *rest, **kwargs)
        dim = kwargs.get("dim", 0)
        if rest and name.endswith("softmax"):
            dim = rest[0]
        y = self._of_result(x, result, planned.results[0].op, name, dim or 0)
        return x.copy_(y) if in_place else y

    def _of_result(self, x: Tensor, result: Tensor, op: str, name: str, dim: int) -> Tensor:
        uses = self._use(key_of(op, "activation")), self._use(key_of(op, "grad_activation"))
        y: Tensor = _OfResult.apply(
            x, result, self._table, self._counts, self._flag, *uses, name, dim
        )
        return y

    def put(self, x: Tensor, op: str) -> None:
        x.copy_(self.result(x, op))

    def _in_parts(self, planned: PlannedCall, args: Any, kwargs: Mapping[str, Any]) -> Tensor:
        parts = planned.parts or {}
        if planned.operation != "cross_entropy":
            raise NotImplementedError(
                f"assign: {planned.operation} in one call is not compiled under an assignment; "
                "compute attention operation by operation, or run without compiling"
            )

        def logs(x: Tensor, axis: int) -> Tensor:
            with torch.no_grad():
                result = torch.log_softmax(x, axis)
            return self._of_result(x, result, parts["log_softmax"], "log_softmax", axis)

        return self.result(cross_entropy(logs, *args, **kwargs), parts["nll_loss"])


def compiled(
    model: Module,
    loss: Callable[[Any, Any], Tensor],
    traced: Traced,
    packs: bool,
    options: Mapping[str, Any],
) -> Callable[[Any, Any, Tensor], Tensor]:
    """The loss of (input, target), where a flag rises if a value has no code, as one graph.

    packs: whether the compiler keeps codes for backward. options: of torch.compile.
    """

    def forward(input: Any, target: Any, flag: Tensor) -> Tensor:
        args, kwargs = arguments(input)
        mode = traced.started(flag)
        args, kwargs = mode.inputs(args, kwargs)
        with mode:
            value = loss(model(*args, **kwargs), target)
        mode.ended()
        return value

    if packs:
        extra = {"custom_partitioner_fn": keeps_codes()}
        options = {**options, "options": extra | (options.get("options") or {})}
    graph: Any = torch.compile(forward, fullgraph=True, **options)
    return graph

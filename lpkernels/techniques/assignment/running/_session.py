"""One forward pass under an assignment: every call is met, and its tensors are rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from lpkernels.functional.torch_calls import watching
from lpkernels.nn.observing.functions import name_of, operation_of
from lpkernels.techniques._nested import changed
from lpkernels.techniques.assignment.operations import key_of
from lpkernels.techniques.assignment.running._plan import PlannedCall, RunPlan
from lpkernels.techniques.assignment.running._rounding import Branch, Rounded, RoundingTable
from lpkernels.techniques.assignment.running.keeping import Keeper
from lpkernels.techniques.assignment.tracing.parts import in_parts

# Attributes of a parameter that do not share its values.
_APART = frozenset("grad grad_fn".split())


class Session(TorchFunctionMode):
    """A forward pass that meets the model's functions, and the functions that layers compute in
    their place; `running` is around it."""

    def __init__(
        self,
        table: RoundingTable,
        plan: RunPlan,
        parameters: Mapping[int, str],
        keeper: Keeper | None,
        branches: bool,
    ) -> None:
        super().__init__()
        self.plan = plan
        # The rounded parameters so far, by key: one copy for all that read it.
        self._rounded: dict[str, Tensor] = {}
        # The calls of the plan so far.
        self._met = 0
        self._table, self._keeper, self._branches = table, keeper, branches
        # By id, the keys of the parameters that the plan reads.
        self._keys = {
            number: key_of(name, "weight")
            for number, name in parameters.items()
            if name in plan.parameters
        }
        # Whether the call that runs keeps its result, because its gradient is a function of the
        # result.
        self._settles = False
        self._records = torch.is_grad_enabled()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Raises: RuntimeError: the model called other functions than the trace met."""
        with ExitStack() as stack:
            if self._keeper is not None:
                stack.enter_context(self._keeper.keeping())
            stack.enter_context(watching(self))
            stack.enter_context(self)
            yield
        self._rounded.clear()
        if self._met != len(self.plan.calls):
            raise self._departs("ended")

    def result(self, x: Tensor, op: str, *, in_place: bool = False) -> Tensor:
        """An Op's result, rounded, in x's memory if `in_place`."""
        key, gradient = key_of(op, "activation"), key_of(op, "grad_activation")
        with torch._C.DisableTorchFunction():
            shared = self._branches and key in self.plan.consumed
            back = None if shared else self._back(gradient)
            y: Tensor = Rounded.apply(x, self._table, key, back, in_place)
            if self._keeper is not None:
                self._keeper.stores(y, self._table.quantizers[self._table.rows[key]])
                if self._settles:
                    self._keeper.settles(x, y)
        return y

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The network's inputs, rounded."""

        def of(number: int, x: Tensor) -> Tensor:
            op = self.plan.inputs[number]
            return x if op is None else self.result(x, op)

        return changed((tuple(args), dict(kwargs)), of)

    def results(self, planned: PlannedCall, args: Any, kwargs: Any, result: Any) -> Any:
        """The result of a call, whose tensors of the assignment are rounded."""
        ops = {(each.place, each.number): each.op for each in planned.results}

        def in_place(number: int, x: Tensor) -> Tensor:
            if ("argument", number) in ops:
                self.result(x, ops["argument", number], in_place=True)
            return x

        if planned.results[0].place == "argument":
            changed((args, kwargs), in_place)
            return result

        def new(number: int, x: Tensor) -> Tensor:
            op = ops.get(("result", number))
            return x if op is None else self.result(x, op)

        return changed(result, new)

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
        planned = self._next(operation_of(name))
        if self._replaces(planned):
            args, kwargs = changed((args, kwargs), self._replacing(planned))
        self._settles = planned.parts is not None or planned.by_its_result
        if self._keeper is not None:
            self._keeper.starts()
        if planned.parts is not None:
            parts = planned.parts

            def store(x: Tensor, part: str) -> Tensor:
                return self.result(x, parts[part]) if part in parts else x

            result = in_parts(name, function, args, kwargs, compute, store)
        else:
            result = compute(*args, **kwargs)
            if planned.results:
                result = self.results(planned, args, kwargs, result)
            elif planned.copies is not None and isinstance(result, Tensor):
                self._copied(planned.copies, result)
        for parameter in planned.last:
            self._rounded.pop(key_of(parameter, "weight"), None)
        return result

    def _attribute(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """An attribute of a tensor; an attribute that shares a parameter's values has the rounded
        values."""
        name = getattr(getattr(function, "__self__", None), "__name__", "")
        if name in _APART or id(args[0]) not in self._keys:
            return function(*args)
        found = function(*args)
        return function(self._parameter(args[0])) if isinstance(found, Tensor) else found

    def _next(self, operation: str) -> PlannedCall:
        calls = self.plan.calls
        if self._met == len(calls) or calls[self._met].operation != operation:
            raise self._departs(f"calls {operation!r}")
        self._met += 1
        return calls[self._met - 1]

    def _departs(self, what: str) -> RuntimeError:
        calls = self.plan.calls
        expected = "ended" if self._met == len(calls) else f"called {calls[self._met].operation!r}"
        return RuntimeError(
            f"assign: the model {what} where its trace {expected}, at call {self._met}; a model "
            "that computes other operations from step to step cannot run under one assignment"
        )

    def _replaces(self, planned: PlannedCall) -> bool:
        if self._branches:
            return any(planned.reads)
        return any(key is not None and key.endswith(".P") for key in planned.reads)

    def _replacing(self, planned: PlannedCall) -> Callable[[int, Tensor], Tensor]:
        dirty = {each.number for each in planned.results if each.place == "argument"}

        def replaced(number: int, x: Tensor) -> Tensor:
            if isinstance(x, Parameter) and id(x) in self._keys:
                return self._parameter(x)
            key = planned.reads[number]
            if not self._branches or not planned.makes or key is None or not key.endswith(".Y"):
                return x
            if not x.requires_grad or not torch.is_grad_enabled():
                return x
            gradient = key_of(key.removesuffix(".Y"), "grad_activation")
            with torch._C.DisableTorchFunction():
                branch: Tensor = Branch.apply(x, self._back(gradient), number in dirty)
            return branch

        return replaced

    def _back(self, gradient: str) -> Callable[[Tensor], Tensor]:
        """The function that rounds the gradient `gradient`."""
        passed = gradient in self.plan.passed
        rounded = self._table.passed if passed else self._table.rounded
        return lambda x: rounded(x, gradient)

    def _parameter(self, p: Tensor) -> Tensor:
        """The rounded copy of a parameter: one copy for all calls that read it."""
        key = self._keys[id(p)]
        if key not in self._rounded:
            gradient = key_of(key.removesuffix(".P"), "grad_weight")
            with torch._C.DisableTorchFunction(), torch.set_grad_enabled(self._records):
                y: Tensor = Rounded.apply(p, self._table, key, self._back(gradient))
                if self._keeper is not None:
                    self._keeper.stores(y, self._table.quantizers[self._table.rows[key]])
            self._rounded[key] = y
        return self._rounded[key]

    def _copied(self, key: str, y: Tensor) -> None:
        """Notes that y holds the values of the tensor `key`, maybe in memory of its own."""
        if self._keeper is not None and key in self._table.rows:
            self._keeper.copies(y, self._table.quantizers[self._table.rows[key]])

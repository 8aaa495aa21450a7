"""The modules that run, and the report of one call."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from lpkernels.arithmetic import Quantizer
from lpkernels.functional.recording import is_in_backward
from lpkernels.functional.storing import Sees, rounding_seen
from lpkernels.nn.observing.gradients import GradientHooks, unseen
from lpkernels.nn.observing.visiting import Call, Run, Visitor
from lpkernels.rng import Role


class Runs:
    """The modules that run, by hooks on them. TorchScript has no hooks: its calls belong to the
    module around it.
    """

    def __init__(self) -> None:
        self.innermost = Run("", None, None)
        # For backward, where `keeps_order`: at each change the number of the next node of a graph,
        # the innermost run, and whether a visitor is told of the call that it makes.
        self.keeps_order = self._told = False
        self._starts: list[int] = []
        self._order: list[tuple[Run, bool]] = []
        self._mode: AbstractContextManager[Any] | None = None
        self._entered = False

    @contextmanager
    def watched(
        self,
        modules: Iterable[tuple[str, Module]],
        mode: AbstractContextManager[Any] | None = None,
    ) -> Iterator[None]:
        """mode: is entered while one of the modules, which are given with their names, runs, and at
        no other time."""
        self._mode = mode
        handles: list[RemovableHandle] = []
        try:
            for name, module in modules:
                if not isinstance(module, torch.jit.ScriptModule):
                    handles += self._hooked(name, module)
            yield
        finally:
            # A run is still there if the forward pass ended by something that is no Exception:
            # torch calls no hook then.
            self._leave()
            for handle in handles:
                handle.remove()

    def _go_on(self, run: Run, told: bool = False) -> None:
        self.innermost, self._told = run, told
        if self.keeps_order:
            self._starts.append(torch.autograd._get_sequence_nr())
            self._order.append((run, told))

    def current(self) -> tuple[Run, bool]:
        """The innermost run, and whether a visitor is told of the call that it makes; in backward
        those of the forward pass that made the node which runs."""
        if self.innermost.outer is not None or self._told or not is_in_backward():
            return self.innermost, self._told
        number = torch._C._current_autograd_node()._sequence_nr()
        at = bisect_right(self._starts, number)
        return self._order[at - 1] if at else (self.innermost, False)

    def forget_order(self) -> None:
        self.keeps_order = False
        self._starts, self._order = [], []

    @contextmanager
    def telling(self) -> Iterator[None]:
        """A context around a call that a visitor is told of."""
        run, told = self.innermost, self._told
        self._go_on(run, True)
        try:
            yield
        finally:
            self._go_on(run, told)

    def _enter(self) -> None:
        if self._mode is not None and not self._entered:
            self._entered = True
            self._mode.__enter__()

    def _leave(self) -> None:
        if self._mode is not None and self._entered:
            self._entered = False
            self._mode.__exit__(None, None, None)

    def _hooked(self, name: str, module: Module) -> list[RemovableHandle]:
        def enter(module: Module, args: Any) -> None:
            self._go_on(Run(name, module, self.innermost))
            self._enter()

        def leave(module: Module, args: Any, result: Any) -> None:
            if self.innermost.outer is not None:
                self._go_on(self.innermost.outer)
            if self.innermost.outer is None:
                self._leave()

        return [
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, always_call=True),
        ]


_FORWARD = (Role.INPUT, Role.WEIGHT, Role.BIAS, Role.OUTPUT)


class Reporter:
    """Tells a visitor of calls, in their order."""

    def __init__(self, visitor: Visitor, hooks: GradientHooks | None, runs: Runs) -> None:
        self.runs = runs
        self._visitor, self._hooks = visitor, hooks
        self._told = 0
        self._sees_rounding = type(visitor).rounding is not Visitor.rounding

    def close(self) -> None:
        """From now on the visitor is told nothing, even if backward comes later."""
        self._sees_rounding = False
        if self._hooks is not None:
            self._hooks.close()

    def report(
        self,
        operation: str,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        compute: Callable[[], Any],
        *,
        part: str = "",
    ) -> Any:
        """Returns compute(), and tells the visitor of it unless backward asks for it."""
        if is_in_backward():
            return compute()
        call = self._call(operation, function, part)
        with unseen():
            self._visitor.before(call, arguments)
        hooks = self._hooks
        with rounding_seen(self._opens(call)) if self._sees_rounding else nullcontext():
            result = compute() if hooks is None else hooks.computed(call, arguments, compute)
        with unseen():
            self._visitor.after(call, result)
        return result

    def _opens(self, call: Call) -> Callable[[], Sees]:
        numbers = count()

        def opens() -> Sees:
            product = next(numbers)

            def sees(x: Tensor, quantizer: Quantizer, role: Role) -> None:
                # Checkpointing computes forward again in backward.
                again = role in _FORWARD and is_in_backward()
                if self._sees_rounding and not again:
                    with unseen():
                        self._visitor.rounding(call, product, role.name.lower(), quantizer, x)

            return sees

        return opens

    def report_steps(
        self,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        steps: list[Tensor],
        *,
        part: str,
    ) -> None:
        """Reports several linear maps as one product: they share one weight, and its gradient is
        one sum."""
        if is_in_backward():
            return
        call = self._call("linear", function, part)
        with unseen():
            self._visitor.before(call, arguments)
            self._visitor.after(call, torch.cat(steps))
        if self._hooks is not None:
            self._hooks.put_on_steps(call, steps, arguments["weight"])

    def _call(self, operation: str, function: Callable[..., Any], part: str) -> Call:
        self._told += 1
        return Call(self.runs.innermost, operation, function, part, self._told - 1)

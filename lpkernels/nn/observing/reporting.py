"""The modules that run, the report of one call, and the gradients of its tensors, as backward
reaches them.

A tensor inside a graph has a hook for each call, which goes with the graph. A leaf outlives the
graph: it has one hook, for the calls whose result had a gradient in the same backward pass. So a
call that backward never reaches does not report gradients that the leaf got from other calls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from lpkernels.arithmetic import Quantizer
from lpkernels.functional.recording import RoundingHook, is_in_backward, rounding_hooks
from lpkernels.functional.torch_calls import no_product
from lpkernels.nn.observing.visiting import Call, Run, Visitor, all_tensors
from lpkernels.rng import Role


class Runs:
    """The modules that run, by hooks on them. TorchScript has no hooks: its calls belong to the
    module around it.
    """

    def __init__(self) -> None:
        self.innermost = Run("", None, None)
        # For backward, where `keeps_order`: at each change the number of the next node of a graph,
        # the innermost run, and whether a visitor gets the call that it makes.
        self.keeps_order = self._reported = False
        self._starts: list[int] = []
        self._order: list[tuple[Run, bool]] = []
        self._mode: AbstractContextManager[Any] = nullcontext()

    @contextmanager
    def watched(
        self,
        modules: Iterable[tuple[str, Module]],
        mode: AbstractContextManager[Any] | None = None,
    ) -> Iterator[None]:
        """mode: is entered while one of the modules, which are given with their names, runs, and at
        no other time."""
        self._mode = nullcontext() if mode is None else mode
        handles: list[RemovableHandle] = []
        try:
            for name, module in modules:
                if not isinstance(module, torch.jit.ScriptModule):
                    handles += self._hooked(name, module)
            yield
        finally:
            # A run is still there if the forward pass ended by something that is no Exception:
            # torch calls no hook then.
            if self.innermost.outer is not None:
                self._mode.__exit__(None, None, None)
            for handle in handles:
                handle.remove()

    def _go_on(self, run: Run, reported: bool = False) -> None:
        self.innermost, self._reported = run, reported
        if self.keeps_order:
            self._starts.append(torch.autograd._get_sequence_nr())
            self._order.append((run, reported))

    def current(self) -> tuple[Run, bool]:
        """The innermost run, and whether a visitor gets the call that it makes; in backward
        those of the forward pass that made the node which runs."""
        if self.innermost.outer is not None or self._reported or not is_in_backward():
            return self.innermost, self._reported
        number = torch._C._current_autograd_node()._sequence_nr()
        at = bisect_right(self._starts, number)
        return self._order[at - 1] if at else (self.innermost, False)

    def forget_order(self) -> None:
        self.keeps_order = False
        self._starts, self._order = [], []

    @contextmanager
    def telling(self) -> Iterator[None]:
        """A context around a call that a visitor gets."""
        run, reported = self.innermost, self._reported
        self._go_on(run, True)
        try:
            yield
        finally:
            self._go_on(run, reported)

    def _hooked(self, name: str, module: Module) -> list[RemovableHandle]:
        def enter(module: Module, args: Any) -> None:
            outer = self.innermost
            self._go_on(Run(name, module, outer))
            if outer.outer is None:
                self._mode.__enter__()

        def leave(module: Module, args: Any, result: Any) -> None:
            outer = self.innermost.outer
            # The module may have been entered before it was watched.
            if outer is not None:
                self._go_on(outer)
                if outer.outer is None:
                    self._mode.__exit__(None, None, None)

        return [
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, always_call=True),
        ]


# Handles of graphs that are gone are looked for when there are this many, or twice the living.
_FEW_HANDLES = 64


class unseen:
    """A context for a visitor: torch computes alone, records no graph, and is not observed."""

    __slots__ = ("_marked", "_recording", "_torch")

    # It is entered several times for each tensor: a generator would take three times as long.
    def __enter__(self) -> None:
        self._torch: Any = torch._C.DisableTorchFunction()
        self._torch.__enter__()
        self._marked = no_product()
        self._marked.__enter__()
        self._recording = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *error: Any) -> None:
        torch._C._set_grad_enabled(self._recording)
        self._marked.__exit__(*error)
        self._torch.__exit__(*error)


class GradientHooks:
    """Puts hooks on tensors of calls where a visitor wants gradients, and tells it of each gradient
    that arrives, until it is closed."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor, self._wants = visitor, visitor.wants_gradient
        self._handles: list[RemovableHandle] = []
        # Of each leaf the calls whose result's gradient has arrived, with that backward pass.
        self._leaves: Any = WeakTensorKeyDictionary()
        self._limit = _FEW_HANDLES
        self._is_open = True

    def computed(self, call: Call, arguments: dict[str, Any], compute: Callable[[], Any]) -> Any:
        """The call's result, with hooks on it and on the arguments.

        Hooks on the arguments come first: an argument that is changed in place has another gradient
        afterwards.
        """
        tensors = all_tensors(arguments) if torch.is_grad_enabled() else {}
        inputs = {n: x for n, x in tensors.items() if x.requires_grad and self._wants(call, n)}
        inner = {name: x for name, x in inputs.items() if not x.is_leaf}
        handles = [x.register_hook(partial(self._send, call, name)) for name, x in inner.items()]
        outputs: dict[str, Tensor] = {}
        try:
            result = compute()
            values = all_tensors({"result": result})
            outputs = {name: y for name, y in values.items() if y.grad_fn is not None}
        finally:
            # A call with such a result is part of the graph.
            (self._keep if outputs else _remove)(handles)
        leaves = _leaves_of(inputs)
        for name, y in outputs.items():
            is_wanted = self._wants(call, name)
            if leaves or is_wanted:
                hook = partial(self._arrived, call, name, leaves, is_wanted)
                self._keep([y.register_hook(hook)])
        return result

    def put_on_steps(self, call: Call, steps: list[Tensor], weight: Tensor) -> None:
        """Hooks on the steps that make up one result; backward reaches the first step last."""
        gradients: list[Tensor | None] = [None] * len(steps)
        leaves = _leaves_of({"weight": weight})
        is_wanted = self._wants(call, "result")

        def arrived(step: int, gradient: Tensor) -> None:
            gradients[step] = gradient.detach()
            # A step that the loss does not depend on has no gradient; the first has one if any has.
            if step == 0:
                of_steps = [torch.zeros_like(gradient) if g is None else g for g in gradients]
                gradients[:] = [None] * len(steps)
                self._arrived(call, "result", leaves, is_wanted, torch.cat(of_steps))

        self._keep(
            [y.register_hook(partial(arrived, i)) for i, y in enumerate(steps) if y.requires_grad]
        )

    def _arrived(
        self,
        call: Call,
        name: str,
        leaves: dict[str, Tensor],
        is_wanted: bool,
        gradient: Tensor | None,
    ) -> None:
        for leaf_name, leaf in leaves.items() if self._is_open else ():
            calls = self._leaves.get(leaf)
            if calls is None:
                calls = self._leaves[leaf] = {}
                self._keep([leaf.register_hook(partial(self._leaf_arrived, calls))])
            calls[call, leaf_name] = torch._C._current_graph_task_id()
        if is_wanted:
            self._send(call, name, gradient)

    def _leaf_arrived(self, calls: dict[tuple[Call, str], int], gradient: Tensor | None) -> None:
        """A leaf has its whole gradient. A pass that raised may have left calls behind."""
        for (call, name), number in calls.items():
            if number == torch._C._current_graph_task_id():
                self._send(call, name, gradient)
        calls.clear()

    def _send(self, call: Call, name: str, gradient: Tensor | None) -> None:
        if self._is_open and gradient is not None:
            with unseen():
                gradient = gradient.detach() if gradient.requires_grad else gradient
                self._visitor.gradient(call, name, gradient)

    def _keep(self, handles: list[RemovableHandle]) -> None:
        if len(self._handles) > self._limit:
            # A hook is gone with the dict that holds it, or out of it.
            self._handles = [h for h in self._handles if h.id in (h.hooks_dict_ref() or ())]
            self._limit = max(_FEW_HANDLES, 2 * len(self._handles))
        self._handles += handles

    def close(self) -> None:
        self._is_open = False
        _remove(self._handles)
        self._handles = []


def _leaves_of(arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x for name, x in arguments.items() if x.is_leaf and x.requires_grad}


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


_FORWARD = (Role.INPUT, Role.WEIGHT, Role.BIAS, Role.OUTPUT)


class Reporter:
    """Tells a visitor of calls, in their order."""

    def __init__(self, visitor: Visitor, runs: Runs) -> None:
        self.runs, self._visitor = runs, visitor
        wants_none = type(visitor).gradient is Visitor.gradient
        self._hooks = None if wants_none else GradientHooks(visitor)
        self._calls = 0
        self._sees_rounding = type(visitor).rounding is not Visitor.rounding

    def close(self) -> None:
        """From now on the visitor gets nothing, even if backward comes later."""
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
        with rounding_hooks(self._opens(call)) if self._sees_rounding else nullcontext():
            result = compute() if hooks is None else hooks.computed(call, arguments, compute)
        with unseen():
            self._visitor.after(call, result)
        return result

    def _opens(self, call: Call) -> Callable[[], RoundingHook]:
        numbers = count()

        def opens() -> RoundingHook:
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
        self._calls += 1
        return Call(self.runs.innermost, operation, function, part, self._calls - 1)

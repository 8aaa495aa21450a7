"""The gradients of a call's tensors, as backward reaches them.

A tensor inside a graph has a hook, which goes with the graph. A leaf outlives the graph: its hook
is put when the gradient of the result arrives, and taken away when that backward pass ends. So a
call that backward never reaches does not report gradients that the leaf got from other calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from lpkernels.functional.torch_calls import no_product
from lpkernels.nn.observing.visiting import Call, tensors

Sink = Callable[[Call, str, Tensor], None]
Wants = Callable[[Call, str], bool]

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
    """Puts hooks on tensors of calls where gradients are wanted, and sends each gradient that
    arrives to sink, until it is closed."""

    def __init__(self, sink: Sink, wants: Wants) -> None:
        self._sink, self._wants = sink, wants
        self._handles: list[RemovableHandle] = []
        self._limit = _FEW_HANDLES
        self._is_open = True

    def computed(self, call: Call, arguments: dict[str, Any], compute: Callable[[], Any]) -> Any:
        """The call's result, with hooks on it and on the arguments.

        Hooks on the arguments come first: an argument that is changed in place has another gradient
        afterwards.
        """
        entered = tensors(arguments) if torch.is_grad_enabled() else {}
        wanted = {n: x for n, x in entered.items() if x.requires_grad and self._wants(call, n)}
        inner = {name: x for name, x in wanted.items() if not x.is_leaf}
        handles = [x.register_hook(partial(self._send, call, name)) for name, x in inner.items()]
        recorded = False
        try:
            result = compute()
            recorded = self._put_on(call, {"result": result}, wanted)
        finally:
            if recorded:
                self._keep(handles)
            else:
                _remove(handles)
        return result

    def put_on_steps(self, call: Call, steps: list[Tensor], weight: Tensor) -> None:
        """Hooks on the steps that make up one result; backward reaches the first step last."""
        gradients: list[Tensor | None] = [None] * len(steps)
        on_leaves = self._on_leaves(call, {"weight": weight})
        wanted = self._wants(call, "result")

        def arrived(step: int, gradient: Tensor) -> None:
            gradients[step] = gradient.detach()
            # A step that the loss does not depend on has no gradient; the first has one if any has.
            if step == 0:
                known = [torch.zeros_like(gradient) if g is None else g for g in gradients]
                gradients[:] = [None] * len(steps)
                self._arrived(call, "result", on_leaves, wanted, torch.cat(known))

        self._keep(
            [y.register_hook(partial(arrived, i)) for i, y in enumerate(steps) if y.requires_grad]
        )

    def _put_on(self, call: Call, results: dict[str, Any], arguments: dict[str, Tensor]) -> bool:
        """Puts the hooks on; returns whether the graph holds the call."""
        found = {name: y for name, y in tensors(results).items() if y.grad_fn is not None}
        on_leaves = self._on_leaves(call, arguments)
        for name, y in found.items():
            wanted = self._wants(call, name)
            if on_leaves or wanted:
                hook = partial(self._arrived, call, name, on_leaves, wanted)
                self._keep([y.register_hook(hook)])
        return bool(found)

    def _on_leaves(self, call: Call, arguments: dict[str, Tensor]) -> _LeafHooks:
        leaves = {name: x for name, x in arguments.items() if x.is_leaf and x.requires_grad}
        return _LeafHooks([(x, partial(self._send, call, name)) for name, x in leaves.items()])

    def _arrived(
        self, call: Call, name: str, on_leaves: _LeafHooks, wanted: bool, gradient: Tensor | None
    ) -> None:
        if self._is_open:
            self._keep(on_leaves.put())
        if wanted:
            self._send(call, name, gradient)

    def _send(self, call: Call, name: str, gradient: Tensor | None) -> None:
        if self._is_open and gradient is not None:
            with unseen():
                self._sink(call, name, gradient.detach() if gradient.requires_grad else gradient)

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


class _LeafHooks:
    """Hooks on the leaves among a call's operands, from a gradient of its result to the end of that
    backward pass. A pass that raises does not report its end, so gradients of another pass are not
    sent.
    """

    def __init__(self, leaves: list[tuple[Tensor, Callable[[Tensor | None], None]]]) -> None:
        self._leaves = leaves
        self._handles: list[RemovableHandle] = []
        self._pass = -1

    def __bool__(self) -> bool:
        return bool(self._leaves)

    def put(self) -> list[RemovableHandle]:
        """The new hooks; none where this pass has them already."""
        this = torch._C._current_graph_task_id()
        if this == self._pass or not self._leaves:
            return []
        _remove(self._handles)
        self._pass = this
        self._handles = [x.register_hook(partial(self._arrived, send)) for x, send in self._leaves]
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(partial(_remove, self._handles))
        return self._handles

    def _arrived(self, send: Callable[[Tensor | None], None], gradient: Tensor | None) -> None:
        if torch._C._current_graph_task_id() == self._pass:
            send(gradient)


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()

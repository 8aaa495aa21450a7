"""Functions inside torch.func's transforms (grad, vjp, jacrev).

torch.func takes no Function whose forward writes to a context, as those of this package do; with
another form every call would cost more. Inside a transform such a Function runs as a part of
`_Transformed`: what it keeps for backward becomes further results. Its backward pass runs as a part
of `_Gradient`, which refuses a derivative of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch

from lpkernels.ops import assume_constant_result, is_inside

Saved = Sequence[Tensor | None]


def refuse_forward_mode() -> NoReturn:
    raise NotImplementedError(
        "lpkernels: emulated arithmetic has no derivative in forward mode (jvp, jacfwd, hessian); "
        "take gradients in reverse: torch.func.grad, vjp or jacrev, torch.autograd.grad, backward()"
    )


def refuse_second_derivative() -> NoReturn:
    raise NotImplementedError(
        "lpkernels: emulated arithmetic has no second derivative inside torch.func's transforms; "
        "take gradients of gradients with torch.autograd.grad and create_graph=True"
    )


def refuse_mapped() -> NoReturn:
    raise NotImplementedError(
        "lpkernels: emulated arithmetic has no gradient of what torch.func.vmap maps; take "
        "gradients sample by sample where each needs its own, and map without gradients under "
        "torch.no_grad()"
    )


def refuse_compiled() -> NoReturn:
    raise NotImplementedError(
        "lpkernels: torch.compile has no gradient of emulated arithmetic inside torch.func's "
        "transforms; compile the model, and not the function that torch.func makes of it"
    )


@assume_constant_result
def differentiate() -> bool:
    """Whether one of the transforms that run takes gradients; a compiler asks once for a graph."""
    return is_inside("Grad")


def are_active() -> bool:
    """Whether a transform runs, and no compiler."""
    return not torch.compiler.is_compiling() and _functorch.maybe_current_level() is not None


def _layers(x: object) -> Iterator[Tensor]:
    """A tensor, and the tensors inside the wrappers of transforms."""
    while isinstance(x, Tensor):
        yield x
        x = _functorch.get_unwrapped(x) if _functorch.is_functorch_wrapped_tensor(x) else None


def is_differentiated(x: object) -> bool:
    """Whether a transform, or autograd outside of all, may ask for the gradient of a tensor."""
    return any(layer.requires_grad for layer in _layers(x))


def is_mapped(x: object) -> bool:
    """Whether a vmap maps a tensor."""
    return any(map(_functorch.is_batchedtensor, _layers(x)))


def record(function: Any, *args: Any) -> Any:
    """function.apply(*args) of a Function with a context, inside torch.func's transforms too."""
    if not are_active():
        return function.apply(*args)
    *results, forward = _Transformed.apply(function, [is_differentiated(x) for x in args], *args)
    return tuple(results[: forward.results]) if forward.in_tuple else results[0]


class Context:
    """The context of a Function: what forward writes, and what backward reads."""

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        self.needs_input_grad = tuple(needs_input_grad)
        self.saved_tensors: Saved = ()
        self.constants: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.constants = tensors


class _Forward:
    """What a forward pass leaves for backward, without the tensors.

    results: their number, and in_tuple: whether they are a tuple. places: of the saved tensors
    among the arguments and all results behind them; None for None. constants: the places among all
    results that have no gradient. further: the saved tensors that are neither argument nor result.
    """

    def __init__(self, function: Any, context: Context, args: Sequence[Any], outputs: Any) -> None:
        self.function, self.context = function, context
        self.in_tuple = isinstance(outputs, tuple)
        results = outputs if self.in_tuple else (outputs,)
        self.results = len(results)
        places = {id(x): i for i, x in enumerate((*args, *results)) if isinstance(x, Tensor)}
        self.further: list[Tensor] = []
        self.places: list[int | None] = []
        for x in context.saved_tensors:
            if x is not None and id(x) not in places:
                places[id(x)] = len(args) + self.results + len(self.further)
                self.further.append(x)
            self.places.append(None if x is None else places[id(x)])
        count = self.results + len(self.further)
        self.constants = [places[id(x)] - len(args) for x in context.constants]
        self.constants += range(self.results, count)
        context.saved_tensors = context.constants = ()

    def gradients(self, needs: Sequence[bool], saved: Saved, grads: Saved) -> Any:
        """What backward returns."""
        context = copy.copy(self.context)
        context.needs_input_grad, context.saved_tensors = tuple(needs), saved
        return self.function.backward(context, *grads)


class _Transformed(torch.autograd.Function):
    """The forward pass of another Function. The results are its results, the further tensors that
    backward reads, and a `_Forward`."""

    @staticmethod
    def forward(function: Any, needs: Sequence[bool], *args: Any) -> tuple[Any, ...]:
        context = Context(needs)
        outputs = function.forward(context, *args)
        forward = _Forward(function, context, args, outputs)
        further, forward.further = forward.further, []
        results = outputs if forward.in_tuple else (outputs,)
        return (*results, *further, forward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        args, results, ctx.forward_pass = inputs[2:], output[:-1], output[-1]
        forward: _Forward = ctx.forward_pass
        ctx.mark_non_differentiable(*[results[i] for i in forward.constants])
        # Backward alone sees that zeros are missing; gradients of kept tensors are never read.
        ctx.set_materialize_grads(False)
        ctx.like = [(x.shape, x.dtype, x.device) for x in results[: forward.results]]
        tensors = (*args, *results)
        saved = [None if place is None else tensors[place] for place in forward.places]
        # A derivative of the gradient is asked for through the arguments too.
        edges = [x for x in args if isinstance(x, Tensor) and x.is_floating_point()]
        ctx.edges = len(edges)
        ctx.save_for_backward(*edges, *saved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        forward: _Forward = ctx.forward_pass
        results = [
            torch.zeros(shape, dtype=dtype, device=device) if g is None else g
            for g, (shape, dtype, device) in zip(grads, ctx.like, strict=False)
        ]
        needs, saved = ctx.needs_input_grad[2:], ctx.saved_tensors
        if is_first_order(forward.function):
            how = _Gradients(forward, needs, ctx.edges, len(saved))
            return (None, None, *_Gradient.apply(how, *saved, *results))
        return (None, None, *forward.gradients(needs, saved[ctx.edges :], results))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        refuse_forward_mode()

    @staticmethod
    def vmap(*_: Any) -> NoReturn:
        refuse_mapped()


class _Gradients:
    """The gradients of a forward pass: which are asked for, and where its saved tensors are."""

    def __init__(self, forward: _Forward, needs: Sequence[bool], first: int, end: int) -> None:
        self.forward, self.needs, self.first, self.end = forward, needs, first, end


class _Gradient(torch.autograd.Function):
    """The backward pass of another Function, of the tensors for its derivatives, the saved tensors
    and the gradients of the results."""

    @staticmethod
    def forward(how: _Gradients, *tensors: Tensor | None) -> Any:
        saved, grads = tensors[how.first : how.end], tensors[how.end :]
        return how.forward.gradients(how.needs, saved, grads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keeps nothing."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], how: _Gradients, *tensors: Tensor | None) -> Any:
        """One sample after another: each has the bits of a backward pass of its own."""
        samples = []
        for i in range(info.batch_size):
            pairs = zip(tensors, in_dims[1:], strict=True)
            sample = [x if x is None or dim is None else x.select(dim, i) for x, dim in pairs]
            samples.append(_Gradient.apply(how, *sample))
        parts = [None if x[0] is None else torch.stack(x) for x in zip(*samples, strict=True)]
        return tuple(parts), tuple(None if x is None else 0 for x in parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> NoReturn:
        refuse_second_derivative()

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        refuse_forward_mode()


def is_first_order(function: Any) -> bool:
    """Whether backward of a Function cannot be differentiated."""
    return getattr(function.backward, "is_first_order", False)

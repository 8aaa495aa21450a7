"""Functions inside torch.func's transforms (grad, vjp, jacrev).

torch.func takes no Function whose forward writes to a context, as those of this package do; with
another form every call would cost more. Inside a transform such a Function runs as a part of
`_Transformed`: what it keeps for backward becomes further results. A backward pass that has
derivatives is recorded in the same way; another one runs as a part of `_Gradient`, which refuses
its derivative only where somebody asks for it, because torch.func records every backward pass.
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
        "take gradients in reverse: torch.func.grad, vjp or jacrev, and jacrev(jacrev(f)) for a "
        "Hessian; or torch.autograd.grad, backward()"
    )


def refuse_mapped() -> NoReturn:
    raise NotImplementedError(
        "lpkernels: emulated arithmetic has no gradient of what torch.func.vmap maps; take "
        "gradients sample by sample where each needs its own, and map without gradients under "
        "torch.no_grad()"
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
    """The context of a Function: what forward writes, and what backward reads.

    places: by number, the tensors at which gradients of gradients reach the Function's inputs.
    materializes: whether zeros stand for the missing gradients of results.
    """

    materializes = True

    def __init__(self, function: Any, needs_input_grad: Sequence[bool]) -> None:
        # As torch names it in a context of its own.
        self._forward_cls = function
        self.needs_input_grad = tuple(needs_input_grad)
        self.saved_tensors: Saved = ()
        self.constants: tuple[Tensor, ...] = ()
        self.places: dict[int, Tensor | None] = {}

    @classmethod
    def of(cls, ctx: Any) -> Context:
        """The context of a Function without its tensors."""
        context = cls(ctx._forward_cls, ctx.needs_input_grad)
        vars(context).update(vars(ctx), saved_tensors=(), places={})
        return context

    def holding(self, saved: Saved) -> Context:
        """The same context with the tensors that forward saved."""
        context = copy.copy(self)
        context.saved_tensors = saved
        return context

    def gradients(self, *grads: Tensor | None) -> Any:
        """What backward returns."""
        return self._forward_cls.backward(self, *grads)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.constants = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materializes = value


def formula_of(ctx: Any) -> str | None:
    """Where the derivative of a backward pass is written (`recording.first_order`); None: it has
    none."""
    return getattr(ctx._forward_cls, "differentiable", None)


def no_derivative(ctx: Any) -> NotImplementedError:
    """The refusal of a derivative of the gradients of a layer, or of their gradients."""
    first = getattr(ctx, "first", ctx)
    geometry = getattr(first, "geometry", None)
    layer = getattr(first._forward_cls, "layer", "this function")
    order, advice = "second", "take gradients without create_graph=True"
    if first is not ctx:
        order, advice = (
            "third",
            (
                "take gradients of gradients without create_graph=True, and write an equation of "
                "second order that a loss contains as a system of first order"
            ),
        )
    return NotImplementedError(
        f"lpkernels: emulated arithmetic has no {order} derivative of "
        f"{layer if geometry is None else geometry.name}; {advice}"
    )


class _Forward:
    """What a forward pass leaves for backward, without the tensors.

    results: their number, and in_tuple: whether they are a tuple. places: of the saved tensors
    among the arguments and all results behind them; None for None. constants: the places among all
    results that have no gradient. further: the saved tensors that are neither argument nor result.
    """

    def __init__(self, context: Context, args: Sequence[Any], outputs: Any) -> None:
        self.context = context
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


class _Transformed(torch.autograd.Function):
    """The forward pass of another Function. The results are its results, the further tensors that
    backward reads, and a `_Forward`."""

    @staticmethod
    def forward(function: Any, needs: Sequence[bool], *args: Any) -> tuple[Any, ...]:
        context = Context(function, needs)
        outputs = function.forward(context, *args)
        forward = _Forward(context, args, outputs)
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
        ctx.like = [
            None if x is None else (x.shape, x.dtype, x.device) for x in results[: forward.results]
        ]
        tensors = (*args, *results)
        saved = [None if place is None else tensors[place] for place in forward.places]
        # A derivative of the gradient is asked for through the arguments too.
        edges = {
            i: x for i, x in enumerate(args) if isinstance(x, Tensor) and x.is_floating_point()
        }
        ctx.edges = list(edges)
        ctx.save_for_backward(*edges.values(), *saved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        forward: _Forward = ctx.forward_pass
        context, edges, saved = Context.of(forward.context), len(ctx.edges), ctx.saved_tensors
        context.needs_input_grad = ctx.needs_input_grad[2:]
        results = list(grads[: forward.results])
        for i, like in enumerate(ctx.like if context.materializes else ()):
            if results[i] is None and like is not None:
                results[i] = torch.zeros(like[0], dtype=like[1], device=like[2])
        recorded = torch.is_grad_enabled() and formula_of(context) is not None
        if recorded or not is_first_order(context._forward_cls):
            context.saved_tensors = saved[edges:]
            context.places = dict(zip(ctx.edges, saved, strict=False))
            return (None, None, *context.gradients(*results))
        return (None, None, *_Gradient.apply(context, edges, len(saved), *saved, *results))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        refuse_forward_mode()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], function: Any, needs: Any, *args: Any) -> Any:
        if not getattr(function, "is_second_order", False):
            refuse_mapped()
        return _by_sample(_Transformed, info, in_dims, function, needs, *args)


class _Gradient(torch.autograd.Function):
    """The backward pass of another Function, of the tensors for its derivatives, the saved tensors
    (from `first` to `end`) and the gradients of the results."""

    @staticmethod
    def forward(context: Context, first: int, end: int, *tensors: Tensor | None) -> Any:
        return context.holding(tensors[first:end]).gradients(*tensors[end:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.context = inputs[0]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return _by_sample(_Gradient, info, in_dims, *args)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> NoReturn:
        raise no_derivative(ctx.context)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        refuse_forward_mode()


def _by_sample(function: Any, info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    """A Function of mapped arguments, one sample after another: each has the bits of a pass of its
    own. Where the samples have an object in place of a tensor, it is one for all."""
    samples = []
    for i in range(info.batch_size):
        pairs = zip(args, in_dims, strict=True)
        sample = [x.select(dim, i) if isinstance(dim, int) else x for x, dim in pairs]
        samples.append(function.apply(*sample))
    results = [
        torch.stack(x) if isinstance(x[0], Tensor) else x[0] for x in zip(*samples, strict=True)
    ]
    return tuple(results), tuple(0 if isinstance(x, Tensor) else None for x in results)


def is_first_order(function: Any) -> bool:
    """Whether backward of a Function is no differentiable function itself."""
    return getattr(function.backward, "is_first_order", False)

"""Where a call is recorded for backward, and the hooks that see its tensors: results where separate
operations would store them, and tensors that a recipe's quantizers round."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad

from lpkernels.arithmetic import Quantizer
from lpkernels.functional import transforms
from lpkernels.ops import needs_gradient
from lpkernels.rng import Role


def is_exporting() -> bool:
    """Whether torch.export runs. The function of older torch (2.11) for this says yes wherever the
    compiler traces."""
    return getattr(torch.compiler, "_is_exporting_flag", False)


def is_in_backward() -> bool:
    """Whether autograd runs backward, also where that recomputes a forward pass."""
    return torch._C._current_graph_task_id() != -1


def is_recorded(*tensors: Tensor | None) -> bool:
    """Whether a gradient of one of these may be asked for.

    In an exported program nothing is recorded, since it holds the forward pass alone.

    Raises:
        NotImplementedError: a gradient of what torch.func.vmap maps, or in forward mode, which
            operators alone would take for zeros.
    """
    recorded = needs_gradient(*tensors)
    if transforms.are_active():
        recorded = torch.is_grad_enabled() and any(map(transforms.is_differentiated, tensors))
        if recorded and any(map(transforms.is_mapped, tensors)):
            transforms.refuse_mapped()
    tracing = torch.compiler.is_compiling()
    if tracing and transforms.differentiate():
        raise NotImplementedError(
            "lpkernels: torch.compile has no gradient of emulated arithmetic inside torch.func's "
            "transforms; compile the model, and not the function that torch.func makes of it"
        )
    if not recorded and forward_ad._current_level < 0:
        return False
    if not tracing and forward_ad._current_level >= 0 and any(map(_has_tangent, tensors)):
        transforms.refuse_forward_mode()
    return recorded and not (tracing and is_exporting())


def _has_tangent(x: Tensor | None) -> bool:
    return x is not None and forward_ad.unpack_dual(x).tangent is not None


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """backward of a Function, refused where a derivative of its results may be asked for and the
    Function has no ``differentiable``.

    ``differentiable`` is "module.formula" of lpkernels.functional, and formula(first, grad,
    incoming, needs) gives the gradients of gradients, as `second_order.of_layer`; "" stands for
    roundings, whose derivative is the identity. A Function may have ``layer``, the name of its
    layer in the refusal. A refusal comes at once. The tensors that backward keeps are rounded, so a
    later error could not stand on every way to the inputs, and torch.autograd.grad would leave the
    missing terms out.
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Tensor | None) -> Any:
        tracing = torch.compiler.is_compiling()
        if tracing:
            with torch.no_grad():
                return backward(ctx, *grads)
        recorded, batched = torch.is_grad_enabled(), False
        for grad in grads:
            if grad is not None and is_legacy_batchedtensor(grad):
                batched = True
        if recorded and transforms.formula_of(ctx) is None:
            raise transforms.no_derivative(ctx)
        if batched:
            first = getattr(ctx, "first", ctx)
            if (recorded or first is not ctx) and _draws(first):
                raise NotImplementedError(
                    "lpkernels: second derivatives in a batch would share the random bits of one "
                    "recipe; leave is_grads_batched=True away, or take a recipe that draws none"
                )
            return _by_sample(checked, ctx, grads)
        if recorded:
            # Few processes need it.
            from lpkernels.functional import second_order

            return second_order.recorded(ctx, grads[0])
        # A Function that rounds keeps the hook that is shown its tensors.
        hook = getattr(ctx, "hook", None)
        if hook is None:
            return backward(ctx, *grads)
        with _with_hooks(rounding=hook):
            return backward(ctx, *grads)

    checked.is_first_order = True  # type: ignore[attr-defined]
    return checked


def _draws(first: Any) -> bool:
    """Whether the products of a Function draw random bits."""
    recipe = getattr(first, "recipe", None)
    draws: bool = first.draws if recipe is None else recipe.is_stochastic
    return draws


def _by_sample(backward: Callable[..., Any], ctx: Any, grads: tuple[Tensor | None, ...]) -> Any:
    """backward for one gradient after the other of those that is_grads_batched=True gives at once.

    Each has the bits of a backward pass of its own: what forward kept, and its seed, serve all.
    """
    # Only the two together tell the number of the innermost vmap.
    torch._C._vmapmode_increment_nesting()
    level = torch._C._vmapmode_decrement_nesting()
    # The batch is the first dimension, of size 1 in a gradient that all samples share.
    batches = [None if g is None else torch._remove_batch_dim(g, level, 1, 0) for g in grads]
    size = max(len(batch) for batch in batches if batch is not None)
    samples = [
        [None] * size if batch is None else batch.expand(size, *batch.shape[1:])
        for batch in batches
    ]
    results = zip(*(backward(ctx, *sample) for sample in zip(*samples, strict=True)), strict=True)
    return tuple(
        None if parts[0] is None else torch._add_batch_dim(torch.stack(parts), 0, level)
        for parts in results
    )


def apply(function: Any, *args: Any) -> Any:
    """function.apply(*args) of a Function, or its forward alone where nothing is recorded."""
    if is_recorded(*[x for x in args if isinstance(x, Tensor)]):
        return transforms.record(function, *args)
    return function.forward(transforms.Context(function, [False] * len(args)), *args)


# (the result, the name of the operation within the call) -> the tensor to go on with.
StoreHook = Callable[[Tensor, str], Tensor]

# (the tensor before it is rounded, its quantizer, its role) -> None.
RoundingHook = Callable[[Tensor, Quantizer, Role], None]


class _Hooks(threading.local):
    store: StoreHook | None = None
    rounding: RoundingHook | None = None
    # Makes the rounding hook of the next product.
    make_rounding: Callable[[], RoundingHook] | None = None


#: The hooks of this thread.
hooks = _Hooks()


def store(result: Tensor, part: str) -> Tensor:
    """The result as the store hook returns it; without one the result itself."""
    return result if hooks.store is None else hooks.store(result, part)


def store_hook(hook: StoreHook) -> AbstractContextManager[None]:
    """A context around a call, in this thread: `store` passes results through the hook."""
    return _with_hooks(store=hook)


@contextmanager
def _with_hooks(**values: Any) -> Iterator[None]:
    """A context in which this thread has these hooks beside the others."""
    before = dict(vars(hooks))
    vars(hooks).update(values)
    try:
        yield
    finally:
        vars(hooks).clear()
        vars(hooks).update(before)


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """scores + mask, or scores where a bool mask is True. They are stored as "scores" without the
    infinities that the mask adds."""
    if mask.dtype == torch.bool:
        return store(scores, "scores").masked_fill(~mask, -math.inf)
    if hooks.store is None:
        return scores + mask
    hidden = mask == -math.inf
    scores = store(scores + mask.masked_fill(hidden, 0), "scores")
    return scores.masked_fill(hidden, -math.inf)


def rounding_hooks(make: Callable[[], RoundingHook]) -> AbstractContextManager[None]:
    """A context around a call, in this thread: every tensor that a recipe's quantizer rounds, in
    the call or its backward pass, is shown to a hook before it is rounded. No bit changes.

    make: makes the hook of a product. It is called once for the call, and again for each product of
        a layer in it.
    """
    return _with_hooks(make_rounding=make, rounding=make())


def new_rounding_hook() -> RoundingHook | None:
    """The rounding hook of a new product; None outside of `rounding_hooks`."""
    if hooks.make_rounding is not None:
        hooks.rounding = hooks.make_rounding()
    return hooks.rounding


def current_rounding_hook() -> RoundingHook | None:
    """The hook of the tensors that are rounded now, or None."""
    return hooks.rounding

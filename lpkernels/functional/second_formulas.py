"""Second derivatives of softmax and of norms: torch differentiates their float32 formulas.

The roundings of the first order are straight-through, and nothing of the second order is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lpkernels.functional.call import Call
from lpkernels.functional.layer import added
from lpkernels.functional.recording import first_order
from lpkernels.functional.second_order import Node, run_hooked


def gradients_of_softmax(
    ctx: Any, backward: Callable[..., Any], dy: Tensor | None, *of_ends: Tensor | None
) -> tuple[Tensor | None, ...]:
    """What the backward of softmax returns, recorded for second derivatives."""
    grads: tuple[Tensor | None, ...] = (None,) * 5
    if dy is not None:
        node = Node(ctx)
        grads = (_SoftmaxGradient.apply(dy, node.end(0), node, backward), *grads[1:])
    return added(grads, ctx.ends, of_ends) if of_ends else grads


class _SoftmaxGradient(torch.autograd.Function):
    is_second_order = True
    layer = "softmax"

    @staticmethod
    def forward(
        ctx: Any, dy: Tensor, end_of_x: Tensor, node: Any, backward: Callable[..., Any]
    ) -> Tensor:
        y, seed, *_ = node.saved_tensors
        ctx.save_for_backward(dy, y, seed)
        ctx.dim, ctx.recipe, ctx.backend = node.dim, node.recipe, node.backend
        dx: Tensor = run_hooked(node, backward, dy)[0]
        return dx

    @staticmethod
    @first_order
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        dy, y, seed = ctx.saved_tensors
        call = Call(ctx.recipe, seed, ctx.backend)
        g = call.rounded(dy, "grad_output").movedim(ctx.dim, -1)
        with torch.enable_grad():
            y, g = _leaves(y, g)
            dx = y * (g - (g * y).sum(-1, keepdim=True))
        of_y, of_g = torch.autograd.grad(dx, (y, g), v.movedim(ctx.dim, -1))
        y = y.detach()
        of_x = y * (of_y - (of_y * y).sum(-1, keepdim=True))
        return of_g.movedim(-1, ctx.dim), of_x.movedim(-1, ctx.dim), None, None


def gradients_of_norm(
    ctx: Any, backward: Callable[..., Any], dy: Tensor | None, *rest: Tensor | None
) -> tuple[Tensor | None, ...]:
    """What the backward of a norm returns, recorded for second derivatives."""
    grads: tuple[Tensor | None, ...] = (None,) * 9
    if dy is not None:
        node = Node(ctx)
        x, w = (node.end(i) if node.needs_input_grad[i] else None for i in (0, 1))
        grads = (*_NormGradients.apply(dy, x, w, node, backward), *grads[3:])
    of_ends = rest[2:]
    return added(grads, ctx.ends, of_ends) if of_ends else grads


class _NormGradients(torch.autograd.Function):
    is_second_order = True
    layer = "a norm"

    @staticmethod
    def forward(
        ctx: Any,
        dy: Tensor,
        end_of_x: Tensor | None,
        end_of_w: Tensor | None,
        node: Any,
        backward: Callable[..., Any],
    ) -> tuple[Tensor | None, ...]:
        xhat, scale, w, seed, *_ = node.saved_tensors
        ctx.save_for_backward(dy, xhat, scale, w, seed)
        ctx.set_materialize_grads(False)
        ctx.how, ctx.recipe, ctx.backend = node.how, node.recipe, node.backend
        ctx.has_statistics = node.has_statistics
        return run_hooked(node, backward, dy)[:3]

    @staticmethod
    @first_order
    def backward(
        ctx: Any, v: Tensor | None, u: Tensor | None, t: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        dy, xhat, scale, w, seed = ctx.saved_tensors
        how, call = ctx.how, Call(ctx.recipe, seed, ctx.backend)
        # What has the same norm as x: a norm with sums does not see the mean.
        x = how.unrowed(how.rows(xhat) / scale[:, None], xhat.shape)
        with torch.enable_grad():
            x, g = _leaves(x, call.rounded(dy, "grad_output"))
            ones = x.new_ones(()) if w is None else how.spread(w, x)
            (w_spread,) = _leaves(ones.expand_as(x))
            rows = how.rows(x)
            if not ctx.has_statistics:
                d = rows - rows.mean(1, keepdim=True) if how.centred else rows
                scale = torch.rsqrt((d * d).mean(1) + how.eps)
                rows = d
            normal = how.unrowed(rows * scale[:, None], x.shape)
            inputs = (x,) if w is None else (x, w_spread)
            first = torch.autograd.grad(normal * w_spread, inputs, g, create_graph=True)
        incoming = [v, None if u is None else how.spread(u, x).expand_as(x)]
        pairs = [(a, b) for a, b in zip(first, incoming, strict=False) if b is not None]
        of_x = of_w = of_g = None
        if pairs:
            results, gradients = zip(*pairs, strict=True)
            leaves = (x, w_spread, g)
            of_x, of_w, of_g = torch.autograd.grad(results, leaves, gradients, allow_unused=True)
        if of_w is not None and w is not None:
            of_w = how.channels(of_w).sum(1).reshape(w.shape)
        if t is not None:
            of_t = how.spread(t, x).expand_as(x)
            of_g = of_t if of_g is None else of_g + of_t
        return of_g, of_x, None if w is None else of_w, None, None


def _leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors as leaves that record gradients."""
    return tuple(x.detach().requires_grad_() for x in tensors)

"""Second derivatives of softmax and of norms: torch differentiates their float32 formulas.

The roundings of the first order are straight-through, and nothing of the second order is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lpkernels.functional.call import Call
from lpkernels.functional.second_order import Gradients


def of_softmax(first: Any, dy: Tensor, incoming: Sequence[Any], needs: Sequence[bool]) -> Gradients:
    """The gradients of dy and x from that of dx."""
    y, seed = first.saved_tensors
    v, dim = incoming[0], first.dim
    g = Call(first.recipe, seed, first.backend).rounded(dy, "grad_output").movedim(dim, -1)
    with torch.enable_grad():
        y, g = _leaves(y, g)
        dx = y * (g - (g * y).sum(-1, keepdim=True))
    of_y, of_g = torch.autograd.grad(dx, (y, g), v.movedim(dim, -1))
    y = y.detach()
    of_x = y * (of_y - (of_y * y).sum(-1, keepdim=True))
    return of_g.movedim(-1, dim), of_x.movedim(-1, dim), None


def of_norm(first: Any, dy: Tensor, incoming: Sequence[Any], needs: Sequence[bool]) -> Gradients:
    """The gradients of dy, x and the weight from those of dx, dw and db."""
    v, u, t = incoming
    xhat, scale, w, seed = first.saved_tensors
    how, call = first.how, Call(first.recipe, seed, first.backend)
    # This differs from x by the mean of each row, which a norm with sums subtracts.
    x = how.unrowed(how.rows(xhat) / scale[:, None], xhat.shape)
    with torch.enable_grad():
        x, g = _leaves(x, call.rounded(dy, "grad_output"))
        ones = x.new_ones(()) if w is None else how.spread(w, x)
        (w_spread,) = _leaves(ones.expand_as(x))
        rows = how.rows(x)
        if not first.has_statistics:
            d = rows - rows.mean(1, keepdim=True) if how.centred else rows
            scale = torch.rsqrt((d * d).mean(1) + how.eps)
            rows = d
        normal = how.unrowed(rows * scale[:, None], x.shape)
        inputs = (x,) if w is None else (x, w_spread)
        grads = torch.autograd.grad(normal * w_spread, inputs, g, create_graph=True)
    pairs = [(grads[0], v)] if v is not None else []
    if u is not None:
        pairs.append((grads[1], how.spread(u, x).expand_as(x)))
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
    return of_g, of_x, None if w is None else of_w


def _leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors as leaves that record gradients."""
    return tuple(x.detach().requires_grad_() for x in tensors)

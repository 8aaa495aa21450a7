"""The common part of the normalising layers: an autograd Function with the sums of a Recipe.

    forward     xq = input(x);  mean = sum(xq) / K;  d = xq - mean;  var = sum(d d) / K
                xhat = d / sqrt(var + eps);  y = output(xhat weight(w) + bias(b))
    backward    g = grad_output(dy);  h = g w;  dw = grad_weight(sum(g xhat));  db = sum(g)
                dx = grad_input((h - sum(h) / K - xhat sum(h xhat) / K) / sqrt(var + eps))

The forward sums are in fprop, the sums of dx in dgrad, and the sums of dw and db in wgrad.
Everything else is float32's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic import Recipe
from lpkernels.functional import seeds
from lpkernels.functional._sums import dots, sums
from lpkernels.functional.layer import Call, Sum
from lpkernels.functional.recording import apply, first_order
from lpkernels.functional.storing import seeing
from lpkernels.ops import operators_for
from lpkernels.rng import Role


@dataclass(frozen=True)
class Normalisation:
    """How a tensor is normalised, and how its elements share weights.

    Elements in one row of ``rows`` (R, K) share a mean and a variance. Elements in one row of
    ``channels`` (C, T) share a weight. One of the three kinds of layers:
        "trailing"   the last ``dims`` dimensions; a weight for each of their K elements
        "groups"     (N, C, ...) in ``groups`` groups of channels; a weight for each channel
        "channels"   (N, C, ...) over all but C; a weight for each channel
    """

    kind: str
    eps: float
    dims: int = 0
    groups: int = 0
    centred: bool = True

    def rows(self, x: Tensor) -> Tensor:
        if self.kind == "channels":
            return self.channels(x)
        if self.kind == "groups":
            return x.reshape(x.shape[0] * self.groups, -1)
        return x.reshape(-1, x.shape[x.dim() - self.dims :].numel())

    def unrowed(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """The inverse of ``rows``."""
        if self.kind != "channels":
            return rows.reshape(shape)
        return rows.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1)

    def channels(self, x: Tensor) -> Tensor:
        if self.kind == "trailing":
            return self.rows(x).t()
        return x.transpose(0, 1).reshape(x.shape[1], -1)

    def spread(self, w: Tensor, x: Tensor) -> Tensor:
        """The weights as a tensor that multiplies x."""
        return w if self.kind == "trailing" else w.reshape(-1, *[1] * (x.dim() - 2))


def normalised(
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    how: Normalisation,
    recipe: Recipe,
    seed: Tensor | None,
    backend: str,
    statistics: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and the mean and variance of each row, on float32 tensors; x is not empty.

    If statistics are given, a mean and a variance for each row, they are used and not computed.
    """
    mean, var = (None, None) if statistics is None else statistics
    return apply(_Normalise, (x, w, b, mean, var), how, recipe, seed, backend)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor | None,
        b: Tensor | None,
        mean: Tensor | None,
        var: Tensor | None,
        how: Normalisation,
        recipe: Recipe,
        seed: Tensor | None,
        backend: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        call = Call(recipe, seed, backend, operators_for(x, w, b, mean, var, seed), seeing())
        rows, total = how.rows(call.rounded(x, "input")), call.sum("fprop")
        ctx.given = mean is not None and var is not None
        if mean is None or var is None:
            count = rows.shape[1]
            mean = rows.new_zeros(rows.shape[0])
            if how.centred:
                mean = sums(total, rows) / count
            d = rows - mean[:, None]
            var = dots(_second(total), d, d) / count
        else:
            mean, var = mean.clone(), var.clone()
            d = rows - mean[:, None]
        scale = torch.rsqrt(var + how.eps)
        xhat = how.unrowed(d * scale[:, None], x.shape)
        y, wq = xhat, None
        if w is not None:
            wq = call.rounded(w, "weight")
            y = y * how.spread(wq, x)
        if b is not None:
            y = y + how.spread(call.rounded(b, "bias"), x)
        ctx.save_for_backward(xhat, scale, wq, seed)
        ctx.how, ctx.recipe, ctx.backend, ctx.sees = how, recipe, backend, seeing()
        ctx.b_shape = None if b is None else b.shape
        ctx.mark_non_differentiable(mean, var)
        y = call.rounded(y, "output")
        return y.clone() if y is xhat else y, mean, var

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        xhat, scale, w, seed = ctx.saved_tensors
        how = ctx.how
        operators = operators_for(dy, xhat, scale, w, seed)
        call = Call(ctx.recipe, seed, ctx.backend, operators, seeing())
        dx = dw = db = None
        g, total = call.rounded(dy, "grad_output"), call.sum("wgrad")
        if ctx.needs_input_grad[1]:
            dw = dots(total, how.channels(g), how.channels(xhat))
            dw = call.rounded(dw.reshape(w.shape), "grad_weight")
        if ctx.needs_input_grad[2]:
            of_bias = total._replace(role=Role.GRAD_BIAS)
            db = sums(of_bias, how.channels(g)).reshape(ctx.b_shape)
        if ctx.needs_input_grad[0]:
            h = how.rows(g if w is None else g * how.spread(w, g))
            if not ctx.given:
                h = _centred(h, how.rows(xhat), how, call.sum("dgrad"))
            dx = call.rounded(how.unrowed(h * scale[:, None], g.shape), "grad_input")
        return dx, dw, db, None, None, None, None, None, None


def _second(total: Sum) -> Sum:
    """The second of two sums in one accumulator, with draws of its own."""
    return total._replace(seed=seeds.seed_of_product(total.seed, 1))


def _centred(h: Tensor, xhat: Tensor, how: Normalisation, total: Sum) -> Tensor:
    """h without the part that would change the mean and the variance of its row."""
    count = h.shape[1]
    result = h - xhat * (dots(_second(total), h, xhat) / count)[:, None]
    if how.centred:
        result = result - (sums(total, h) / count)[:, None]
    return result

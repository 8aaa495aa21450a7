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
from lpkernels.functional.layer import quantized
from lpkernels.functional.recording import apply, first_order
from lpkernels.functional.storing import seeing
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role


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
        call, acc = (SITE_QUANTIZE, backend), recipe.fprop
        rows = how.rows(quantized(x, recipe.input, seed, Role.INPUT, *call))
        ctx.given = mean is not None and var is not None
        if mean is None or var is None:
            count = rows.shape[1]
            mean = rows.new_zeros(rows.shape[0])
            if how.centred:
                mean = sums(rows, acc, seed, Role.FPROP, backend) / count
            d = rows - mean[:, None]
            second = seeds.seed_of_product(seed, 1)
            var = dots(d, d, acc, second, Role.FPROP, backend) / count
        else:
            mean, var = mean.clone(), var.clone()
            d = rows - mean[:, None]
        scale = torch.rsqrt(var + how.eps)
        xhat = how.unrowed(d * scale[:, None], x.shape)
        y, wq = xhat, None
        if w is not None:
            wq = quantized(w, recipe.weight, seed, Role.WEIGHT, *call)
            y = y * how.spread(wq, x)
        if b is not None:
            y = y + how.spread(quantized(b, recipe.bias, seed, Role.BIAS, *call), x)
        ctx.save_for_backward(xhat, scale, wq, seed)
        ctx.how, ctx.recipe, ctx.backend, ctx.sees = how, recipe, backend, seeing()
        ctx.b_shape = None if b is None else b.shape
        ctx.mark_non_differentiable(mean, var)
        y = quantized(y, recipe.output, seed, Role.OUTPUT, SITE_OUTPUT, backend)
        return y.clone() if y is xhat else y, mean, var

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        xhat, scale, w, seed = ctx.saved_tensors
        how, recipe, backend = ctx.how, ctx.recipe, ctx.backend
        call, acc = (SITE_QUANTIZE, backend), recipe.wgrad
        dx = dw = db = None
        g = quantized(dy, recipe.grad_output, seed, Role.GRAD_OUTPUT, *call)
        if ctx.needs_input_grad[1]:
            dw = dots(how.channels(g), how.channels(xhat), acc, seed, Role.WGRAD, backend)
            dw = quantized(dw.reshape(w.shape), recipe.grad_weight, seed, Role.GRAD_WEIGHT, *call)
        if ctx.needs_input_grad[2]:
            db = sums(how.channels(g), acc, seed, Role.GRAD_BIAS, backend).reshape(ctx.b_shape)
        if ctx.needs_input_grad[0]:
            h = how.rows(g if w is None else g * how.spread(w, g))
            if not ctx.given:
                h = _centred(h, how.rows(xhat), how, recipe, seed, backend)
            dx = how.unrowed(h * scale[:, None], g.shape)
            dx = quantized(dx, recipe.grad_input, seed, Role.GRAD_INPUT, *call)
        return dx, dw, db, None, None, None, None, None, None


def _centred(
    h: Tensor, xhat: Tensor, how: Normalisation, recipe: Recipe, seed: Tensor | None, backend: str
) -> Tensor:
    """h without the part that would change the mean and the variance of its row."""
    acc, count = recipe.dgrad, h.shape[1]
    second = seeds.seed_of_product(seed, 1)
    along = dots(h, xhat, acc, second, Role.DGRAD, backend) / count
    result = h - xhat * along[:, None]
    if how.centred:
        result = result - (sums(h, acc, seed, Role.DGRAD, backend) / count)[:, None]
    return result

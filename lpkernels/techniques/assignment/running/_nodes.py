"""The nodes of the graph that round: values on the way forward, gradients on the way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lpkernels.functional.recording import first_order
from lpkernels.techniques.assignment.running._table import Table


class Rounded(torch.autograd.Function):
    """x rounded as the tensor `key`, and its gradient as the tensor `gradient`; "" means not
    rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Table, key: str, gradient: str) -> Tensor:
        ctx.table, ctx.gradient, ctx.dtype = table, gradient, x.dtype
        return table.rounded(x, key)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradient(ctx, grad), None, None, None


class RoundedInPlace(torch.autograd.Function):
    """As `Rounded`, in x's memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Table, key: str, gradient: str) -> Tensor:
        ctx.table, ctx.gradient, ctx.dtype = table, gradient, x.dtype
        ctx.mark_dirty(x)
        table.rounded(x, key, in_place=True)
        return x

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradient(ctx, grad), None, None, None


class Branch(torch.autograd.Function):
    """x itself, with a rounded gradient: it is one consumer's share of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Table, gradient: str, dirty: bool) -> Tensor:
        ctx.table, ctx.gradient, ctx.dtype = table, gradient, x.dtype
        if not dirty:
            return x.view_as(x)
        # Who changes x in place must have x, and no view that a Function made.
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradient(ctx, grad), None, None, None


class Flagged(torch.autograd.Function):
    """The loss; its gradient is NaN where the flag says that a value had no code."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, flag: Tensor) -> Tensor:
        ctx.flag = flag
        return loss.clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.masked_fill(ctx.flag, torch.nan), None


def _gradient(ctx: Any, grad: Tensor) -> Tensor:
    if not ctx.gradient:
        return grad
    rounded: Tensor = ctx.table.rounded(grad, ctx.gradient)
    return rounded.to(ctx.dtype)

"""The nodes of the graph that round: values on the way forward, gradients on the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lpkernels.functional.recording import first_order
from lpkernels.techniques.assignment.running._table import Table

Back = Callable[[Tensor], Tensor] | None


class Rounded(torch.autograd.Function):
    """x rounded as the tensor `key`, and its gradient as `back` rounds it; None: not rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Table, key: str, back: Back) -> Tensor:
        ctx.back, ctx.dtype = back, x.dtype
        return table.rounded(x, key)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradient(ctx, grad), None, None, None


class RoundedInPlace(torch.autograd.Function):
    """As `Rounded`, in x's memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Table, key: str, back: Back) -> Tensor:
        ctx.back, ctx.dtype = back, x.dtype
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
    def forward(ctx: Any, x: Tensor, back: Back, dirty: bool) -> Tensor:
        ctx.back, ctx.dtype = back, x.dtype
        if not dirty:
            return x.view_as(x)
        # Who changes x in place must have x, and no view that a Function made.
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradient(ctx, grad), None, None


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
    back: Back = ctx.back
    return grad if back is None else back(grad).to(ctx.dtype)

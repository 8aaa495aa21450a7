"""A module that is written where it is used, and a function with its own backward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Computes(nn.Module):
    """A function of the module and its inputs, with the submodules and parameters it is given."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


class OwnBackward(torch.autograd.Function):
    """x @ w with a backward pass of its own, which torch computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grad @ w.mT, x.mT @ grad

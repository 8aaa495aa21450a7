"""Models, operands and a loss for plans of accumulators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def mean_square(y: Any) -> Tensor:
    """A loss of the first result, large enough that its gradients survive narrow formats."""
    return (y[0] if isinstance(y, tuple) else y).square().mean() * 1024


def grad(*size: int) -> Tensor:
    return torch.randn(*size, requires_grad=True)


class Applies(nn.Module):
    """A module that computes a function of its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)

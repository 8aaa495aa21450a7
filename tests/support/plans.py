"""Operands and a loss for plans of accumulators."""

from typing import Any

import torch
from torch import Tensor


def mean_square(y: Any) -> Tensor:
    """A loss of the first result, large enough that its gradients survive narrow formats."""
    return (y[0] if isinstance(y, tuple) else y).square().mean() * 1024


def grad(*size: int) -> Tensor:
    return torch.randn(*size, requires_grad=True)

"""Operands and a loss for plans of accumulators, and the rows of one layer."""

from typing import Any

import torch
from torch import Tensor, nn

from lpkernels.techniques.accumulation import plan
from lpkernels.techniques.accumulation.planning import PlanRow


def mean_square(y: Any) -> Tensor:
    """A loss of the first result, large enough that its gradients survive narrow formats."""
    return (y[0] if isinstance(y, tuple) else y).square().mean() * 1024


def grad(*size: int) -> Tensor:
    return torch.randn(*size, requires_grad=True)


def linear_rows(x: Tensor, w: Tensor, **options: Any) -> tuple[PlanRow, ...]:
    """The plan of a linear layer with the weight w."""
    model = nn.Linear(w.shape[1], w.shape[0], bias=False)
    model.weight = nn.Parameter(w)
    return plan(model, x, loss=lambda y: y.sum(), **{"operand": "fp32", **options}).rows

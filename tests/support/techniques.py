"""The roundings of a step under an assignment; operands and rows for plans of accumulators."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.techniques.accumulation import plan
from lpkernels.techniques.accumulation.planning import PlanRow
from lpkernels.techniques.assignment import Assigned
from tests.compare import assert_bit_equal
from tests.techniques.assignment.runs import seen_by


def roundings(assigned: Assigned, batch: tuple[Any, Any]) -> Counter[str]:
    """Runs one forward and backward pass; returns how often each tensor was rounded, or passed as
    the loss's own gradient. Fails where a value was not rounded to its tensor's format."""
    seen, passed = seen_by(assigned), assigned._plan(assigned.loss, *batch).unrounded_gradients
    assigned.model.zero_grad()
    assigned(*batch).backward()
    for key, before, after in seen:
        quantizer = assigned.assignment.format_of(key)
        if not (quantizer.is_stochastic or key in passed):
            assert_bit_equal(after, lp.quantize(before, quantizer), key)
    return Counter(key for key, _, _ in seen)


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

"""Models that trace does not take, and errors that say where."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lpkernels.techniques.assignment import trace
from tests.loops import rows
from tests.support.computes import Computes
from tests.support.refusals import refuses

X = torch.randn(4, 6)


def wrapped(function: Callable[[Tensor], Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), Computes(lambda m, x: function(torch.relu(x))))


@rows(
    "function, match",
    (lambda y: y if y.sum() > 0 else -y, r"reads a value that .*\(bool\)"),
    (lambda y: y * y.max().item(), r"reads a value that .*\(item\)"),
    (lambda y: y * float(y.max().detach()), r"reads a value that .*\(float\)"),
    (lambda y: y[: int((y > 0).sum())], r"reads a value that .*\(int\)"),
    (lambda y: y[y > 0], r"makes a tensor of a size that .*\(getitem\)"),
    (lambda y: y[y.nonzero()[:, 0]], r"makes a tensor of a size that .*\(nonzero\)"),
    (lambda y: y.masked_select(y > 0), r"makes a tensor of a size that .*\(masked_select\)"),
    (lambda y: y[torch.where(y[:, 0] > 0)], r"makes a tensor of a size that .*\(where\)"),
)
def test_control_flow_by_values_is_refused_with_its_module(function, match):
    model = wrapped(function)
    where = r"trace: module '1' \(Computes\) "
    with pytest.raises(NotImplementedError, match=where + match):
        trace(model, lambda y, t: y.sum(), (X, None))
    assert not any(m._forward_pre_hooks for m in model.modules())


@rows(
    "function",
    lambda y: y if y.shape[0] > 2 else -y,
    lambda y: y if bool((torch.arange(3) > 1).any()) else -y, lambda y: torch.where(y > 0, y, -y),
    lambda y: y[torch.tensor([0, 2])], lambda y: y[torch.arange(4) > 1],
    lambda y: y.masked_select(torch.arange(6) > 1),
    lambda y: y * (y > 0)[torch.tensor([3, 2, 1, 0])], lambda y: y.float() * y.bool(),
)  # fmt: skip
def test_decisions_by_shapes_and_constants_are_taken(function: Callable[[Tensor], Any]):
    assert trace(wrapped(function), lambda y, t: y.sum(), (X, None))[-1].numel == 1


LINE = nn.Linear(6, 6)
LOSSES: list[tuple[Any, str]] = [
    (lambda y, t: y, r"must be a scalar tensor, got shape \(4, 6\); take a mean, say"),
    (lambda y, t: 3.0, "must be a scalar tensor, got float"),
    (lambda y, t: None, "must be a scalar tensor, got NoneType"),
    (lambda y, t: torch.zeros(()), "does not depend on what the model computes"),
    (lambda y, t: t.sum(), "does not depend on what the model computes"),
]
BATCHES = [(X, "Tensor"), ((X,), "tuple of 1"), ((X, X, X), "tuple of 3"), (3, "int")]
SPARSE = Computes(lambda m, x: torch.sparse.mm(torch.relu(x).to_sparse(), x.t()))
test_other_losses_batches_and_models_are_refused = refuses(
    trace,
    [
        *(((LINE, loss, (X, X.clone())), {}, ValueError, f"trace: the loss {match}")
          for loss, match in LOSSES),
        *(((LINE, F.mse_loss, batch), {}, TypeError,
           rf"trace: batch must be \(input, target\), got {got}") for batch, got in BATCHES),
        ((torch.relu, F.mse_loss, (X, X)), {}, TypeError,
         r"trace: model must be a torch\.nn\.Module, got builtin_function_or_method"),
        ((SPARSE, lambda y, t: y.sum(), (X, None)), {}, NotImplementedError,
         r"of layout torch\.sparse_coo is not followed"),
        # A parameter that decides.
        ((LINE, lambda y, t: y.sum() if LINE.bias[0] > 0 else y.mean(), (X, None)), {},
         NotImplementedError, "trace: the loss, or what runs around the model"),
    ],
)  # fmt: skip

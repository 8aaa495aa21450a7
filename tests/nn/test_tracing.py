"""trace: one run that leaves the model, and torch's random state, as found."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpkernels.nn.observing import Call, Visitor
from lpkernels.nn.observing.observer import trace
from tests.compare import assert_bit_equal

X = torch.randn(3, 4)


class Counts(Visitor):
    def __init__(self) -> None:
        self.calls = 0
        self.recorded: list[bool] = []

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        self.calls += 1

    def after(self, call: Call, result: Any) -> None:
        self.recorded.append(result.requires_grad)


class Untidy(nn.Module):
    """Writes everything that a forward pass can write."""

    def __init__(self, error: type[Exception] | None = None) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()
        self.error = error
        self.register_buffer("signs", torch.tensor([0.0, -0.0, math.nan]))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.norm(self.layer(x)))
        if y.requires_grad:
            y.sum().backward(retain_graph=True)
        self.drop.eval()
        with torch.no_grad():
            self.layer.weight.mul_(2)
            self.signs.abs_()
            self.count += 1
        self.norm.running_mean = torch.ones(4)
        self.layer.bias.grad = None
        torch.manual_seed(0)
        if self.error is not None:
            raise self.error("in the middle")
        return y * torch.rand(4)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    found = dict([*model.named_parameters(), *model.named_buffers()])
    gradients = {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return found | gradients


@pytest.mark.parametrize("loss", [None, torch.sum])
@pytest.mark.parametrize("error", [None, ValueError])
def test_everything_is_put_back(loss: Any, error: Any):
    model = Untidy(error)
    model.layer(X).sum().backward()
    before, random = tensors_of(model), torch.get_rng_state()
    copies = {name: t.detach().clone() for name, t in before.items()}
    with nullcontext() if error is None else pytest.raises(error, match="in the middle"):
        trace(model, Counts(), X, loss=loss)
    after = tensors_of(model)
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        assert tensor is before[name]
        assert_bit_equal(tensor.detach(), copies[name], name)
    assert_bit_equal(torch.get_rng_state(), random)
    assert all(module.training for module in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_forward_alone_records_nothing_and_gives_lazy_layers_their_sizes():
    seen = Counts()
    trace(nn.Linear(4, 2), seen, X)
    trace(nn.Linear(4, 2), seen, kwargs={"input": X}, loss=lambda y: y.sum())
    assert seen.recorded == [False, True]
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    trace(model, Counts(), X)
    assert model[0].weight.shape == (3, 4) and type(model[0]) is nn.Linear


@pytest.mark.parametrize(
    "loss, message",
    [
        (lambda y: y, r"^the loss must be a scalar tensor, got shape \(3, 2\)"),
        (lambda y: y.sum() * math.inf, "^the loss is -?inf; use inputs on which it is finite"),
    ],
)
def test_a_loss_without_gradients_is_refused(loss, message):
    with pytest.raises(ValueError, match=message):
        trace(nn.Linear(4, 2), Counts(), X, loss=loss)

"""What a model stores, counted by hand and by `count_tensors`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lpkernels.techniques.pareto import count_tensors

BATCH = 4


class Residual(nn.Module):
    """A convolution, a norm, a ReLU in place, a sum, a linear layer; the ReLU is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.relu, self.linear = nn.ReLU(inplace=True), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.conv(x)))
        return self.linear(self.relu(y + x).flatten(1))


MAP = BATCH * 2 * 4 * 4
X = torch.zeros(BATCH, 2, 4, 4)


def test_tensors_are_counted_once():
    counts = count_tensors(Residual(), X)
    # It counts the convolution, the norm (the ReLU writes into it) and the sum; the flattened sum
    # is a view.
    assert counts == {
        "params": 2 * 2 * 9 + 2 + 4 + 165,
        "activations": 3 * MAP,
        "inputs": MAP,
        "outputs": BATCH * 5,
    }
    assert count_tensors(Residual().to("meta"), X.to("meta")) == counts


def test_hooked_counts_the_output_of_every_module():
    counts = count_tensors(Residual(), X, count="hooked")
    # It counts the convolution, the norm and both calls of the ReLU; the linear layer and the model
    # return the output.
    assert counts["activations"] == 4 * MAP + BATCH * 5
    # Sequential is left out.
    model = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Sequential(nn.Linear(7, 2)))
    assert count_tensors(model, torch.zeros(BATCH, 3), count="hooked") == {
        "params": 28 + 16, "activations": 2 * BATCH * 7, "inputs": BATCH * 3, "outputs": BATCH * 2,
    }  # fmt: skip


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.tied = self.w

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"y": x * self.w, "same": x, "view": self.w.view(1, 3), "index": x.argmax(1) + scale}


def test_arguments_results_and_shared_parameters_count_once():
    counts = count_tensors(Pair(), torch.zeros(2, 3), kwargs={"scale": torch.tensor(1)})
    assert counts == {"params": 3, "activations": 0, "inputs": 6, "outputs": 6 + 6 + 3}


def test_the_model_is_left_as_found_after_an_error_too():
    model = Residual()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    count_tensors(model, torch.ones_like(X))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(RuntimeError):
        count_tensors(model, torch.zeros(1, 3, 4, 4))
    assert not any(module._forward_hooks for module in model.modules())


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="count must be one of tensors, hooked; got 'all'"):
        count_tensors(Residual(), X, count="all")
    with pytest.raises(TypeError, match="count_tensors"):
        count_tensors(torch.relu, X)

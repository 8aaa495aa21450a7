"""Which functions a plan knows by which name, and which models it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.techniques.accumulation import plan

X = torch.ones(2, 4)


def mean_square(y: Tensor) -> Tensor:
    return y.square().mean() * 1024


def grad(*size: int) -> Tensor:
    return torch.randn(*size, requires_grad=True)


class Einsum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("ij,kj->ik", x, x)


class Computes(nn.Module):
    """A module that holds a parameter and computes a function of it and the input."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.w)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x, w: x @ w, "matmul"),
        (lambda x, w: x.__matmul__(w), "matmul"),
        (lambda x, w: w.__rmatmul__(x), "matmul"),
        (lambda x, w: torch.linalg.matmul(x, w), "matmul"),
        (lambda x, w: torch.ops.aten.mm.default(x, w), "mm"),
        (lambda x, w: torch.ops.aten.linear.default(x, w), "linear"),
        (
            lambda x, w: torch.ops.aten.conv2d.default(x.view(1, 1, 2, 4), w.view(4, 1, 2, 2)),
            "conv2d",
        ),
    ],
)
def test_a_function_is_known_under_all_its_names(function, name: str):
    rows = plan(Computes(function), X, loss=mean_square, operand="e5m2").rows
    assert {row.layer for row in rows} == {name}
    assert rows[0].length == 4


def convolution(x: Tensor, w: Tensor) -> Tensor:
    numbers = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    return torch.ops.aten.convolution(x.view(1, 1, 2, 4), w.view(4, 1, 2, 2), None, *numbers)


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).detach()


def frozen() -> nn.Module:
    return nn.Linear(4, 4).requires_grad_(False)


def overflowing() -> nn.Module:
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, 1e6)
    return model


@pytest.mark.parametrize(
    ("model", "sample", "options", "error", "message"),
    [
        (Einsum(), X, {}, NotImplementedError, r"the model|module.*einsum.*not traced"),
        (nn.Sequential(Einsum()), X, {}, NotImplementedError, r"'0' \(Einsum\).*einsum"),
        (Computes(lambda x, w: torch.linalg.vecdot(x, w[0])), X, {}, NotImplementedError, "vecdot"),
        (
            Computes(lambda x, w: torch.linalg.multi_dot([x, w, w])), X, {}, NotImplementedError,
            "multi_dot",
        ),
        (Computes(convolution), X, {}, NotImplementedError, "torch's convolution"),
        (nn.LSTM(4, 4, proj_size=2), X, {}, NotImplementedError, "proj_size"),
        (nn.Bilinear(4, 4, 2), (X, X), {}, NotImplementedError, "bilinear"),
        (
            nn.MultiheadAttention(4, 2, add_zero_attn=True), (X, X, X), {},
            NotImplementedError, "add_zero_attn",
        ),
        (torch.jit.script(nn.Linear(4, 4)), X, {}, NotImplementedError, "TorchScript"),
        (nn.LazyLinear(4), X, {}, ValueError, "run the model on a batch first"),
        (lp.nn.Linear(4, 4), X, {}, ValueError, r"lp.revert\(model\)"),
        (nn.ReLU(), grad(2, 4), {}, ValueError, "no matrix product"),
        (Detached(), X, {}, ValueError, "no gradient"),
        (frozen(), X, {}, ValueError, "no gradient"),
        (nn.Linear(4, 4), X * math.inf, {}, ValueError, "input of 'Linear' holds infinities"),
        (overflowing(), X, {}, ValueError, "weight of 'Linear' reaches 1e\\+06, which overflows"),
        (nn.Linear(4, 4), X, {"loss": lambda y: y}, ValueError, r"scalar tensor, got shape \(2, 4"),
        (nn.Linear(4, 4), X, {"loss": lambda y: 1.0}, ValueError, "got float"),
        (
            nn.Linear(4, 4), X, {"loss": lambda y: y.sum() * math.nan}, ValueError,
            "the loss is nan",
        ),
        (nn.Linear(4, 4), X, {"operand": "e5m99"}, ValueError, "plan: operand"),
        (nn.Linear(4, 4), X, {"operand": 3}, TypeError, "plan: operand"),
        (nn.Linear(4, 4), X, {"chunk": 0}, ValueError, "chunk must be at least 1, got 0"),
        (nn.Linear(4, 4), X, {"chunk": 1.5}, TypeError, 'a length, "best" or None'),
        (nn.Linear(4, 4), X, {"exp_bits": 9}, ValueError, r"exp_bits must be an int in 2\.\.8"),
        (nn.Linear(4, 4), X, {"criterion": "x"}, ValueError, "level, total"),
        (nn.Linear(4, 4), X, {"metric": "x"}, ValueError, "vrr, nmse"),
        (nn.Linear(4, 4), X, {"rounding": "toward_zero"}, ValueError, "stochastic, align"),
        (lambda x: x, X, {}, TypeError, "must be a torch.nn.Module, got function"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_planned_is_refused(model, sample, options, error, message):
    if isinstance(model, nn.LSTM):
        sample = sample.unsqueeze(1)
    arguments = {"loss": mean_square, "operand": "e4m3", **options}
    with pytest.raises(error, match=message):
        plan(model, sample, **arguments)

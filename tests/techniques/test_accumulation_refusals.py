"""Which functions a plan knows by which name, and which models it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.techniques.accumulation import plan
from tests.loops import each
from tests.nn.observed import of_weight
from tests.support.plans import Applies, grad, mean_square

X = torch.ones(2, 4)
ATEN = torch.ops.aten
NAMES = [
    (lambda x, w: x @ w, "matmul"),
    (lambda x, w: x.__matmul__(w), "matmul"),
    (lambda x, w: w.__rmatmul__(x), "matmul"),
    (lambda x, w: torch.linalg.matmul(x, w), "matmul"),
    (lambda x, w: ATEN.mm.default(x, w), "mm"),
    (lambda x, w: ATEN.linear.default(x, w), "linear"),
    (lambda x, w: ATEN.conv2d.default(x.view(1, 1, 2, 4), w.view(4, 1, 2, 2)), "conv2d"),
]


@each("function, name", NAMES)
def test_a_function_is_known_under_all_its_names(function, name: str):
    rows = plan(of_weight(function), X, loss=mean_square, operand="e5m2").rows
    assert {row.layer for row in rows} == {name}
    assert rows[0].length == 4


def einsum(x: Tensor) -> Tensor:
    return torch.einsum("ij,kj->ik", x, x)


def convolution(x: Tensor, w: Tensor) -> Tensor:
    numbers = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    return ATEN.convolution(x.view(1, 1, 2, 4), w.view(4, 1, 2, 2), None, *numbers)


def overflowing() -> nn.Module:
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, 1e6)
    return model


LAYER = nn.Linear(4, 4)
UNTRACED = [
    (Applies(einsum), X, r"the model|module.*einsum.*not traced"),
    (nn.Sequential(Applies(einsum)), X, r"'0' \(Applies\).*einsum"),
    (of_weight(lambda x, w: torch.linalg.vecdot(x, w[0])), X, "vecdot"),
    (of_weight(lambda x, w: torch.linalg.multi_dot([x, w, w])), X, "multi_dot"),
    (of_weight(convolution), X, "torch's convolution"),
    (nn.LSTM(4, 4, proj_size=2), X.unsqueeze(1), "proj_size"),
    (nn.Bilinear(4, 4, 2), (X, X), "bilinear"),
    (nn.MultiheadAttention(4, 2, add_zero_attn=True), (X, X, X), "add_zero_attn"),
    (torch.jit.script(nn.Linear(4, 4)), X, "TorchScript"),
]
MODELS = [
    (nn.LazyLinear(4), X, "run the model on a batch first"),
    (lp.nn.Linear(4, 4), X, r"lp.revert\(model\)"),
    (nn.ReLU(), grad(2, 4), "no matrix product"),
    (of_weight(lambda x, w: (x @ w).detach()), X, "no gradient"),
    (nn.Linear(4, 4).requires_grad_(False), X, "no gradient"),
    (LAYER, X * math.inf, "input of 'Linear' holds infinities"),
    (overflowing(), X, "weight of 'Linear' reaches 1e\\+06, which overflows"),
]
OPTIONS = [
    ({"loss": lambda y: y}, ValueError, r"scalar tensor, got shape \(2, 4"),
    ({"loss": lambda y: 1.0}, ValueError, "got float"),
    ({"loss": lambda y: y.sum() * math.nan}, ValueError, "the loss is nan"),
    ({"operand": "e5m99"}, ValueError, "plan: operand"),
    ({"operand": 3}, TypeError, "plan: operand"),
    ({"chunk": 0}, ValueError, "chunk must be at least 1, got 0"),
    ({"chunk": 1.5}, TypeError, 'a length, "best" or None'),
    ({"exp_bits": 9}, ValueError, r"exp_bits must be an int in 2\.\.8"),
    ({"criterion": "x"}, ValueError, "level, total"),
    ({"metric": "x"}, ValueError, "vrr, nmse"),
    ({"rounding": "toward_zero"}, ValueError, "stochastic, align"),
    ({"model": lambda x: x}, TypeError, "must be a torch.nn.Module, got function"),
]
REFUSED = [
    *(({"model": m, "sample": x}, NotImplementedError, text) for m, x, text in UNTRACED),
    *(({"model": m, "sample": x}, ValueError, text) for m, x, text in MODELS),
    *OPTIONS,
]


@each("options, error, message", REFUSED)
def test_what_cannot_be_planned_is_refused(options, error, message):
    usual = {"model": LAYER, "sample": X, "loss": mean_square, "operand": "e4m3"}
    with pytest.raises(error, match=message):
        plan(**usual | options)

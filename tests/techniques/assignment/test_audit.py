"""The audit: it finds nothing in a right step, and finds the fault in a wrong one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lpkernels as lp
from tests.loops import each
from tests.support.autograd import Computes
from tests.support.techniques import audit
from tests.techniques.assignment.networks import chain_batch, chain_model
from tests.techniques.assignment.runs import assigned_of


def residual(m: Any, x: Tensor) -> Tensor:
    y = torch.relu_(m.norm(m.first(x)))
    y += m.second(x)
    return m.head(torch.cat([y, y.flip(1)], 1).transpose(0, 1).contiguous().T)


def attention(m: Any, x: Tensor) -> Tensor:
    y = m.attention(x, x, x, need_weights=False)[0]
    return m.head(m.dropout(m.norm(y + x))).mean(1)


def network(function: Any, *size: int, **parts: nn.Module) -> Any:
    return Computes(function, **parts), (torch.randn(*size), torch.arange(size[0]) % 3)


NETWORKS: dict[str, Any] = {
    "chain": lambda: (chain_model(), chain_batch()),
    "residual": lambda: network(
        residual, 8, 5, norm=nn.BatchNorm1d(6), head=nn.Linear(12, 3), first=nn.Linear(5, 6),
        second=nn.Linear(5, 6),
    ),
    "attention": lambda: network(
        attention, 4, 5, 8, attention=nn.MultiheadAttention(8, 2, 0.1, batch_first=True),
        norm=nn.LayerNorm(8), head=nn.Linear(8, 3), dropout=nn.Dropout(0.2),
    ),
    "lstm": lambda: network(
        lambda m, x: m.head(m.lstm(x)[0][:, -1]), 4, 7, 5, lstm=nn.LSTM(5, 6, batch_first=True),
        head=nn.Linear(6, 3),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:trace. held in high precision")
@each("fan_out, converted, name", ["sum", "branches"], [False, True], NETWORKS)
def test_a_step_departs_in_nothing(name: str, converted: bool, fan_out: Any) -> None:
    torch.manual_seed(4)
    model, batch = NETWORKS[name]()
    if converted:
        lp.convert(model, lp.Recipe(fprop="e6m9", dgrad="e6m9", wgrad="e6m9"))
    assigned = assigned_of(model, batch, 0.6, fan_out=fan_out)
    found = audit(assigned, batch)
    assert found.departures == ()
    never = {key for key in assigned.assignment.tensors if key not in found.rounded}
    assert never <= {"input.GY", "loss.nll_loss.GY"}
    if name == "residual":
        # A tensor that is read twice is rounded once or for each reader.
        reads = 1 if fan_out == "sum" else 2
        assert (found.rounded["add.GY"], found.rounded["norm.GY"]) == (reads, 1)

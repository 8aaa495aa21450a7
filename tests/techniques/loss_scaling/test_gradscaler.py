"""LossScaler is torch.amp.GradScaler where its own arguments have their defaults."""

import copy
import random
from typing import Any

import torch
from torch import nn

from lpkernels.techniques.loss_scaling import LossScaler
from tests.loops import each
from tests.techniques.loss_scaling.optimizers import INF, assert_same, backward, parameter, take

SGD = torch.optim.SGD


def torch_scaler(**arguments: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **arguments)


def trace(scaler: Any, bad: list[bool], lr: float = 0.1) -> list[tuple[dict[str, Any], float]]:
    """torch's state and the weight after each step of SGD with the gradient 1 or infinity."""
    weight = parameter(1.0)
    optimizer = SGD([weight], lr=lr)
    found = []
    for broken in bad:
        take(scaler, optimizer, INF if broken else 1.0)
        state = scaler.state_dict()
        found.append(({name: state[name] for name in torch_scaler().state_dict()}, weight.item()))
    return found


@each("factors", [{}, {"growth_factor": 1.7, "backoff_factor": 0.3}, {"init_scale": 2.0**127}])
def test_random_trace_is_that_of_torch(factors: dict[str, float]) -> None:
    """The last of these does not grow beyond float32."""
    draw = random.Random(0)
    bad = [draw.random() < 0.09 for _ in range(300)]
    arguments: dict[str, Any] = {"growth_interval": 7, **factors}
    mine = trace(LossScaler(**arguments), bad, lr=1e-5)
    assert mine == trace(torch_scaler(**arguments), bad, lr=1e-5)
    assert len({state["scale"] for state, _ in mine}) > 4


@each("fused, scale, unscales", [False, True], [2.0**16, 1000.0, 3.0], [False, True])
def test_weights_are_those_of_torch(fused: bool, scale: float, unscales: bool) -> None:
    ends = []
    for scaler in (LossScaler(init_scale=scale), torch_scaler(init_scale=scale)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        for step in range(6):
            optimizer.zero_grad()
            x = torch.randn(4, 5) * (INF if step == 3 else 1)
            scaler.scale(model(x).square().mean()).backward()
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        ends.append(dict(model.state_dict()))
    assert_same(*ends)


def test_states_go_both_ways() -> None:
    mine, theirs = LossScaler(init_scale=16.0, growth_interval=3), torch_scaler(init_scale=16.0)
    trace(mine, [False, False, True, False])
    theirs.load_state_dict(mine.state_dict())
    bad = [False, False, False, True, False]
    assert trace(theirs, bad) == trace(mine, bad)
    fresh = LossScaler(hysteresis=3)
    fresh.load_state_dict(theirs.state_dict())
    # A state of torch's scaler has no counter: this one's is full.
    assert fresh.state_dict()["_hysteresis_left"] == 3
    assert all(type(value) in (float, int, bool) for value in mine.state_dict().values())
    # The state of a scaler in use is replaced.
    fresh.load_state_dict(theirs.state_dict() | {"hysteresis": 1})
    assert trace(fresh, bad) == trace(theirs, bad)


@each("dtype", [torch.float64, torch.bfloat16])
def test_gradients_of_other_dtypes_are_unscaled(dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.ones(2, dtype=dtype))
    scaler = LossScaler(init_scale=8.0)
    scaler.scale((weight * 0.5).sum()).backward()
    scaler.unscale_(SGD([weight], lr=1.0))
    assert torch.equal(weight.grad, torch.full((2,), 0.5, dtype=dtype))


@each("bad", [False, True])
def test_sparse_gradients_are_checked(bad: bool) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    before = table.weight.detach().clone()
    scaler = LossScaler(init_scale=8.0)
    loss = table(torch.tensor([1, 1, 3])).sum() * (INF if bad else 1.0)
    scaler.scale(loss).backward()
    scaler.step(torch.optim.SparseAdam(table.parameters()))
    assert torch.equal(before, table.weight) == bad
    assert scaler.last_step.ran != bad


def test_disabled_does_nothing() -> None:
    weight = parameter()
    optimizer = SGD([weight], lr=1.0)
    scaler = LossScaler(enabled=False)
    backward(scaler, [weight], 0.5)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert weight.item() == 0.5 and scaler.last_step is None
    assert scaler.step(optimizer, lambda: torch.tensor(3.0)) == 3.0
    scaler.update()
    scaler.load_state_dict({"nothing": 1})
    assert (scaler.get_scale(), scaler.state_dict()) == (1.0, {})
    assert not copy.deepcopy(scaler).is_enabled()


def test_a_scale_is_set() -> None:
    scaler = LossScaler()
    assert scaler.scale(torch.ones(2).half()).dtype == torch.float16
    for new in (8.0, torch.tensor(4.0), 1):
        scaler.update(new)
        assert scaler.scale([torch.ones(())])[0].item() == scaler.get_scale() == float(new)

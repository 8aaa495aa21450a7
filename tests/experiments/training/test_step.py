"""One step: pieces, clipping, skipped updates; torch's optimizers and learning rates."""

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lpkernels.experiments.processes.torchrun import ALONE
from lpkernels.experiments.training.callback import Context
from lpkernels.experiments.training.callbacks.loss_scale import LossScaleConfig
from lpkernels.experiments.training.optimizers import (
    OptimizerConfig,
    build_optimizer,
    cosine_lr,
    learning_rate,
)
from lpkernels.experiments.training.step import Step, Tally
from lpkernels.experiments.workloads.workload import Batch, Outcome
from tests.support.autograd import Reads


def squares(model: nn.Module, batch: Batch) -> Outcome:
    x, y = batch
    losses = (model(x).squeeze(1) - y).square()
    return Outcome(losses, {"near": (losses < 1).sum()})


def step_of(optimizer: torch.optim.Optimizer, model: nn.Module, *scales: Any, **how: Any) -> Step:
    """The step of a run on `squares`, with a callback for each settings of a loss scale."""
    callbacks = [LossScaleConfig(**settings).build() for settings in scales]
    workload = SimpleNamespace(loss=squares)
    run = Context(model, optimizer, workload, 0, 6, 1, ALONE, "cpu", callbacks)
    for callback in callbacks:
        callback.prepare(run)
    return Step(run, model, **how)


def model_and_step(*scales: Any, **how: Any) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, step_of(torch.optim.SGD(model.parameters(), lr=0.1), model, *scales, **how)


def batch(count: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 4, generator=generator), torch.arange(float(count))


def test_clip_bounds_the_norm_after_unscaling() -> None:
    free, step = model_and_step()
    before = free.weight.detach().clone()
    step(0, batch(), nullcontext(), Tally())
    assert (free.weight - before).norm() > 0.1
    model, step = model_and_step({"loss_scale": 64.0}, clip=0.01)
    step(0, batch(), nullcontext(), Tally())
    moved = torch.cat(
        [(model.weight - before).flatten(), model.bias - model_and_step()[0].bias]
    ).detach()
    assert float(moved.norm()) == pytest.approx(0.1 * 0.01, rel=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_changes_nothing_and_counts(bad: float) -> None:
    model, step = model_and_step()
    before = model.weight.detach().clone()
    x, y = batch()
    tally = Tally()
    step(0, (x, y * bad), nullcontext(), tally)
    assert torch.equal(model.weight, before)
    assert tally.totals(ALONE)["skipped"] == 1


def test_a_step_reads_once_and_not_at_all_where_a_callback_steps() -> None:
    model, step = model_and_step()
    with Reads() as reads:
        step(0, batch(), nullcontext(), Tally())
    assert reads.count == 1
    fused = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    for values in ({"loss_scale": 2.0}, {"dynamic_scale": True, "scale_floor": 1.0}):
        step = step_of(fused, model, values)
        with Reads() as reads:
            step(0, batch(), nullcontext(), Tally())
        assert reads.count == 0


def test_a_tally_resumes() -> None:
    tally = Tally({"loss": 1.5})
    tally.add("loss", torch.tensor(0.25, dtype=torch.float32))
    tally.add("right", torch.tensor(3))
    assert tally.totals(ALONE) == {"loss": 1.75, "right": 3.0}
    assert (tally.here("right"), tally.here("other")) == (3.0, 0.0)


NESTEROV = {"lr": 0.2, "momentum": 0.5, "nesterov": True}
ADAM = {"optimizer": "adam", "beta2": 0.99, "eps": 1e-4}


@pytest.mark.parametrize(
    "config, kind, arguments",
    [
        ({}, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}),
        (NESTEROV, torch.optim.SGD, NESTEROV),
        (ADAM, torch.optim.Adam, {"betas": (0.9, 0.99), "eps": 1e-4}),
        ({"optimizer": "adamw"}, torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 1e-2}),
    ],
)
def test_optimizers_are_torchs_with_their_own_arguments(config, kind, arguments):
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    optimizer = build_optimizer(OptimizerConfig(**config), parameters, device="cpu")
    assert type(optimizer) is kind
    group = optimizer.param_groups[0]
    assert {name: group[name] for name in arguments} == arguments
    assert not group["fused"]


def rates(steps: int, **settings: Any) -> list[float]:
    config = OptimizerConfig(**settings)
    return [learning_rate(config, step, steps) for step in range(steps)]


def test_cosine_falls_from_peak_to_zero_after_a_warmup_to_the_peak() -> None:
    assert [cosine_lr(0.4, step, 10) for step in (0, 5, 10)] == pytest.approx([0.4, 0.2, 0.0])
    found = rates(14, lr=0.4, warmup=4)
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert found[4:] == [cosine_lr(0.4, step, 10) for step in range(10)]


def test_rates_of_cycles_and_a_constant() -> None:
    twelve, ten = (rates(steps, lr=1.0, lr_schedule="cycles", lr_cycles=3) for steps in (12, 10))
    assert twelve == [cosine_lr(1.0, step, 4) for step in range(4)] * 3
    assert [step for step in range(1, 10) if ten[step] > ten[step - 1]] == [4, 7]
    assert ten[0] == 1.0
    assert rates(4, lr=1.0, lr_schedule="constant", warmup=2) == [0.5, 1, 1, 1]
    assert all(math.isfinite(rate) for rate in rates(4, lr=1.0, warmup=10))

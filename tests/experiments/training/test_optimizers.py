"""torch's optimizers by name, and the learning rate of a step."""

import math
from typing import Any

import pytest
import torch

from lpkernels.experiments.training.optimizers import (
    OptimizerConfig,
    build_optimizer,
    cosine_lr,
    learning_rate,
)
from tests.loops import each

NESTEROV = {"lr": 0.2, "momentum": 0.5, "nesterov": True}
ADAM = {"optimizer": "adam", "beta2": 0.99, "eps": 1e-4}


@each(
    "config, kind, arguments",
    [
        ({}, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}),
        (NESTEROV, torch.optim.SGD, NESTEROV),
        ({"optimizer": "adam"}, torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.0}),
        (ADAM, torch.optim.Adam, {"betas": (0.9, 0.99), "eps": 1e-4}),
        ({"optimizer": "adamw"}, torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 1e-2}),
    ],
)
def test_optimizers_are_torchs_with_their_own_arguments(
    config: dict[str, Any], kind: type, arguments: dict[str, Any]
) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    optimizer = build_optimizer(OptimizerConfig(**config), parameters, device="cpu")
    assert type(optimizer) is kind
    group = optimizer.param_groups[0]
    assert {name: group[name] for name in arguments} == arguments
    assert not group["fused"]


def test_cosine_falls_from_peak_to_zero() -> None:
    assert cosine_lr(0.4, 0, 10) == 0.4
    assert abs(cosine_lr(0.4, 5, 10) - 0.2) < 1e-12
    assert abs(cosine_lr(0.4, 10, 10)) < 1e-12


def test_warmup_rises_to_the_peak_and_the_schedule_takes_the_rest() -> None:
    config = OptimizerConfig(lr=0.4, warmup=4)
    rates = [learning_rate(config, step, 14) for step in range(14)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert rates[4:] == [cosine_lr(0.4, step, 10) for step in range(10)]
    assert rates[:4] == sorted(rates[:4])


def test_steps_fall_at_the_milestones() -> None:
    config = OptimizerConfig(lr=1.0, lr_schedule="steps", milestones="0.5,0.75", lr_decay=0.1)
    rates = [learning_rate(config, step, 8) for step in range(8)]
    assert rates == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_the_learning_rate_starts_again_with_every_cycle_or_at_the_next_step() -> None:
    config = OptimizerConfig(lr=1.0, lr_schedule="cycles", lr_cycles=3)
    rates = [learning_rate(config, step, 12) for step in range(12)]
    assert rates == [cosine_lr(1.0, step, 4) for step in range(4)] * 3
    rates = [learning_rate(config, step, 10) for step in range(10)]
    rises = [step for step in range(1, 10) if rates[step] > rates[step - 1]]
    assert rises == [4, 7] and rates[0] == 1.0


def test_constant_stays_after_its_warmup_even_one_longer_than_the_run() -> None:
    config = OptimizerConfig(lr=1.0, lr_schedule="constant", warmup=2)
    assert [learning_rate(config, step, 4) for step in range(4)] == [0.5, 1, 1, 1]
    longer = OptimizerConfig(lr=1.0, warmup=10)
    assert all(math.isfinite(learning_rate(longer, step, 4)) for step in range(4))

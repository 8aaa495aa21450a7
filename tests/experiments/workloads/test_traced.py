"""A workload's loss apart from its model."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.traced import mean_loss, output_loss
from lpkernels.experiments.workloads.workload import Batch, Outcome, Turn


@pytest.mark.parametrize("data", ["digits", "text"])
def test_the_loss_of_an_output_is_that_of_the_turn(data: str) -> None:
    workload = find(WorkloadConfig(data=data, width=8))
    batch = workload.train.plan(0, 0).batch(0, 6)
    model = workload.model().eval()
    expected = workload.turns[0].loss(model, batch)
    loss = output_loss(workload, batch)
    found = loss(model(batch[0]), batch)
    assert torch.equal(found.losses, expected.losses)
    assert torch.equal(found.sums["accuracy"], expected.sums["accuracy"])
    assert torch.equal(mean_loss(loss)(model(batch[0]), batch), expected.losses.mean())


def test_other_workloads_are_refused() -> None:
    digits = find(WorkloadConfig(data="digits"))
    batch = digits.train.plan(0, 0).batch(0, 4)

    def twice(model: nn.Module, batch: Batch) -> Outcome:
        losses: Tensor = model(batch[0] * 2).sum(dim=1)
        return Outcome(losses, {})

    with pytest.raises(ValueError, match="loss of digits must call the model with the first"):
        output_loss(dataclasses.replace(digits, turns=(Turn(twice),)), batch)
    with pytest.raises(ValueError, match="a step of digits has 2 turns"):
        output_loss(dataclasses.replace(digits, turns=digits.turns * 2), batch)

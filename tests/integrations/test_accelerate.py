"""accelerate with a LossScaler: skipped steps are reported, and the learning rate waits."""

from typing import Any

import pytest
import torch
from torch import nn

from lpkernels.techniques.loss_scaling import LossScaler, MasterWeights
from tests.compare import assert_bit_equal

accelerate = pytest.importorskip("accelerate")
BAD = (0, 2, 3)


@pytest.mark.parametrize("kind", ["masters", "fused", "bare"])
def test_a_skipped_step_is_reported_and_the_learning_rate_waits(kind: str) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer: Any = torch.optim.SGD([weight], lr=1.0, momentum=0.5, fused=kind == "fused")
    if kind == "masters":
        optimizer = MasterWeights(optimizer, weight="fp32")
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.scaler = LossScaler(static=4.0)
    optimizer, schedule = accelerator.prepare(optimizer, schedule)
    for step in range(6):
        before = weight.detach().clone()
        optimizer.zero_grad()
        accelerator.backward((weight * (float("inf") if step in BAD else 1.0)).sum())
        optimizer.step()
        schedule.step()
        assert accelerator.optimizer_step_was_skipped == (step in BAD)
        assert torch.equal(weight.detach(), before) == (step in BAD)
    assert schedule.get_last_lr() == [0.5**3]
    bare = nn.Parameter(torch.ones(3))
    alone = torch.optim.SGD([bare], lr=1.0, momentum=0.5)
    for step in range(3):
        alone.param_groups[0]["lr"] = 0.5**step
        bare.grad = torch.ones(3)
        alone.step()
    assert_bit_equal(weight.detach(), bare.detach())


def test_a_schedule_of_torch_alone_does_not_make_the_host_wait() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = MasterWeights(torch.optim.SGD([weight], lr=1.0), weight="fp32")
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    scaler = LossScaler(static=4.0)
    scaler.scale(weight.sum() * float("inf")).backward()
    scaler.step(optimizer)
    # The wrapper was called, and skipped by itself.
    assert optimizer._opt_called and not scaler.ran

"""The loop: the same steps as written out, and what it tells of them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpkernels.techniques.assignment import Assigned, train_with_assignment
from lpkernels.techniques.loss_scaling import LossScaler, MasterWeights
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.techniques.assignment.networks import chain_model
from tests.techniques.assignment.running.runs import assigned_of


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(4, 1, 8, 8), (torch.arange(4) + i) % 10) for i in range(count)]


def start(model: nn.Module, **options: Any) -> tuple[Assigned, torch.optim.Optimizer]:
    assigned = assigned_of(model, batches(1)[0], 1.0, **options)
    return assigned, torch.optim.SGD(assigned.model.parameters(), lr=0.05, momentum=0.9)


SCALERS: dict[str, Any] = {
    "ours": lambda: LossScaler(init_scale=2.0**20, growth_interval=3),
    "torchs": lambda: torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3),
    "none": lambda: None,
}


@each("name", SCALERS)
def test_the_loop_is_the_steps_written_out(name: str) -> None:
    torch.manual_seed(1)
    model = chain_model()
    assigned, optimizer = start(model)
    looped = list(train_with_assignment(assigned, optimizer, batches(8), scaler=SCALERS[name]()))
    other, optimizer = start(model)
    scaler = SCALERS[name]()
    for (input, target), result in zip(batches(8), looped, strict=True):
        optimizer.zero_grad()
        value = other(input, target)
        assert_bit_equal(result.loss, value.detach())
        assert result.bit_ratio == other.assignment.bit_ratio
        assert result.ratio == other.assignment.ratio
        if scaler is None:
            value.backward()
            optimizer.step()
        else:
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
        assert result.promoted == other.step()
    for p, q in zip(assigned.model.parameters(), other.model.parameters(), strict=True):
        assert_bit_equal(p, q)
    # The logarithms of four examples get a quarter of the loss's gradient, and 2^19 / 4 is above
    # 2^17 - 2^14, the largest gradient of e5m2 as the paper has it.
    skipped = [number for number, result in enumerate(looped) if result.skipped]
    assert skipped == ([] if name == "none" else [0, 1, 5])


def test_a_loss_falls_and_master_weights_take_the_gradients():
    torch.manual_seed(1)
    for masters in (False, True):
        assigned, optimizer = start(chain_model())
        if masters:
            optimizer = MasterWeights(optimizer, weight="bf16", master="fp32")
        loader = batches(1) * 30
        results = list(train_with_assignment(assigned, optimizer, loader, scaler=LossScaler()))
        assert results[-1].loss < 0.5 * results[0].loss
        assert not any(result.skipped for result in results[2:])


def test_it_ends_after_so_many_steps():
    assigned, optimizer = start(chain_model())
    loader = iter(batches(5))
    assert len(list(train_with_assignment(assigned, optimizer, loader, steps=2))) == 2
    assert list(train_with_assignment(assigned, optimizer, loader, steps=0)) == []
    assert len(list(loader)) == 3
    with pytest.raises(ValueError, match="steps must be at least 0, or None, got -1"):
        train_with_assignment(assigned, optimizer, loader, steps=-1)
    wrong: Any = assigned.model
    match = r"train_with_assignment: expected what assign\(.*, got Sequential"
    with pytest.raises(TypeError, match=match):
        train_with_assignment(wrong, optimizer, loader)

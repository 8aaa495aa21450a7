"""The loop: the same steps as written out, and what it tells of them."""

import copy
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
    skipped = [result.skipped for result in looped]
    some = [True] * 2 + [False] * 3
    assert skipped == ([False] * 8 if name == "none" else some + [True] + [False] * 2)


def test_a_loss_falls():
    torch.manual_seed(1)
    assigned, optimizer = start(chain_model())
    batch = batches(1)[0]
    results = list(train_with_assignment(assigned, optimizer, [batch] * 30, scaler=LossScaler()))
    assert results[-1].loss < 0.5 * results[0].loss


def test_master_weights_take_the_gradients():
    torch.manual_seed(1)
    model = chain_model()
    assigned = assigned_of(model, batches(1)[0], 0.6)
    optimizer = MasterWeights(
        torch.optim.SGD(assigned.model.parameters(), lr=0.05), weight="bf16", master="fp32"
    )
    before = copy.deepcopy(assigned.model.state_dict())
    results = list(train_with_assignment(assigned, optimizer, batches(4), scaler=LossScaler()))
    assert not any(result.skipped for result in results[2:])
    assert any(not torch.equal(p, before[n]) for n, p in assigned.model.named_parameters())


def test_it_ends_after_so_many_steps():
    assigned, optimizer = start(chain_model())
    drawn: list[int] = []

    def loader() -> Any:
        for number, batch in enumerate(batches(5)):
            drawn.append(number)
            yield batch

    assert len(list(train_with_assignment(assigned, optimizer, loader(), steps=2))) == 2
    assert drawn == [0, 1]
    assert list(train_with_assignment(assigned, optimizer, loader(), steps=0)) == []
    with pytest.raises(ValueError, match="steps must be at least 0, or None, got -1"):
        train_with_assignment(assigned, optimizer, loader(), steps=-1)


def test_a_model_that_no_assignment_was_made_for_is_refused():
    model = chain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrong: Any = model
    with pytest.raises(
        TypeError, match=r"train_with_assignment: expected what assign\(.*, got Sequential"
    ):
        train_with_assignment(wrong, optimizer, batches(1))

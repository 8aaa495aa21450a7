"""A model under an assignment in a training loop: promotion, skipping, states, errors."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.techniques.assignment import Assigned, Promoter, assign
from lpkernels.techniques.assignment.rounding import Count
from lpkernels.techniques.loss_scaling import LossScaler
from tests.compare import assert_bit_equal
from tests.support.autograd import Computes
from tests.techniques.assignment import runs
from tests.techniques.assignment.networks import demoted, seeded_chain

ASSIGNMENT = demoted(*seeded_chain(), 0.6)


def widened(assigned: Assigned, **elements: int) -> None:
    """Fill the norm's parameters, which decide how many of its results overflow."""
    norm = assigned.model.get_submodule("1")
    with torch.no_grad():
        for name, value in elements.items():
            norm.get_parameter(name).fill_(value)


def test_an_overflow_promotes_one_tensor_two_steps_later():
    assigned, batch = runs.chained()
    # The results have mean 20 and deviation 20; the operations after them read the saturated ones.
    widened(assigned, weight=20, bias=20)
    before = assigned.assignment
    overflowing = norm_overflows(assigned, batch)
    assert 100 < overflowing < 900
    assert runs.stepped(assigned, batch) == ()
    assert assigned.assignment == before
    assert assigned.counts == {}
    widened(assigned, weight=1, bias=0)
    # The second call decides by the first step; the third step is the first in high precision.
    assert runs.stepped(assigned, batch) == ("1.Y",)
    assert assigned.promotions == [(0, "1.Y", overflowing / 1024)]
    assert assigned.counts["1.Y"] == Count(overflowing, assigned.counts["1.Y"].underflow, 0, 1024)
    assert assigned.assignment == before.promoted(["1.Y"])
    assert assigned.assignment.bits == before.bits + 8 * 1024
    assert assigned.assignment.is_low("1.GY")
    roundings = runs.seen_by(assigned)
    runs.gradients(assigned, batch)
    ((values, rounded),) = [(x, y) for key, x, y in roundings if key == "1.Y"]
    assert_bit_equal(rounded, lp.quantize(values, before.formats.activation.high))


def quantized(x: Tensor, assigned: Assigned, key: str) -> Tensor:
    return lp.quantize(x.detach(), assigned.assignment.format_of(key))


def norm_overflows(assigned: Assigned, batch: tuple[Tensor, Tensor]) -> int:
    """The elements of the first norm's results that are beyond FP_4_3_4."""
    weight = quantized(assigned.model.get_parameter("0.weight"), assigned, "0.weight.P")
    x = F.conv2d(quantized(batch[0], assigned, "input.Y"), weight, padding=1)
    y = F.batch_norm(quantized(x, assigned, "0.Y"), None, None, *[torch.full((4,), 20.0)] * 2, True)
    return int((y.abs() >= 31).sum())


def test_two_of_two_hundred_promote_and_one_does_not():
    model = Computes(lambda m, x: m.linear(x), linear=nn.Linear(1, 1))
    with torch.no_grad():
        model.linear.weight.fill_(1)
        model.linear.bias.fill_(0)

    # The values that the input holds saturate, so nothing behind it overflows.
    for overflowing, promoted in ((1, ()), (2, ("input.Y",))):
        x = torch.full((200, 1), 30.99)
        x[:overflowing] = 31
        assigned = runs.assigned_of(model, (x, None), 1.0, lambda y, _: y.mean())
        assert [runs.stepped(assigned, (x, None)) for _ in range(2)] == [(), promoted]


def test_gradients_never_promote_and_skip_the_step():
    assigned, batch = runs.chained(1.0)
    scaler = LossScaler(init_scale=2.0**40)
    optimizer = torch.optim.SGD(assigned.model.parameters(), lr=0.1)
    before = [p.clone() for p in assigned.model.parameters()]
    for _ in range(2):
        scaler.scale(assigned(*batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert assigned.step() == ()
    assert scaler.get_scale() == 2.0**38
    assert not assigned.overflowed
    assert assigned.counts["8.GY"].overflow > 0
    for p, value in zip(assigned.model.parameters(), before, strict=True):
        assert_bit_equal(p, value)


@pytest.mark.parametrize("pack", [True, False])
def test_a_value_without_a_code_makes_the_gradients_nan_and_promotes_nothing(pack: bool) -> None:
    model, (x, target) = seeded_chain()
    x[0, 0, 0, 0] = torch.nan
    assigned = runs.assigned_of(model, (x, target), 1.0, pack=pack)
    for _ in range(2):
        gradients = runs.gradients(assigned, (x, target))[1]
        assert assigned.overflowed
        assert all(gradient.isnan().any() for gradient in gradients.values())
        assert assigned.step() == ()
    assert assigned.counts["8.Y"].nonfinite > 0
    runs.gradients(assigned, (x.nan_to_num(), target))
    assert not assigned.overflowed


def test_a_nan_that_does_not_reach_the_loss_skips_the_step():
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.linear(x)
        # The product keeps both; its NaN is taken out again.
        return torch.where(torch.isnan(y * y), 0.0, y)

    torch.manual_seed(1)
    model = Computes(forward, linear=nn.Linear(3, 3))
    x = torch.randn(4, 3)
    x[0] = torch.nan
    batch = (x, torch.arange(4) % 3)
    assigned = runs.assigned_of(model, batch, 1.0)
    value, gradients = runs.gradients(assigned, batch)
    assert value.isfinite()
    assert assigned.overflowed
    assert gradients["linear.bias"].isnan().any()


def test_the_batches_of_a_step_are_counted_together():
    assigned, batch = runs.chained(1.0)
    for _ in range(2):
        assigned(*batch).backward()
    # The counts are those of the step before.
    runs.stepped(assigned, batch)
    runs.stepped(assigned, batch)
    assert assigned.counts["0.Y"].numel == 3 * 1024


def test_the_model_is_changed_by_the_optimizer_alone():
    model, batch = seeded_chain()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def attributes() -> list[Any]:
        return [(type(module), dict(module._forward_hooks)) for module in model.modules()]

    modules = attributes()
    assign(model, F.cross_entropy, ASSIGNMENT)(*batch)
    # Batch norm updates its statistics in training; everything else is as it was.
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) != ("running" in name or "num" in name)
    assert attributes() == modules


def test_the_output_for_an_evaluation_is_that_of_the_current_formats():
    assigned, batch = runs.chained(1.0)
    runs.stepped(assigned, batch)
    assigned.model.eval()
    with assigned.evaluating():
        y = assigned.model(batch[0])
        # The batch may have any size, and none of its values are counted.
        assert assigned.model(torch.randn(7, 1, 8, 8)).shape == (7, 10)
        with assigned.evaluating(in_formats=False):
            in_float32 = assigned.model(batch[0])
    assert not y.requires_grad
    assert_bit_equal(y, quantized(y, assigned, "8.Y"))
    plain = assigned.model(batch[0])
    assert not torch.equal(y, plain)
    torch.testing.assert_close(y, plain.detach(), rtol=0.2, atol=0.2)
    assert_bit_equal(in_float32, plain)
    assigned.model.train()
    for _ in range(2):
        runs.stepped(assigned, batch)
    assert assigned.counts["0.Y"].numel == 1024


def test_a_promoter_that_is_given_decides_and_without_one_nothing_is_counted():
    model, batch = seeded_chain()
    assignment = demoted(model, batch)
    uncounted = assign(model, F.cross_entropy, assignment, promote=None)
    assert runs.stepped(uncounted, batch) == runs.stepped(uncounted, batch) == ()
    assert uncounted.counts == {}
    promoter = Promoter(assignment, 0.0)
    assigned = assign(model, F.cross_entropy, assignment, promote=promoter)
    assert "0.weight.P" in [runs.stepped(assigned, batch) for _ in range(2)][1]
    assert assigned.assignment is promoter.assignment


def test_a_shorter_batch_may_come_once_the_whole_one_is_checked():
    model, batch = seeded_chain()
    short = (batch[0][:3], batch[1][:3])
    checked, computed = (runs.assigned_of(model, batch, 0.6) for _ in range(2))
    with pytest.raises(ValueError, match="it is of another batch"):
        checked.check_batch(*short)
    checked.check_batch(*batch)
    runs.gradients(computed, batch)
    for assigned in (checked, computed):
        assert runs.gradients(assigned, short)[0].isfinite()
        assert assigned.step() == ()


def test_an_assignment_of_something_else_is_found_before_anything_changes():
    model, batch = seeded_chain()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="it is of another batch"):
        assign(model, F.cross_entropy, ASSIGNMENT)(batch[0][:2], batch[1][:2])
    with pytest.raises(ValueError, match="it is of another model: it lacks"):
        assign(model, lambda y, t: (y * y).sum(), ASSIGNMENT)(*batch)
    for name, value in model.state_dict().items():
        assert_bit_equal(value, before[name])
    second = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(ValueError, match="it is of another model"):
        assign(second, F.cross_entropy, ASSIGNMENT)(*batch)


def test_a_model_that_computes_others_from_step_to_step_is_refused():
    calls: list[int] = []

    def forward(m: Any, x: Tensor) -> Tensor:
        calls.append(1)
        y = m.linear(x)
        return torch.relu(y) if len(calls) < 4 else torch.tanh(y)

    batch = (torch.randn(4, 6), torch.arange(4) % 3)
    assigned = runs.assigned_of(Computes(forward, linear=nn.Linear(6, 3)), batch, 1.0)
    assigned(*batch)
    with pytest.raises(RuntimeError, match="calls 'tanh' where its trace called 'relu', at call 1"):
        assigned(*batch)


def test_second_derivatives_are_refused():
    assigned, batch = runs.chained()
    value = assigned(*batch)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(value, list(assigned.model.parameters()), create_graph=True)

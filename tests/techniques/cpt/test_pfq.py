"""PFQ: the published trace, an independent simulation, resume, losses that are not finite."""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpkernels.techniques.cpt import PFQ, bitops
from tests.techniques.cpt.fakes import Named, layer

STAGES = [(3, 6), (4, 6), (6, 8), (8, 8)]
# The means of periods in the published rule's worked example, eps .15 and decay .4.
TRACE = [2.0, 1.5, 1.2, 1.1, 1.05, 1.02, 1.00, 0.99, 0.985, 0.98, 0.98, 0.98, 0.98, 0.98]


def bits_of(scheduler: PFQ, losses: list[float]) -> list[tuple[Any, Any]]:
    """The bits of the step after each loss."""
    bits = []
    for loss in losses:
        scheduler.step(loss)
        bits.append(scheduler.get_last_bits())
    return bits


@pytest.mark.parametrize("period", [1, 4])
def test_the_published_trace_turns_after_periods_8_and_13(period: int) -> None:
    scheduler = PFQ(target := Named(), STAGES, period=period, eps=0.15, decay=0.4)
    # A period of several steps has the mean of its losses.
    spread = [-0.5, 0.25, 0.5, -0.25] if period == 4 else [0.0]
    bits = bits_of(scheduler, [mean + offset for mean in TRACE for offset in spread])
    changes = [
        step for step, (before, after) in enumerate(pairwise([(3, 6), *bits])) if before != after
    ]
    assert [step + 1 for step in changes] == [8 * period, 13 * period]
    assert target.calls == [(3, 6), (4, 6), (6, 8)]
    assert math.fsum(scheduler.first_losses) / 10 == pytest.approx(1.1825)
    assert scheduler.threshold == pytest.approx(0.024) and scheduler.window == pytest.approx([0.98])


def simulated(
    losses: list[float], period: int, eps: float, decay: float, stages: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The bits after each step, from the words of the rule: all values of L are kept, and looked at
    anew after each period, in rational numbers."""
    bits, turns, values = [], [], []
    for step in range(1, len(losses) + 1):
        if step % period == 0 and len(turns) < len(stages) - 1:
            members = losses[step - period : step]
            if all(map(math.isfinite, members)):
                values.append(sum(map(Fraction, members)) / period)
                scale = abs(sum(values[:10]) / len(values[:10]))
                since = values[turns[-1] if turns else 0 :]
                bound = Fraction(eps) * Fraction(decay) ** min(len(turns), 2)
                flat = [abs(value - since[-1]) <= bound * scale for value in since[-5:-1]]
                if len(since) >= 5 and scale > 0 and all(flat):
                    turns.append(len(values))
        bits.append(stages[len(turns)])
    return bits


# Eighths, so that means are exact, and thresholds that no quotient of them meets.
SPECIAL = (1.0, 1.125, -1.0, 0.0, math.nan, math.inf, -math.inf)
LOSS = st.one_of(st.integers(-8, 24).map(lambda n: n / 8), st.sampled_from(SPECIAL))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(LOSS, min_size=1, max_size=150),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0.0501, 0.2003, 0.8007]),
    st.sampled_from([0.3001, 1.0]),
    st.integers(2, 4),
)
def test_pfq_does_as_an_independent_simulation(losses, period, eps, decay, count) -> None:
    scheduler = PFQ(Named(), STAGES[:count], period=period, eps=eps, decay=decay)
    assert bits_of(scheduler, losses) == simulated(losses, period, eps, decay, STAGES[:count])


def test_an_equal_distance_turns_and_the_threshold_shrinks_twice() -> None:
    five = [(bits, 8) for bits in (3, 4, 5, 6, 7)]
    scheduler = PFQ(Named(), five, period=1, eps=0.5, decay=0.5)
    thresholds = []
    for distance in (0.5, 0.25, 0.125, 0.125):
        bits_of(scheduler, [1.0] * 4)
        thresholds.append(scheduler.threshold)
        # The scale is 1 as long as the first ten are.
        scheduler.first_losses = [1.0] * 10
        scheduler.step(1.0 + distance)
    assert thresholds == [0.5, 0.25, 0.125, 0.125]
    assert scheduler.get_last_bits() == (7, 8)
    state = scheduler.state_dict()
    bits_of(scheduler, [1.0] * 9)
    assert {**scheduler.state_dict(), "steps": 0, "bitops": 0} == {**state, "steps": 0, "bitops": 0}


def test_losses_may_be_tensors_and_at_is_the_last_stage() -> None:
    target = layer(2, 2)
    plain, scheduler = PFQ(Named(), period=3, eps=9), PFQ(target, period=3, eps=9)
    for step in range(16):
        loss = torch.tensor(0.1 * step, requires_grad=True)
        scheduler.step(loss)
        plain.step(loss.item())
        assert scheduler.state_dict() == plain.state_dict()
    assert target.precision == (4, 6)
    with scheduler.at():
        assert target.precision == (8, 6)
    assert target.precision == (4, 6)


def test_cost_is_the_mean_over_the_steps() -> None:
    scheduler = PFQ(Named(), [(3, 6), (8, 8)], period=1, eps=1)
    assert scheduler.cost() == bitops(3, 6)
    bits_of(scheduler, [1.0] * 8)
    assert scheduler.cost() == pytest.approx((5 * bitops(3, 6) + 3 * bitops(8, 8)) / 8)


def test_wrong_input_has_set_nothing():
    target = Named()
    with pytest.raises(ValueError, match="decay"):
        PFQ(target, period=2, decay=1.01)
    assert target.calls == []


@pytest.mark.parametrize("loss, error, match", [
    ("1.0", TypeError, "step: loss: .* got str"),
    (torch.ones(2), ValueError, r"step: loss: .* got shape \(2,\) torch.float32"),
])  # fmt: skip
def test_a_loss_is_one_number(loss: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        PFQ(Named(), period=2).step(loss)

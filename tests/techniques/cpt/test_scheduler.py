"""PrecisionScheduler: habits of torch's schedulers, targets, layers, cost."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.techniques.cpt import PrecisionScheduler, Schedule, bitops, bits_at
from tests.techniques.cpt.fakes import (
    Emulating,
    Named,
    Quantized,
    Separate,
    bits_of,
    layers_of,
    small_model,
)

CYCLE = [3, 3, 4, 5, 6, 6, 7, 8]


def test_the_constructor_sets_step_0_and_step_the_next() -> None:
    model = small_model()
    scheduler = PrecisionScheduler(model, 16, bits=(3, 8), cycles=2)
    seen = []
    for _ in range(18):
        seen.append(scheduler.get_last_bits())
        assert bits_of(model) == [seen[-1][0]] * 2
        scheduler.step()
    assert seen == [[(bits, 8)] for bits in CYCLE * 2 + [8, 8]]
    assert scheduler.last_step == 18


def test_a_user_loop_trains_with_skipped_steps() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1)
    x = torch.randn(12, 6)
    for step in range(8):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        # Every other update is skipped, as an update that is not finite would be.
        if step % 2:
            optimizer.step()
        scheduler.step()
    assert layers_of(model)[0].seen == CYCLE


def test_step_goes_to_a_step_and_last_step_begins_there() -> None:
    model = small_model()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, last_step=4)
    assert scheduler.last_step == 5 and scheduler.get_last_bits() == [(6, 8)]
    scheduler.step(3)
    assert bits_of(model) == [(5, 8)] * 2
    assert scheduler.bits_at(7) == [(8, 8)] and bits_of(model) == [(5, 8)] * 2


def test_gradients_follow_a_pair_stay_at_a_number_and_have_schedules_of_their_own() -> None:
    named = Named()
    PrecisionScheduler(named, 8, bits=(3, 8), cycles=1, grad_bits=6)
    scheduler = PrecisionScheduler(named, 8, bits=(3, 8), cycles=1, grad_bits=(6, 8))
    assert scheduler.plan().tolist() == [
        *([3, 6], [3, 6], [4, 6], [5, 7], [6, 7], [6, 7], [7, 8], [8, 8])
    ]
    own = Schedule((4, 6), 1, "linear")
    scheduler = PrecisionScheduler(named, 8, bits=(3, 8), cycles=1, grad_bits=own)
    assert scheduler.plan()[:, 1].tolist() == own.plan(8).tolist()
    assert named.calls == [(3, 6), (3, 6), (3, 4)]
    assert scheduler.plan().dtype == np.int64


def test_weights_have_bits_of_their_own_where_a_target_takes_them() -> None:
    target = Separate()
    scheduler = PrecisionScheduler(target, 8, bits=(3, 8), cycles=1, weight_bits=(2, 4))
    assert target.bits == (3, 2, 8)
    scheduler.step(7)
    assert target.bits == (8, 4, 8)
    assert scheduler.cost() == pytest.approx(
        np.mean(
            [
                bitops(a, 8, weight_bits=w)
                for a, w in zip(CYCLE, [2, 2, 2, 3, 3, 3, 4, 4], strict=True)
            ]
        )
    )
    with pytest.raises(ValueError, match=r"target '0' \(Fixed\) does not take .*'weight': 4"):
        PrecisionScheduler([Fixed()], 8, bits=(3, 8), cycles=1, weight_bits=4)


class Fixed(nn.Module):
    """A module that takes one number of bits for all operands."""

    def set_precision(self, forward: int, backward: int) -> None:
        self.bits = int(forward), backward


def test_layers_of_torchs_own_arithmetic_stay_so() -> None:
    sums = lp.Recipe(fprop="e6m9", dgrad="e6m9", wgrad="e6m9")
    recipes = ("hfp8_sun2019", "fp32", sums)
    model = nn.Sequential(*(Emulating(4, 4, recipe=recipe) for recipe in recipes))
    PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, accumulator_bits=5)
    assert [layer.bits for layer in model] == [(3, 8), (16, 16), (16, 16)]
    assert [layer.accumulator for layer in model] == [
        lp.Accumulator("e8m5"),
        None,
        lp.Accumulator("e8m5"),
    ]
    with pytest.raises(ValueError, match="no module of Sequential has a precision to set"):
        PrecisionScheduler(model[1:2], 8, bits=(3, 8), cycles=1)
    with pytest.raises(ValueError, match="no target rounds its operands"):
        PrecisionScheduler(model[2:], 8, bits=(3, 8), cycles=1)


def test_functions_objects_and_lists_are_targets() -> None:
    calls: list[tuple[int, int]] = []
    named, model = Named(), small_model()

    def note(forward: int, backward: int) -> None:
        calls.append((forward, backward))

    PrecisionScheduler([note, named, model], 8, bits=(4, 8), cycles=1).step()
    assert calls == named.calls == [(4, 8), (4, 8)]
    assert all(type(bits) is int for bits in calls[0])
    assert bits_of(model) == [(4, 8)] * 2


def test_at_is_the_highest_and_gives_the_bits_of_training_back() -> None:
    model = small_model()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, grad_bits=(4, 6))
    with scheduler.at():
        assert bits_of(model) == [(8, 4)] * 2
        with scheduler.as_trained():
            assert bits_of(model) == [(3, 4)] * 2
        with scheduler.at(5):
            assert bits_of(model) == [(5, 4)] * 2
        assert bits_of(model) == [(8, 4)] * 2
    assert bits_of(model) == [(3, 4)] * 2
    with pytest.raises(RuntimeError, match="mine"), scheduler.at(6):
        raise RuntimeError("mine")
    assert bits_of(model) == [(3, 4)] * 2
    with pytest.raises(ValueError, match="at most 16 bits, got 20"), scheduler.at(20):
        pass
    assert bits_of(model) == [(3, 4)] * 2


def test_a_step_within_a_block_of_at_holds_after_it() -> None:
    model = small_model()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 8), cycles=1)
    with scheduler.at():
        scheduler.step(3)
        assert bits_of(model)[0] == (8, 8)
    assert bits_of(model)[0] == (5, 8)


def test_eval_bits_are_those_of_at() -> None:
    model = small_model()
    scheduler = PrecisionScheduler(model, 8, bits=(3, 6), cycles=1, eval_bits=10)
    with scheduler.at():
        assert bits_of(model) == [(10, 8)] * 2


def test_layers_have_schedules_of_their_own() -> None:
    model = small_model()
    scheduler = PrecisionScheduler(
        model, 8, bits=(3, 8), cycles=1, layers={"4": {"bits": (4, 6), "grad_bits": 5}}
    )
    assert bits_of(model) == [(3, 8), (4, 5)]
    assert scheduler.get_last_bits() == [(4, 5), (3, 8)]
    assert scheduler.plan("4").tolist()[-1] == [6, 5] and scheduler.plan().tolist()[-1] == [8, 8]
    with scheduler.at():
        assert bits_of(model) == [(8, 8), (6, 5)]
    both = [bitops(int(f), int(g)) for name in ("", "4") for f, g in scheduler.plan(name)]
    assert scheduler.expected_cost() == pytest.approx(np.mean(both))
    three = nn.Sequential(*small_model(), Quantized(3, 3))
    weighed = PrecisionScheduler(three, 8, bits=(3, 8), cycles=1, layers={"4": (4, 6)})
    each = [bitops(int(f), int(g)) for name in ("", "", "4") for f, g in weighed.plan(name)]
    assert weighed.expected_cost() == pytest.approx(np.mean(each))
    constant = PrecisionScheduler(small_model(), 8, bits=(3, 8), cycles=1, layers={"0": 7})
    assert constant.plan("0")[:, 0].tolist() == [7] * 8
    with pytest.raises(ValueError, match=r"layers: 'conv' matches no target .* got '0', '4'"):
        PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, layers={"conv": 4})
    with pytest.raises(ValueError, match=r"layers: '0': expected bits, .* got lr"):
        PrecisionScheduler(model, 8, bits=(3, 8), cycles=1, layers={"0": {"lr": 4}})
    with pytest.raises(ValueError, match="plan: expected a group with bits among"):
        scheduler.plan("0")


def test_costs_run_and_are_expected() -> None:
    scheduler = PrecisionScheduler(Named(), 8, bits=(3, 8), cycles=1)
    each = [bitops(bits, 8) for bits in CYCLE]
    for step in range(12):
        whole = each + [bitops(8, 8)] * 4
        assert scheduler.cost() == pytest.approx(np.mean(whole[: step + 1]))
        scheduler.step()
    assert scheduler.expected_cost() == pytest.approx(np.mean(each))
    assert scheduler.static_cost() == bitops(8, 8)
    with pytest.raises(ValueError, match="kind: expected one of bitops, accumulator, got 'flops'"):
        scheduler.cost("flops")


def test_the_bits_are_those_of_bits_at() -> None:
    settings: dict[str, Any] = {
        "cycles": 3,
        "profile": "exp",
        "form": "triangular",
        "reflection": "vertical",
        "remainder": "partial",
        "warmup": 4,
    }
    scheduler = PrecisionScheduler(Named(), 50, bits=(2, 7), **settings)
    expected = [bits_at(t, 50, bits=(2, 7), **settings) for t in range(50)]
    assert scheduler.plan()[:, 0].tolist() == expected

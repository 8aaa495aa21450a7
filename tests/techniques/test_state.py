"""The state of every technique's object, in one table: resumed, plain, refused, copied."""

import copy
import json
import math
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.functional import cross_entropy

from lpkernels.techniques.assignment import Assigned, Pins, Promoter, assign, demote, group
from lpkernels.techniques.cpt import PFQ, PrecisionScheduler
from lpkernels.techniques.loss_scaling import LossScaler
from lpkernels.techniques.state import Stateful
from tests.techniques.assignment.networks import chain, demoted, seeded_chain
from tests.techniques.cpt.fakes import Named
from tests.techniques.loss_scaling import optimizers

STEPS, CUT = 12, 7


def saved(technique: Any) -> Any:
    return copy.deepcopy(technique.state_dict())


class Row(NamedTuple):
    """One technique.

    make: a new object.  step: its step of this number, from 0.
    foreign: states that it refuses beside those that no Stateful object takes, and words of the
        errors.
    seen: everything that steps change.
    """

    make: Callable[[], Any]
    step: Callable[[Any, int], object]
    foreign: list[tuple[Any, str]]
    seen: Callable[[Any], Any] = saved


def scheduler(total: int = 16, cycles: int = 2, **options: Any) -> PrecisionScheduler:
    return PrecisionScheduler(Named(), total, cycles=cycles, **{"bits": (3, 8), **options})


def stages(**options: Any) -> PFQ:
    return PFQ(Named(), **{"period": 2, "eps": 9, **options})


def with_bits(technique: Any) -> Any:
    """The state, and the bits that its target was given last."""
    return saved(technique), technique._targets[""].calls[-1]


def promoter(threshold: float = 0.01) -> Promoter:
    made = demote(group(chain()), 1.0, pins=Pins(high="relu1.Y"))
    return Promoter(made, threshold)


def promotion(key: str) -> dict[str, Any]:
    """The state of a Promoter."""
    return {**promoter().state_dict(), "promotions": [(0, key, 0.3)]}


def assigned() -> Assigned:
    model, batch = seeded_chain()
    return assign(model, cross_entropy, demoted(model, batch))


def overflow(technique: Assigned, step: int) -> None:
    """A step; the first norm's results overflow from step 4 on, the second's from step 8 on."""
    for norm, start in (("1", 4), ("4", 8)):
        torch.nn.init.constant_(
            technique.model.get_parameter(f"{norm}.weight"), 20 * (step >= start)
        )
    technique(*seeded_chain()[1]).backward()
    technique.step()


def masters(weight: str = "bf16") -> Any:
    torch.manual_seed(0)
    return optimizers.wrapped("adam", optimizers.parameters(), weight=weight)


def update(optimizer: Any, step: int) -> None:
    optimizers.train(optimizer, optimizers.held_by(optimizer), [step])


def scaled(scaler: Any, step: int) -> None:
    optimizer = torch.optim.SGD([optimizers.parameter()], lr=1.0)
    optimizers.take(scaler, optimizer, math.inf if step in (4, 8) else 1.0)


PROMOTIONS = {2: {"bn1.Y": 0.3}, 9: {"conv1.Y": 0.3}}
STATIC = LossScaler(static=8.0).state_dict()
TECHNIQUES = {
    "PrecisionScheduler": Row(
        scheduler,
        lambda technique, step: technique.step(),
        [
            (scheduler(total=32).state_dict(), "total_steps: expected 16, got 32"),
            (scheduler(cycles=4).state_dict(), "plans: expected .*'cycles': 2"),
            (scheduler(bits=(4, 8)).state_dict(), r"plans: .*got .*\[4, 8\]"),
            (scheduler(profile=lambda z: z).state_dict(), "plans: .*function"),
            ({**scheduler().state_dict(), "last_step": -1}, "last_step: expected at least 0"),
        ],
        with_bits,
    ),
    "PFQ": Row(
        stages,
        lambda technique, step: technique.step(2.0 + step % 3),
        [
            (stages(period=4).state_dict(), "period: expected 2, got 4"),
            (stages(eps=0.1).state_dict(), r"eps: expected 9.0, got 0.1"),
            (stages(stages=[(3, 6), (4, 6)]).state_dict(), "stages: expected"),
            *(
                ({**stages().state_dict(), **wrong}, f"{next(iter(wrong))}: expected")
                for wrong in ({"stage": 4}, {"period_steps": 3}, {"window": ["x"]}, {"steps": -1})
            ),
        ],
        with_bits,
    ),
    "Promoter": Row(
        promoter,
        lambda technique, step: technique.update(PROMOTIONS.get(step, {})),
        [
            (promoter(0.5).state_dict(), "threshold: expected 0.01, got 0.5"),
            (promotion("conv9.Y"), "no tensor has the key"),
            (promotion("relu1.Y"), "high precision from the start"),
        ],
    ),
    "Assigned": Row(
        assigned,
        overflow,
        [({**assigned().state_dict(), "pending_counts": {"x.Y": (0,) * 4}}, "counts 'x.Y', which")],
        lambda technique: (saved(technique), technique.assignment.low),
    ),
    "LossScaler": Row(
        lambda: LossScaler(init_scale=16.0, growth_interval=2, hysteresis=2),
        scaled,
        [([1], "expected a dict, got list"), (STATIC, "of a dynamic scale, got that of a static")],
    ),
    "MasterWeights": Row(
        masters,
        update,
        [
            (masters("fp16").state_dict(), "group 0 has the formats .*bf16"),
            (torch.optim.SGD([optimizers.parameter()]).state_dict(), "of a MasterWeights"),
        ],
        lambda technique: optimizers.snapshot(technique, optimizers.held_by(technique)),
    ),
}  # fmt: skip


@pytest.fixture(params=TECHNIQUES)
def row(request: pytest.FixtureRequest) -> Row:
    return TECHNIQUES[request.param]


def after(row: Row, steps: int) -> Any:
    technique = row.make()
    for step in range(steps):
        row.step(technique, step)
    return technique


def goes_on_alike(row: Row, technique: Any) -> None:
    """From step CUT on, as an object that was never saved."""
    for step in range(CUT, STEPS):
        row.step(technique, step)
    optimizers.assert_same(row.seen(technique), row.seen(after(row, STEPS)))


def through_a_file(state: Any) -> Any:
    """The state as JSON gives it back, where it has no tensors; else as torch does."""
    if any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves(state)):
        return optimizers.from_file(state, weights_only=True)
    return json.loads(json.dumps(state, allow_nan=False))


def test_a_resumed_object_goes_on_as_an_uninterrupted_one(row: Row) -> None:
    first, second = after(row, CUT), row.make()
    state = first.state_dict()
    second.load_state_dict(through_a_file(state))
    optimizers.assert_same(second.state_dict(), state)
    goes_on_alike(row, second)
    optimizers.assert_same(first.state_dict(), after(row, CUT).state_dict())


def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(row: Row) -> None:
    technique = after(row, 1)
    before, state = row.seen(technique), saved(technique)
    foreign = list(row.foreign)
    if isinstance(technique, Stateful):
        foreign += [([1], "expected a dict, got list"), ({}, "type: expected the state of a")]
        foreign += [({**state, "type": "Other"}, "got 'Other'"), ({**state, "other": 1}, "other")]
        for key in state.keys() - {"type"}:
            rest = {name: value for name, value in state.items() if name != key}
            foreign += [(rest, f"one without {key}"), ({**state, key: "x"}, f"{key}: expected")]
    for other, words in foreign:
        with pytest.raises((TypeError, ValueError), match=words):
            technique.load_state_dict(other)
        optimizers.assert_same(row.seen(technique), before)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_go_on_by_themselves(row: Row, copied: Any) -> None:
    technique = after(row, CUT)
    before = row.seen(technique)
    goes_on_alike(row, copied(technique))
    optimizers.assert_same(row.seen(technique), before)

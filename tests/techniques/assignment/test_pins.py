"""Pins: tensors held high or low. Promoter: single tensors, from the next step on."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest

from lpkernels.techniques.assignment import (
    Formats,
    Op,
    Pins,
    Promoter,
    demote,
    group,
    operator_based,
)
from tests.loops import rows
from tests.support.refusals import refused, refuses
from tests.techniques.assignment.networks import chain

GROUPS = group(chain())


def matching(globs: tuple[str, ...]) -> set[str]:
    keys = {tensor.key for each in GROUPS for tensor in each.tensors}
    return {key for key in keys if any(fnmatchcase(key, glob) for glob in globs)}


@rows(
    "ratio, pins, low_groups",
    # The first group alone has 0.622 of all elements, but 1024 of its elements are held.
    (0.6, Pins(), (1,)),
    (0.6, Pins(high="conv1.Y"), (1, 2)),
    # Tensors that are held low count from the start.
    (0.09, Pins(low="conv1.Y"), ()),
    # A group of held tensors is not demoted.
    (1.0, Pins(high=["in.*", "conv1.weight.*"]), (1, 2, 3)),
    (1.0, Pins(high=["*.P", "fc.Y"]), (1, 2, 0, 3)),
)
def test_held_tensors_count_in_the_ratio(ratio: float, pins: Pins, low_groups: tuple):
    made = demote(GROUPS, ratio, pins=pins)
    assert made.low_groups == low_groups
    demoted = {t.key for i in low_groups for t in GROUPS[i].tensors}
    assert made.low == demoted - matching(pins.high) | matching(pins.low)
    assert (made.ratio < 1) == bool(made.tensors.keys() - made.low)


def pinned(**pins: Any) -> Callable[[], Any]:
    return lambda: demote(GROUPS, 0.5, pins=Pins(**pins))


UNKNOWN = group([Op("in", False, (), {}, 4, known=False)])
WRONG = [
    (pinned(high="conv9.*"), r"pins: high='conv9.\*' matches no tensor; there are 38, such as"),
    (pinned(low=["in.Y", "x"]), "pins: low='x' matches no tensor"),
    (pinned(high="in.*", low="in.Y"), "'in.Y' would be held high and low; hold a"),
    (lambda: demote(UNKNOWN, 0.5, pins=Pins(low="in.Y")),
     r"'in\.Y' would be held high and low; .* and no tensor of an unknown operation low"),
]  # fmt: skip
test_pins_that_cannot_be_are_refused = refused(WRONG, ValueError)


def test_globs_are_text():
    with pytest.raises(TypeError, match="Pins: high must be globs of keys, got 3"):
        Pins(high=[3])  # type: ignore[list-item]


COUNTED = group(chain(loss_numel=4))
LOW = demote(COUNTED, 0.6)


def test_the_papers_trace():
    promoter = Promoter(LOW, threshold=0.01)
    for _ in range(7):
        assert promoter.update({"bn1.Y": 0.0, "relu1.Y": 0.0}) == ()
    # This is step 7. The input is high already, whatever its ratio.
    measured = {"bn1.Y": 0.02, "relu1.Y": 0.009, "conv2.weight.P": 0.0, "conv1.Y": 0.01}
    assert promoter.update({**measured, "in.Y": 0.5}) == ("conv1.Y", "bn1.Y")
    now = promoter.assignment
    assert {"conv1.GY", "bn1.GY", "relu1.Y"} <= now.low
    assert now.ratio == pytest.approx(0.432632, abs=5e-7)
    assert now.bits == 138240
    assert promoter.promotions == [(7, "conv1.Y", 0.01), (7, "bn1.Y", 0.02)]
    # Later ratios of a tensor that is high never matter, and the tensor never goes back.
    assert promoter.update({**measured, "relu1.Y": 0.0}) == ()
    assert promoter.assignment.low == now.low
    # The assignment that training started with is unchanged.
    assert LOW.low_numel == 6736


@rows(
    "promoter, told, promoted",
    (Promoter(LOW), {"conv2.weight.P": 0.5}, ("conv2.weight.P",)),
    (Promoter(LOW, threshold=None), {"bn1.Y": 1.0}, ()),
    (Promoter(LOW, threshold=0.0), {"bn1.Y": 0.0}, ("bn1.Y",)),
    # A kind with one format stays.
    (Promoter(demote(COUNTED, 1.0, formats=Formats(weight="fp16"))), {"conv2.weight.P": 1.0}, ()),
    (Promoter(demote(COUNTED, 1.0, pins=Pins(low="relu1.Y"))), {"relu1.Y": 1.0}, ()),
    (Promoter(demote(COUNTED, 1.0)), {"conv1.GY": 1.0, "conv2.weight.GP": 1.0}, ()),
    (Promoter(operator_based(chain())), {"relu1.Y": 0.5, "relu2.Y": 0.5}, ("relu1.Y",)),
)
def test_what_is_promoted(promoter: Promoter, told: dict, promoted: tuple):
    assert promoter.update(told) == promoted


@rows(
    "measured, match",
    ({"conv9.Y": 0.1}, "no tensor has the key 'conv9.Y'; keys are such as 'in.Y'"),
    ({"bn1.Y": 1.5}, "overflow of 'bn1.Y' must be from 0 to 1, got 1.5"),
    ({"bn1.Y": float("nan")}, "overflow of 'bn1.Y' must be from 0 to 1, got nan"),
)
def test_wrong_ratios_change_nothing(measured: dict, match: str):
    promoter = Promoter(LOW)
    with pytest.raises(ValueError, match=match):
        promoter.update({"conv1.Y": 1.0, **measured})
    assert promoter.assignment == LOW
    assert promoter.promotions == []


test_wrong_thresholds_and_assignments_are_refused = refuses(
    Promoter,
    [
        ((LOW, -1.0), {}, ValueError, "threshold: expected a finite number of at least 0"),
        ((LOW, "0.01"), {}, TypeError, "threshold: expected a number, got str '0.01'"),
        ((COUNTED,), {}, TypeError, "Promoter: expected an Assignment, such as .*, got tuple"),
    ],
)

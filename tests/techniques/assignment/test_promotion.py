"""Promoter: single tensors, from the next step on, for good."""

import json

import pytest

from lpkernels.techniques.assignment import Formats, Promoter, demote, group, operator_based
from tests.loops import each
from tests.support.refusals import refuses
from tests.techniques.assignment.networks import chain

GROUPS = group(chain(loss_numel=4))
LOW = demote(GROUPS, 0.6)
ONE_FORMAT = demote(GROUPS, 1.0, formats=Formats(weight="fp16"))


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
    assert [(p.step, p.key, p.trigger, p.value) for p in promoter.promotions] == [
        (7, "conv1.Y", "overflow", 0.01),
        (7, "bn1.Y", "overflow", 0.02),
    ]
    # Later ratios of a tensor that is high never matter, and the tensor never goes back.
    assert promoter.update({**measured, "relu1.Y": 0.0}) == ()
    assert promoter.assignment.low == now.low
    # The assignment that training started with is unchanged.
    assert LOW.low_numel == 6736


@each(
    "promoter, told, promoted",
    [
        (Promoter(LOW), {"conv2.weight.P": 0.5}, ("conv2.weight.P",)),
        (Promoter(LOW, threshold=None), {"bn1.Y": 1.0}, ()),
        (Promoter(LOW, threshold=0.0), {"bn1.Y": 0.0}, ("bn1.Y",)),
        # A kind with one format stays.
        (Promoter(ONE_FORMAT), {"conv2.weight.P": 1.0}, ()),
        (Promoter(demote(GROUPS, 1.0)), {"conv1.GY": 1.0, "conv2.weight.GP": 1.0}, ()),
        (Promoter(operator_based(chain())), {"relu1.Y": 0.5, "relu2.Y": 0.5}, ("relu1.Y",)),
    ],
)
def test_what_is_promoted(promoter: Promoter, told: dict, promoted: tuple):
    assert promoter.update(told) == promoted


def test_whole_groups_go_with_their_gradients_if_asked():
    promoter = Promoter(LOW, whole_group=True)
    promoted = promoter.update({"relu1.Y": 0.2})
    assert len(promoted) == len(GROUPS[1].tensors)
    assert promoter.assignment.low == frozenset()
    assert {p.key: p.trigger for p in promoter.promotions}["relu1.Y"] == "overflow"
    assert {p.trigger for p in promoter.promotions} == {"overflow", "group"}
    # The assignment says what was demoted at the start.
    assert promoter.assignment.low_groups == (1,)


def test_underflow_and_errors_promote_if_asked():
    values = {"underflow": {"bn1.Y": 0.4}, "error": {"conv1.Y": 0.3}}
    assert Promoter(LOW).update({}, **values) == ()
    promoter = Promoter(LOW, underflow=0.4, error=0.25)
    assert promoter.update({}, **values) == ("conv1.Y", "bn1.Y")
    assert [p.trigger for p in promoter.promotions] == ["error", "underflow"]


def test_a_promoter_goes_on_where_it_was_and_refuses_the_state_of_another_assignment():
    first, second = Promoter(LOW), Promoter(LOW)
    first.update({})
    first.update({"bn1.Y": 0.3})
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.assignment == first.assignment
    assert second.promotions == first.promotions
    second.update({"conv1.Y": 0.3})
    assert second.promotions[-1].step == 2
    other = Promoter(demote(GROUPS, 0.05, order="increasing"))
    with pytest.raises(ValueError, match=r"promotes 'bn1\.Y', which is in high precision from the"):
        other.load_state_dict(first.state_dict())
    assert other.promotions == []
    with pytest.raises(ValueError, match="this one has promoted tensors already"):
        first.load_state_dict(first.state_dict())


@each(
    "measured, match",
    [
        ({"conv9.Y": 0.1}, "no tensor has the key 'conv9.Y'; keys are such as 'in.Y'"),
        ({"bn1.Y": 1.5}, "overflow of 'bn1.Y' must be from 0 to 1, got 1.5"),
        ({"bn1.Y": float("nan")}, "overflow of 'bn1.Y' must be from 0 to 1, got nan"),
    ],
)
def test_wrong_ratios_change_nothing(measured: dict, match: str):
    promoter = Promoter(LOW)
    with pytest.raises(ValueError, match=match):
        promoter.update({"conv1.Y": 1.0, **measured})
    assert promoter.assignment == LOW
    assert promoter.state_dict() == {"steps": 0, "promotions": []}


test_wrong_thresholds_and_assignments_are_refused = refuses(
    Promoter,
    [
        ((LOW, -1.0), {}, ValueError, "threshold must be from 0 to 1, or None for never"),
        ((LOW, "0.01"), {}, TypeError, "threshold must be a number or None, got '0.01'"),
        ((LOW,), {"underflow": 2}, ValueError, "underflow must be from 0 to 1"),
        ((LOW,), {"error": -0.5}, ValueError, "error must be from 0 to inf"),
        ((GROUPS,), {}, TypeError, "Promoter: expected an Assignment, got tuple"),
    ],
)

"""Pins: tensors held high, held low, or tied."""

from fnmatch import fnmatchcase

import pytest

from lpkernels.techniques.assignment import Op, Pins, Promoter, demote, group
from tests.loops import each
from tests.techniques.assignment.networks import chain, ops_from

GROUPS = group(chain())


def matching(globs: tuple[str, ...]) -> set[str]:
    keys = {tensor.key for each in GROUPS for tensor in each.tensors}
    return {key for key in keys if any(fnmatchcase(key, glob) for glob in globs)}


@each(
    "ratio, pins, low_groups",
    [
        # The first group alone has 0.622 of all elements, but 1024 of its elements are held.
        (0.6, Pins(), (1,)),
        (0.6, Pins(high="conv1.Y"), (1, 2)),
        # What is held low counts from the start.
        (0.09, Pins(low="conv1.Y"), ()),
        # A group of held tensors is not demoted.
        (1.0, Pins(high=["in.*", "conv1.weight.*"]), (1, 2, 3)),
        (1.0, Pins(high=["*.P", "fc.Y"]), (1, 2, 0, 3)),
    ],
)
def test_held_tensors_count_in_the_ratio(ratio: float, pins: Pins, low_groups: tuple):
    made = demote(GROUPS, ratio, pins=pins)
    assert made.low_groups == low_groups
    demoted = {t.key for i in low_groups for t in GROUPS[i].tensors}
    assert made.low == demoted - matching(pins.high) | matching(pins.low)
    assert (made.ratio < 1) == bool(made.tensors.keys() - made.low)


def test_tied_tensors_join_the_first_ones_group():
    made = demote(GROUPS, 0.3, pins=Pins(tied="*.bias.P"))
    assert [each.numel for each in made.groups] == [584, 6736 + 18, 3348 - 18, 162]
    assert made.tensors["fc.bias.P"].group == 1
    assert {"bn1.bias.P", "bn2.bias.P", "fc.bias.P"} <= made.low
    assert made.tied_with("fc.bias.P") == {"bn1.bias.P", "bn2.bias.P", "fc.bias.P"}
    assert made.tied_with("in.Y") == {"in.Y"}


def test_a_group_of_which_all_is_tied_away_is_gone():
    made = demote(group(ops_from("in, a* in, b* a", 4)), 0.5, pins=Pins(tied="[ab].*"))
    assert [(each.index, each.numel) for each in made.groups] == [(0, 8), (1, 16)]


def test_globs_that_share_a_tensor_tie_all():
    made = demote(GROUPS, 0.0, pins=Pins(tied=["in.*", "[fb]*.bias.P", "*n.Y", "bn1.*"]))
    tied = {"in.Y", "in.GY", "bn1.bias.P", "bn2.bias.P", "fc.bias.P"}
    assert made.tied_with("in.Y") == {"in.Y", "in.GY"}
    assert tied - {"in.Y", "in.GY"} < made.tied_with("bn1.Y")
    assert made.tensors["fc.bias.P"].group == 1


def test_one_that_is_held_holds_what_is_tied_to_it():
    made = demote(GROUPS, 1.0, pins=Pins(high="bn1.bias.P", tied="*.bias.P"))
    assert not {"bn1.bias.P", "bn2.bias.P", "fc.bias.P"} & made.low
    low = demote(GROUPS, 0.0, pins=Pins(low="bn1.bias.P", tied="*.bias.P"))
    assert low.low == {"bn1.bias.P", "bn2.bias.P", "fc.bias.P"}


def test_tied_tensors_are_promoted_together():
    promoter = Promoter(demote(GROUPS, 1.0, pins=Pins(tied="relu*.Y")))
    assert promoter.update({"relu2.Y": 0.5, "bn1.Y": 0.0}) == ("relu1.Y", "relu2.Y")
    assert [(p.key, p.trigger) for p in promoter.promotions] == [
        ("relu1.Y", "tied"),
        ("relu2.Y", "overflow"),
    ]


def test_what_is_held_low_is_not_promoted():
    promoter = Promoter(demote(GROUPS, 1.0, pins=Pins(low="relu1.Y")), whole_group=True)
    assert promoter.update({"relu1.Y": 1.0}) == ()
    assert "relu1.Y" not in promoter.update({"bn1.Y": 1.0})


@each(
    "pins, match",
    [
        ({"high": "conv9.*"}, r"pins: high='conv9.\*' matches no tensor; there are 38, such as"),
        ({"low": ["in.Y", "x"]}, "pins: low='x' matches no tensor"),
        ({"tied": "x"}, "pins: tied='x' matches no tensor"),
        ({"high": "in.*", "low": "in.Y"}, "'in.Y' would be held high and low; hold it once"),
        (
            {"high": "in.Y", "low": "fc.Y", "tied": ["in.Y", "*[nc].Y"]},
            r"tied tensors are held low in part \('fc.Y'\) and high in part \('in.Y'\)",
        ),
    ],
)
def test_pins_that_cannot_be_are_refused(pins: dict, match: str):
    with pytest.raises(ValueError, match=match):
        demote(GROUPS, 0.5, pins=Pins(**pins))


def test_what_is_tied_to_an_unknown_operation_stays_high():
    ops = [Op("in", False, (), {}, 4), Op("odd", False, ("in",), {}, 4, known=False)]
    made = demote(group(ops), 1.0, pins=Pins(tied="*.Y"))
    assert made.low == {"in.GY"}


def test_an_unknown_operation_cannot_be_held_low():
    groups = group([Op("in", False, (), {}, 4, known=False)])
    with pytest.raises(ValueError, match=r"'in\.Y' would be held low, and of an operation that is"):
        demote(groups, 0.5, pins=Pins(low="in.Y"))


def test_globs_are_text():
    with pytest.raises(TypeError, match="Pins: high must be globs of keys, got 3"):
        Pins(high=[3])  # type: ignore[list-item]

"""curve: all budgets from one set of scores."""

from itertools import pairwise

import pytest

from lpkernels.techniques.assignment import Formats, Pins, Scores, curve, demote, group
from tests.techniques.assignment.networks import chain

GROUPS = group(chain())
SCORES = Scores.of(GROUPS, {0: 0.02, 1: 0.9, 2: 0.1, 3: 0.4})


def test_the_curve_of_the_chain():
    # Of 173,280 bits, group 0 saves 4,384, group 1 51,520, group 2 25,936 and group 3 1,296.
    assert curve(GROUPS, SCORES) == (
        (173_280, 0.0, ()),
        (168_896, 0.02, (0,)),
        (147_344, 0.1, (2,)),
        (142_960, pytest.approx(0.12), (2, 0)),
        (141_664, pytest.approx(0.52), (2, 0, 3)),
        (121_760, 0.9, (1,)),
        (117_376, pytest.approx(0.92), (0, 1)),
        (95_824, pytest.approx(1.0), (2, 1)),
        (91_440, pytest.approx(1.02), (2, 0, 1)),
        (90_144, pytest.approx(1.42), (2, 0, 1, 3)),
    )


def test_every_point_is_what_demote_finds_for_its_bits_and_one_less_is_the_next():
    points = curve(GROUPS, SCORES)
    for point, next_one in pairwise(points):
        for bits, expected in ((point.bits, point), (point.bits - 1, next_one)):
            made = demote(GROUPS, bits=bits, order="sensitivity", scores=SCORES)
            assert (made.bits, made.low_groups) == (expected.bits, expected.low_groups)


def test_pins_and_formats_are_those_of_demote():
    pins, formats = Pins(high="conv1.Y", low="in.Y"), Formats.same("fp32", "bf16")
    points = curve(GROUPS, SCORES, formats=formats, pins=pins)
    nothing = demote(GROUPS, 0.0, formats=formats, pins=pins)
    everything = demote(GROUPS, 1.0, formats=formats, pins=pins)
    assert (points[0].bits, points[-1].bits) == (nothing.bits, everything.bits)
    assert points[0].bits == 32 * 10830 - 16 * 256


def test_scores_of_other_groups_are_refused():
    with pytest.raises(ValueError, match="scores: they are of another model"):
        curve(group(chain(loss_numel=4)), SCORES)

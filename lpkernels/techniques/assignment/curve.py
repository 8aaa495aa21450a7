"""The whole curve of memory and score, from the scores of one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lpkernels.techniques.assignment.demotion import Walk
from lpkernels.techniques.assignment.grouping import Group
from lpkernels.techniques.assignment.knapsack import front, items_of
from lpkernels.techniques.assignment.pins import NONE, Pins, held, tie
from lpkernels.techniques.assignment.precisions import PAPER, Formats
from lpkernels.techniques.assignment.sensitivity import Scores, scores_of


class Point(NamedTuple):
    """bits: of all tensors. score: the sum over low_groups, in the order of cost per bit."""

    bits: int
    score: float
    low_groups: tuple[int, ...]


def curve(
    groups: Sequence[Group],
    scores: Scores | Mapping[int, float],
    *,
    formats: Formats = PAPER,
    pins: Pins = NONE,
) -> tuple[Point, ...]:
    """Every assignment of whole groups that no other one of fewer bits or less score beats. Ours.

    The curve goes from all groups in high precision, with most bits and a score of 0, to all groups
    that save bits in low precision. demote(groups, bits=b, order="sensitivity", scores=scores) is,
    of those within b bits, the one of least score. `front` says how long it gets.

    Args: as those of `demote`, with the scores of `score`.
    Raises: ValueError: scores of other groups, a glob that matches nothing.
    """
    kept = held(groups, pins)
    groups = tie(groups, pins)
    costs = scores_of(scores, groups)
    walk = Walk(formats, kept.high, sum(group.numel for group in groups))
    for group in groups:
        walk.start(group, kept.low)
    gains = {group.index: walk.saved(group) for group in groups}
    choices = front(items_of(gains, costs))
    return tuple(Point(walk.bits - c.gain, float(c.cost), c.keys) for c in choices)

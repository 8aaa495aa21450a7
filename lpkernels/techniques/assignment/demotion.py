"""Demotion: which groups go to low precision, for a ratio or a budget of bits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, get_args

from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.grouping import Group, TensorSpec
from lpkernels.techniques.assignment.knapsack import by_cost_per_gain, cheapest, items_of
from lpkernels.techniques.assignment.pins import NONE, Pins, held, tie
from lpkernels.techniques.assignment.precisions import PAPER, Formats
from lpkernels.techniques.assignment.sensitivity import Scores, scores_of

Order = Literal["decreasing", "increasing", "random", "sensitivity", "sensitivity_prefix"]
#: Orders that take scores.
SCORED = ("sensitivity", "sensitivity_prefix")


def demote(
    groups: Sequence[Group],
    ratio: float | Fraction | None = None,
    *,
    order: Order = "decreasing",
    seed: int | None = None,
    formats: Formats = PAPER,
    pins: Pins = NONE,
    bits: int | None = None,
    scores: Scores | Mapping[int, float] | None = None,
) -> Assignment:
    """The assignment that has the first groups of an order in low precision, until enough are.

    All groups are high at first. Then, group by group, the rule stops if the low-precision ratio
    has reached `ratio` (or the bits are within `bits`), and else takes the group to low precision.
    So it takes the smallest prefix of the order that is enough, and the prefix of a smaller demand
    is a part of the prefix of a larger one. All comparisons are in integers, with the ratio as the
    exact value of the float; 0 demotes nothing and 1 everything.

    These are the orders, in which equal groups go by index: "decreasing" size, the paper's;
    "increasing" size; "random" by seed, the same on every machine; and "sensitivity_prefix", ours,
    by score over the bits that the group saves, least first.

    "sensitivity", ours, is no prefix but an exact knapsack: of all sets of groups that are enough
    it takes one with the least sum of scores, and of these one with the most in low precision
    (`front` says what that costs). The sets of two demands need not lie in one another. The prefix
    is its greedy approximation, best where groups could be demoted in part. Scores do not depend on
    the demand, so the scores of one pass serve for the whole `curve`.

    Tensors that pins hold high, and tensors of operations that are not known, stay high; so a ratio
    above the share of the others is not reached, and `Assignment.ratio` says which is. The size of
    a group counts them.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), Algorithm 1, second part.

    Args:
        groups: of `group`.
        ratio: 0 to 1.
        order, seed: as above.
        formats: what high and low are.
        pins: tensors held or tied.
        bits: instead of the ratio: the most bits that all tensors may have together, ours.
        scores: for the orders by sensitivity: of each group, what its demotion costs (`score`).

    Raises:
        TypeError, ValueError: ratio outside [0, 1], both or none of ratio and bits, an unknown
            order, a seed or scores missing or not used, a glob that matches nothing, a budget of
            bits that cannot be met.
    """
    groups = tuple(groups)
    _check(groups, ratio, bits, order, seed)
    kept = held(groups, pins)
    groups = tie(groups, pins)
    walk = Walk(formats, kept.high, sum(group.numel for group in groups))
    for group in groups:
        walk.start(group, kept.low)
    enough = _enough(walk, ratio, bits)
    costs = _costs(order, scores, groups)
    if order == "sensitivity":
        ordered = _least(groups, walk, costs, ratio, bits)
    else:
        ordered = _ordered(groups, order, seed, walk, costs)
    for group in ordered:
        if enough():
            break
        walk.lower(group)
    if bits is not None and not enough():
        raise ValueError(
            f"demote: bits={bits:,} cannot be met: with every group in low precision there are "
            f"{walk.bits:,}; allow as many, or take narrower formats or fewer pins"
        )
    return Assignment(groups, frozenset(walk.low), tuple(walk.lowered), formats, pins)


@dataclass
class Walk:
    """How far a demotion is."""

    formats: Formats
    high: frozenset[str]
    numel: int
    low: set[str] = field(default_factory=set)
    lowered: list[int] = field(default_factory=list)
    low_numel: int = 0
    bits: int = 0

    def start(self, group: Group, low: frozenset[str]) -> None:
        """Counts a group in, with what is held low already there."""
        for tensor in group.tensors:
            is_low = tensor.key in low
            self.bits += self.formats.bits(tensor, is_low)
            if is_low:
                self.low.add(tensor.key)
                self.low_numel += tensor.numel

    def lower(self, group: Group) -> None:
        left = self.left(group)
        if left:
            self.lowered.append(group.index)
        self.bits -= self.saved(group)
        for tensor in left:
            self.low.add(tensor.key)
            self.low_numel += tensor.numel

    def left(self, group: Group) -> list[TensorSpec]:
        """The tensors that its demotion would take to low precision."""
        return [t for t in group.tensors if t.key not in self.low and t.key not in self.high]

    def saved(self, group: Group) -> int:
        """Bits that its demotion would save."""
        left = self.left(group)
        return sum(self.formats.bits(t, False) - self.formats.bits(t, True) for t in left)


def _enough(walk: Walk, ratio: float | Fraction | None, bits: int | None) -> Callable[[], bool]:
    if bits is not None:
        return lambda: walk.bits <= bits
    share = Fraction(ratio or 0)
    return lambda: walk.low_numel * share.denominator >= share.numerator * walk.numel


def _costs(
    order: Order, scores: Scores | Mapping[int, float] | None, groups: Sequence[Group]
) -> Mapping[int, float]:
    if (scores is not None) != (order in SCORED):
        raise ValueError(
            f"demote: scores go with order='sensitivity' or 'sensitivity_prefix', got {order=} and "
            f"{'no scores' if scores is None else 'scores'}"
        )
    return {} if scores is None else scores_of(scores, groups)


def _ordered(
    groups: Sequence[Group], order: Order, seed: int | None, walk: Walk, costs: Mapping[int, float]
) -> list[Group]:
    if order == "random":
        # random() is the method of which Python promises the same numbers in every version.
        draw = random.Random(seed)
        drawn = {group.index: draw.random() for group in groups}
        return sorted(groups, key=lambda group: drawn[group.index])
    if order == "sensitivity_prefix":
        return _by_cost(groups, {group.index: walk.saved(group) for group in groups}, costs)
    sign = -1 if order == "decreasing" else 1
    return sorted(groups, key=lambda group: (sign * group.numel, group.index))


def _by_cost(
    groups: Sequence[Group], gains: Mapping[int, int], costs: Mapping[int, float]
) -> list[Group]:
    by_index = {group.index: group for group in groups}
    return [by_index[item.key] for item in by_cost_per_gain(items_of(gains, costs))]


def _least(
    groups: Sequence[Group],
    walk: Walk,
    costs: Mapping[int, float],
    ratio: float | Fraction | None,
    bits: int | None,
) -> list[Group]:
    """The groups of the least sum of costs that are enough; all, if these are not."""
    saved = {group.index: walk.saved(group) for group in groups}
    if bits is not None:
        gains, need = saved, walk.bits - bits
    else:
        gains = {group.index: sum(t.numel for t in walk.left(group)) for group in groups}
        need = math.ceil(Fraction(ratio or 0) * walk.numel) - walk.low_numel
    found = cheapest(items_of(gains, costs), need)
    taken = set(gains if found is None else found.keys)
    return [each for each in _by_cost(groups, saved, costs) if each.index in taken]


def _check(
    groups: Sequence[Group],
    ratio: float | Fraction | None,
    bits: int | None,
    order: str,
    seed: int | None,
) -> None:
    if not groups or not all(isinstance(group, Group) for group in groups):
        raise TypeError("demote: expected the groups of group(ops), at least one")
    if (ratio is None) == (bits is None):
        raise ValueError(f"demote: give ratio or bits, one of them; got {ratio=} and {bits=}")
    if ratio is not None:
        if isinstance(ratio, bool) or not isinstance(ratio, float | int | Fraction):
            raise TypeError(f"demote: ratio must be a number of 0 to 1, got {ratio!r}")
        # Written so that NaN is refused too.
        if not 0 <= ratio <= 1:
            raise ValueError(f"demote: ratio must be from 0 to 1, got {ratio}")
    if bits is not None and (isinstance(bits, bool) or not isinstance(bits, int) or bits < 0):
        raise ValueError(f"demote: bits must be an int of at least 0, got {bits!r}")
    if order not in get_args(Order):
        raise ValueError(f"demote: order must be one of {', '.join(get_args(Order))}; got {order}")
    if (order == "random") != isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(
            f"demote: order='random' takes an int as seed, and no other does; got order={order!r} "
            f"and {seed=}"
        )

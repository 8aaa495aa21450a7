"""Demotion: which groups go to low precision, for a ratio or a budget of bits."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from lpkernels.schemas import schema
from lpkernels.techniques import checks
from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.operations import Group, Like, TensorSpec, check_like
from lpkernels.techniques.assignment.precisions import NONE, PAPER, Formats, Pins, held, tie
from lpkernels.techniques.saving import read, write

Order = Literal["decreasing", "increasing", "random", "sensitivity"]

_WHAT = "lpkernels assignment's scores"


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
    like: Like = None,
) -> Assignment:
    """The assignment with the first groups of an order in low precision, as many as demanded.

    All groups are high at first. Then, group by group, the rule stops if the low-precision ratio
    has reached `ratio` (or the bits are within `bits`), and else takes the group to low precision.
    So it takes the smallest prefix of the order that is enough, and the prefix of a smaller demand
    is a part of the prefix of a larger one. All comparisons are in integers, with the ratio as the
    exact value of the float; 0 demotes nothing and 1 everything.

    These are the orders, in which equal groups go by index: "decreasing" size, the paper's;
    "increasing" size; "random" by seed, the same on every machine.

    "sensitivity", ours, is no prefix but an exact knapsack: of all sets of groups that are enough
    it takes one with the least sum of scores, and of these one with the most in low precision
    (`cheapest` says how long it takes). The sets of two demands need not lie in one another. Scores
    do not depend on the demand, so the scores of one pass serve for every demand.

    Tensors that pins hold high, and tensors of operations that are not known, stay high; so a ratio
    above the share of the other tensors is not reached, and `Assignment.ratio` is then lower. The
    size of a group counts them.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), Algorithm 1, second part.

    Args:
        groups: of `group`.
        ratio: 0 to 1.
        order, seed: as above.
        formats: the formats of high and low precision.
        pins: tensors held or tied.
        bits: instead of the ratio: the most bits that all tensors may have together, ours.
        scores: for the order "sensitivity": the cost of each group's demotion (`score`).
        like: "release": as the authors' released code does, for groups of trace(..., like=
            "release"): "random" shuffles the groups by Python's `random.shuffle`, and the ratio is
            the sum of the groups' shares as floats, in the order taken. The release trains nothing
            where this sum ends above ratio + 0.1, unless the ratio is 0 or 1; here it is for you to
            compare. Its random order starts from the groups as the modules are defined; here they
            ascend, which is the same for the paper's networks.

    Raises:
        TypeError, ValueError: ratio outside [0, 1], both or none of ratio and bits, an unknown
            order, a seed or scores missing or not used, a glob that matches nothing, a budget of
            bits that cannot be met; like="release" with bits, scores or pins, which the release
            has not, or with groups of another trace.

    >>> from lpkernels.techniques.assignment import demote, group, trace
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> round(demote(group(trace(model, loss, batch)), 0.3).ratio, 3)
    0.56
    """
    groups = tuple(groups)
    if not groups or not all(isinstance(group, Group) for group in groups):
        raise TypeError("demote: expected the groups of group(ops), at least one")
    check_demand("demote", ratio, bits, order, seed)
    if (scores is not None) != (order == "sensitivity"):
        raise ValueError(
            f"demote: scores go with order='sensitivity', got {order=} and "
            f"{'no scores' if scores is None else 'scores'}"
        )
    check_like("demote", like)
    if like is not None:
        _check_released(groups, bits, order, pins)
    kept = held(groups, pins)
    groups = tie(groups, pins)
    state_of = _Demotion if like is None else _ReleasedDemotion
    state = state_of(formats, kept.high, sum(group.numel for group in groups), ratio, bits)
    for group in groups:
        state.start(group, kept.low)
    costs = {} if scores is None else scores_of(scores, groups)
    for group in _ordered(groups, order, seed, state, costs):
        if state.enough:
            break
        state.lower(group)
    if bits is not None and not state.enough:
        raise ValueError(
            f"demote: bits={bits:,} cannot be met: with every group in low precision there are "
            f"{state.bits:,}; allow as many, or take narrower formats or fewer pins"
        )
    return Assignment(groups, frozenset(state.low), tuple(state.lowered), formats, pins)


@dataclass
class _Demotion:
    """How far a demotion is, and the ratio or bits that it is to reach."""

    formats: Formats
    high: frozenset[str]
    numel: int
    ratio: float | Fraction | None
    most_bits: int | None
    low: set[str] = field(default_factory=set)
    lowered: list[int] = field(default_factory=list)
    low_numel: int = 0
    bits: int = 0

    def start(self, group: Group, low: frozenset[str]) -> None:
        """Counts a group in, with its tensors that are held low."""
        self.bits += sum(self.formats.bits(tensor, False) for tensor in group.tensors)
        self._lower([tensor for tensor in group.tensors if tensor.key in low])

    def lower(self, group: Group) -> None:
        left = self.left(group)
        if left:
            self.lowered.append(group.index)
        self._lower(left)

    def _lower(self, tensors: Sequence[TensorSpec]) -> None:
        self.bits -= self._saved(tensors)
        self.low.update(tensor.key for tensor in tensors)
        self.low_numel += sum(tensor.numel for tensor in tensors)

    def left(self, group: Group) -> list[TensorSpec]:
        """The tensors that the group's demotion would take to low precision."""
        return [t for t in group.tensors if t.key not in self.low and t.key not in self.high]

    def saved(self, group: Group) -> int:
        """Bits that the group's demotion would save."""
        return self._saved(self.left(group))

    def _saved(self, tensors: Sequence[TensorSpec]) -> int:
        return sum(self.formats.bits(t, False) - self.formats.bits(t, True) for t in tensors)

    @property
    def enough(self) -> bool:
        return self.missing <= 0

    @property
    def missing(self) -> int:
        """Bits that are still to be saved, or elements still to be lowered."""
        if self.most_bits is not None:
            return self.bits - self.most_bits
        return math.ceil(Fraction(self.ratio or 0) * self.numel) - self.low_numel


class _ReleasedDemotion(_Demotion):
    """As the released code counts: shares of all elements, added as floats."""

    share = 0.0

    def lower(self, group: Group) -> None:
        super().lower(group)
        self.share += group.numel / max(self.numel, 1)

    @property
    def enough(self) -> bool:
        # Rounded shares need not add up to 1, so a ratio of 1 takes all groups.
        return self.ratio == 0 or (self.ratio != 1 and self.share >= float(self.ratio or 0))

    def shuffled(self, groups: Sequence[Group], draw: random.Random) -> list[Group]:
        found = sorted(groups, key=lambda group: group.index)
        draw.shuffle(found)
        return found


def _check_released(groups: Sequence[Group], bits: Any, order: Any, pins: Pins) -> None:
    """Raises: ValueError: the released code has no such demotion."""
    given = {"bits": bits is not None, "order='sensitivity'": order == "sensitivity"}
    given["pins"] = pins != NONE
    for name, is_given in given.items():
        if is_given:
            raise ValueError(
                f'demote: like="release" takes a ratio and an order by size or at random, got '
                f"{name}; leave it out, or leave out like"
            )
    if any(group.like is None for group in groups):
        raise ValueError(
            'demote: like="release" needs groups of such a trace; give group(trace(model, loss, '
            'batch, like="release"))'
        )


def _ordered(
    groups: Sequence[Group],
    order: Order,
    seed: int | None,
    state: _Demotion,
    costs: Mapping[int, float],
) -> list[Group]:
    if order == "random":
        # Python promises the same numbers in every version for the method random().
        draw = random.Random(seed)
        if isinstance(state, _ReleasedDemotion):
            return state.shuffled(groups, draw)
        drawn = {group.index: draw.random() for group in groups}
        return sorted(groups, key=lambda group: drawn[group.index])
    if order == "sensitivity":
        return _least(groups, state, costs)
    sign = -1 if order == "decreasing" else 1
    return sorted(groups, key=lambda group: (sign * group.numel, group.index))


def _least(groups: Sequence[Group], state: _Demotion, costs: Mapping[int, float]) -> list[Group]:
    """The groups of the least sum of costs that are enough, by cost per bit saved, else all."""
    saved = gains = {group.index: state.saved(group) for group in groups}
    if state.most_bits is None:
        gains = {group.index: sum(t.numel for t in state.left(group)) for group in groups}
    found = cheapest(gains, costs, state.missing)
    taken = set(gains if found is None else found)
    by_index = {group.index: group for group in groups}
    return [by_index[index] for index in _by_cost_per_gain(saved, costs) if index in taken]


def check_demand(label: str, ratio: Any, bits: Any, order: Any, seed: Any) -> None:
    """Raises: TypeError, ValueError: wrong arguments of `demote`; label: the caller, in errors."""
    if (ratio is None) == (bits is None):
        raise ValueError(f"{label}: give ratio or bits, one of them; got {ratio=} and {bits=}")
    if ratio is not None:
        checks.number(f"{label}: ratio", ratio, least=0, most=1)
    if bits is not None:
        checks.whole(f"{label}: bits", bits, 0)
    checks.choice(f"{label}: order", order, get_args(Order))
    if (order == "random") != isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(
            f"{label}: order='random' takes an int as seed, and no other does; got order={order!r} "
            f"and {seed=}"
        )


@dataclass(frozen=True)
class Scores:
    """The cost of each group's demotion, in any unit: the cheapest is demoted first. Ours.

    scores: the costs by the index of the group, finite and at least 0.
    numels: the elements of each group, which show whether scores are of another model or batch.
    """

    scores: Mapping[int, float]
    numels: Mapping[int, int]

    @classmethod
    def of(cls, groups: Sequence[Group], scores: Mapping[int, float]) -> Scores:
        """Scores of these groups.

        Raises: ValueError: one is missing, of no group, or no finite number of at least 0.
        """
        checked = _checked(groups, scores)
        return cls(checked, {group.index: group.numel for group in groups})

    def save(self, path: str | Path) -> None:
        """Writes them as JSON."""
        rows = [[index, self.scores[index], self.numels[index]] for index in sorted(self.scores)]
        write(path, {"what": _WHAT, "schema": schema(_WHAT), "groups": rows}, rows="")

    @classmethod
    def load(cls, path: str | Path, groups: Sequence[Group]) -> Scores:
        """Reads what `save` wrote.

        Raises: ValueError: no such file, or scores of other groups.
        """
        rows = read(path, _WHAT, f"an {_WHAT}", "its save()", key="what")["groups"]
        found = cls({row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows})
        found.check(groups)
        return found

    def check(self, groups: Sequence[Group]) -> None:
        """Raises: ValueError: the scores are of other groups."""
        now = {group.index: group.numel for group in groups}
        if now != dict(self.numels):
            raise ValueError(
                f"scores: they are of another model, batch or tying: of {len(self.numels)} groups "
                f"with {sum(self.numels.values()):,} elements, got {len(now)} with "
                f"{sum(now.values()):,}; score these groups"
            )


def scores_of(scores: Scores | Mapping[int, float], groups: Sequence[Group]) -> Mapping[int, float]:
    """Scores by group, checked against the groups."""
    if isinstance(scores, Scores):
        scores.check(groups)
        return scores.scores
    return _checked(groups, scores)


def _checked(groups: Sequence[Group], scores: Mapping[int, float]) -> dict[int, float]:
    indices = {group.index for group in groups}
    if set(scores) != indices:
        raise ValueError(
            f"scores: expected one for each of the groups {sorted(indices)}, missing "
            f"{sorted(indices - set(scores))}, of no group {sorted(set(scores) - indices)}"
        )
    for index, score in scores.items():
        if not (math.isfinite(score) and score >= 0):
            raise ValueError(
                f"scores: expected finite numbers of at least 0, got {score} for group {index}"
            )
    return dict(scores)


class _Subset(NamedTuple):
    """Some of the items; taken: bit i is set where item i is one."""

    gain: int
    cost: int
    taken: int


def cheapest(
    gains: Mapping[int, int], costs: Mapping[int, float], need: int
) -> tuple[int, ...] | None:
    """The cheapest set of items that together gain `need`; of equally cheap sets the one that gains
    most.

    The items are keys of both; all numbers are at least 0, and costs are exact as fractions. None:
    all items together do not gain it. Items that gain nothing are never taken.

    This is the 0/1 knapsack by Nemhauser and Ullmann's dynamic programme: it keeps the subsets that
    no other one beats, and drops a subset as too dear by a bound: the cost of the rest if items
    could be taken in parts. Of the groups of a network these are few (some thousand for 60 groups);
    in the worst case, costs in proportion to gains that are all powers of two, every group doubles
    their number.
    """
    if need <= 0:
        return ()
    keys = [key for key in _by_cost_per_gain(gains, costs) if gains[key]]
    if sum(gains[key] for key in keys) < need:
        return None
    exact = [Fraction(costs[key]) for key in keys]
    # Denominators of floats are powers of two, of which the largest is a multiple of all.
    unit = max(cost.denominator for cost in exact)
    items = [(gains[key], int(cost * unit)) for key, cost in zip(keys, exact, strict=True)]
    subsets, best = [_Subset(0, 0, 0)], _Subset(0, 0, 0)
    for i, (gain, cost) in enumerate(items):
        if best.gain < need:
            best = _Subset(best.gain + gain, best.cost + cost, best.taken | 1 << i)
    for i, (gain, cost) in enumerate(items):
        taken = [_Subset(s.gain + gain, s.cost + cost, s.taken | 1 << i) for s in subsets]
        subsets = _unbeaten([*subsets, *taken])
        found = [subset for subset in subsets if subset.gain >= need]
        best = min([best, *found], key=lambda subset: (subset.cost, -subset.gain))
        rest = items[i + 1 :]
        subsets = [s for s in subsets if _may_reach(s, rest, need, best.cost)]
    return tuple(key for i, key in enumerate(keys) if best.taken >> i & 1)


def _by_cost_per_gain(gains: Mapping[int, int], costs: Mapping[int, float]) -> list[int]:
    """The cheapest items first, equal ones by key; items that gain nothing come last."""

    def rank(key: int) -> tuple[bool, Fraction, int]:
        return not gains[key], Fraction(costs[key]) / (gains[key] or 1), key

    return sorted(gains, key=rank)


def _unbeaten(subsets: Sequence[_Subset]) -> list[_Subset]:
    """The subsets without any that gains no more than a cheaper one; gains and costs ascend."""
    kept: list[_Subset] = []
    for subset in sorted(subsets, key=lambda s: (-s.gain, s.cost)):
        if not kept or subset.cost < kept[-1].cost:
            kept.append(subset)
    kept.reverse()
    return kept


def _may_reach(subset: _Subset, rest: Sequence[tuple[int, int]], need: int, most: int) -> bool:
    """Whether the need can be met at no more than that cost, if more items are taken in parts."""
    left, cost = need - subset.gain, subset.cost
    if left <= 0:
        # Items without a cost may still add to the gain.
        return cost <= most
    for gain, price in rest:
        if gain >= left:
            return cost * gain + price * left <= most * gain
        left, cost = left - gain, cost + price
    return False

"""The 0/1 knapsack of groups: which to demote so that enough is gained at the least cost. Exact.

All arithmetic is in integers: a cost is a float, whose exact value is a whole number of some power
of two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple


class Item(NamedTuple):
    """An item that may be taken: its key, what taking it gains and what it costs, both at least
    0."""

    key: int
    gain: int
    cost: Fraction


class Choice(NamedTuple):
    """keys: of the items taken, in the order of cost per gain."""

    gain: int
    cost: Fraction
    keys: tuple[int, ...]


class _State(NamedTuple):
    """taken: bit i is set where item i, in the order of cost per gain, is."""

    gain: int
    cost: int
    taken: int


def by_cost_per_gain(items: Sequence[Item]) -> list[Item]:
    """The cheapest items first, equal ones by key; items that gain nothing come last."""
    return sorted(items, key=lambda x: (not x.gain, x.cost / x.gain if x.gain else x.cost, x.key))


def front(items: Sequence[Item]) -> list[Choice]:
    """Every choice that no other one beats, from nothing to all that gains something.

    A choice beats another if it gains no less and costs no more, and is better in one of the two;
    of equal choices only one is given. Items that gain nothing are in no choice.

    Nemhauser and Ullmann's dynamic programme. Its time is that of its length, which for the groups
    of a network is small (some thousand for 60 of them) but doubles with every group in the worst
    case, costs in proportion to gains that are all powers of two.
    """
    items = [item for item in by_cost_per_gain(items) if item.gain]
    costs, unit = _whole([item.cost for item in items])
    states = [_State(0, 0, 0)]
    for i, item in enumerate(items):
        states = _with(states, i, item.gain, costs[i])
    return [_choice(state, items, unit) for state in states]


def cheapest(items: Sequence[Item], need: int) -> Choice | None:
    """The choice of least cost among those that gain `need`; among equal ones the choice of most
    gain.

    None means that all items together do not gain it. It works as `front`, but leaves out states
    that are too dear by a bound on the cost of the rest, taken in parts.
    """
    if need <= 0:
        return Choice(0, Fraction(0), ())
    items = [item for item in by_cost_per_gain(items) if item.gain]
    if sum(item.gain for item in items) < need:
        return None
    costs, unit = _whole([item.cost for item in items])
    gains = [item.gain for item in items]
    states, best = [_State(0, 0, 0)], _prefix(gains, costs, need)
    for i, gain in enumerate(gains):
        states = _with(states, i, gain, costs[i])
        found = [state for state in states if state.gain >= need]
        best = min([best, *found], key=lambda state: (state.cost, -state.gain))
        states = [s for s in states if _may_reach(s, gains, costs, i + 1, need, best.cost)]
    return _choice(best, items, unit)


def _with(states: Sequence[_State], i: int, gain: int, cost: int) -> list[_State]:
    """The states with and without item i, without those that are beaten; both ascend."""
    taken = [_State(s.gain + gain, s.cost + cost, s.taken | 1 << i) for s in states]
    # Both runs are in order, so that sorting merges them.
    both = sorted([*states, *taken], key=lambda s: (-s.gain, s.cost))
    kept: list[_State] = []
    for state in both:
        if not kept or state.cost < kept[-1].cost:
            kept.append(state)
    kept.reverse()
    return kept


def _prefix(gains: Sequence[int], costs: Sequence[int], need: int) -> _State:
    """The first items, as many as are needed: a choice to begin with."""
    state = _State(0, 0, 0)
    for i, (gain, cost) in enumerate(zip(gains, costs, strict=True)):
        if state.gain >= need:
            break
        state = _State(state.gain + gain, state.cost + cost, state.taken | 1 << i)
    return state


def _may_reach(
    state: _State, gains: Sequence[int], costs: Sequence[int], start: int, need: int, most: int
) -> bool:
    """Whether the need can be met at no more than that cost, if more items are taken in parts."""
    left, cost = need - state.gain, state.cost
    if left <= 0:
        # Items without a cost may still add to the gain.
        return cost <= most
    for i in range(start, len(gains)):
        if gains[i] >= left:
            return cost * gains[i] + costs[i] * left <= most * gains[i]
        left, cost = left - gains[i], cost + costs[i]
    return False


def _whole(costs: Sequence[Fraction]) -> tuple[list[int], int]:
    """The costs as multiples of 1 / unit."""
    unit = 1
    for cost in costs:
        # Denominators of floats are powers of two, of which the largest is a multiple of all.
        unit = max(unit, cost.denominator)
    return [int(cost * unit) for cost in costs], unit


def _choice(state: _State, items: Sequence[Item], unit: int) -> Choice:
    keys = tuple(item.key for i, item in enumerate(items) if state.taken >> i & 1)
    return Choice(state.gain, Fraction(state.cost, unit), keys)


def items_of(gains: Mapping[int, int], costs: Mapping[int, float]) -> list[Item]:
    """Items by key, with the exact values of their costs."""
    return [Item(key, gain, Fraction(costs[key])) for key, gain in gains.items()]

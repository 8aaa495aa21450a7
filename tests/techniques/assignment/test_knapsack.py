"""The knapsack of groups, against all subsets."""

from fractions import Fraction
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from lpkernels.techniques.assignment.knapsack import Item, cheapest, front, items_of
from tests.loops import each


def subsets(items: list[Item]) -> list[tuple[int, Fraction]]:
    """Gain and exact cost of every subset."""
    return [
        (sum(x.gain for x in taken), sum((x.cost for x in taken), Fraction(0)))
        for size in range(len(items) + 1)
        for taken in combinations(items, size)
    ]


COSTS = st.floats(0, 1e9) | st.integers(0, 4).map(float)
ITEMS = st.lists(st.tuples(st.integers(0, 2**40) | st.integers(0, 4), COSTS), max_size=7).map(
    lambda rows: [Item(i, gain, Fraction(cost)) for i, (gain, cost) in enumerate(rows)]
)


def totals(items: list[Item], keys: tuple[int, ...]) -> tuple[int, Fraction]:
    assert len(set(keys)) == len(keys)
    return sum(items[k].gain for k in keys), sum((items[k].cost for k in keys), Fraction(0))


@given(ITEMS, st.data())
def test_the_cheapest_choice_is_that_of_all_subsets(items: list[Item], data: st.DataObject):
    need = data.draw(st.integers(-1, sum(x.gain for x in items) + 1))
    found = cheapest(items, need)
    enough = [(cost, -gain) for gain, cost in subsets(items) if gain >= need]
    if need <= 0:
        assert found == (0, 0, ())
    elif not enough:
        assert found is None
    else:
        assert found is not None
        assert (found.cost, -found.gain) == min(enough)
        assert totals(items, found.keys) == (found.gain, found.cost)


@given(ITEMS)
def test_the_front_is_what_no_subset_beats(items: list[Item]):
    found = front(items)
    every = set(subsets(items))
    best = {
        (gain, cost)
        for gain, cost in every
        if not any(g >= gain and c <= cost and (g, c) != (gain, cost) for g, c in every)
    }
    assert {(choice.gain, choice.cost) for choice in found} == best
    assert len(found) == len(best)
    assert found == sorted(found)
    for choice in found:
        assert totals(items, choice.keys) == (choice.gain, choice.cost)


def test_costs_are_compared_exactly():
    # In floats, 0.1 + 0.2 is above 0.3. The exact sum of the two floats is above the float 0.3 too,
    # by 2^-54, which a sum in floats that is larger by 10^6 would lose.
    found = cheapest(items_of({0: 1, 1: 1, 2: 2, 3: 5}, {0: 0.1, 1: 0.2, 2: 0.3, 3: 1e6}), 7)
    assert found == (7, Fraction(0.3) + 10**6, (2, 3))


@each("count", [40, 60])
def test_sixty_groups_are_few(count: int):
    sizes = {i: 8 * (1000 + 7919 * i * i % 100_003) for i in range(count)}
    items = items_of(sizes, {i: (104_729 * i % 9_973) / 997 + 0.01 for i in range(count)})
    whole = front(items)
    assert whole[-1].gain == sum(sizes.values())
    for share in (0.1, 0.5, 0.9):
        need = int(share * whole[-1].gain)
        found = cheapest(items, need)
        assert found is not None
        assert found.cost == next(each.cost for each in whole if each.gain >= need)

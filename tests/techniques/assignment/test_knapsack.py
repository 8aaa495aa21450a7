"""The knapsack of groups, against all subsets."""

from fractions import Fraction
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from lpkernels.techniques.assignment.demotion import cheapest
from tests.loops import each

Gains = dict[int, int]
Costs = dict[int, float]


def totals(gains: Gains, costs: Costs, keys: tuple[int, ...]) -> tuple[int, Fraction]:
    """Gain and exact cost of these items."""
    assert len(set(keys)) == len(keys)
    return sum(gains[k] for k in keys), sum((Fraction(costs[k]) for k in keys), Fraction(0))


def subsets(gains: Gains, costs: Costs) -> list[tuple[int, Fraction]]:
    """Gain and exact cost of every subset."""
    sizes = range(len(gains) + 1)
    return [totals(gains, costs, taken) for size in sizes for taken in combinations(gains, size)]


COSTS = st.floats(0, 1e9) | st.integers(0, 4).map(float)
ITEMS = st.lists(st.tuples(st.integers(0, 2**40) | st.integers(0, 4), COSTS), max_size=7)


@given(ITEMS, st.data())
def test_the_cheapest_choice_is_that_of_all_subsets(items, data):
    gains = {i: gain for i, (gain, _) in enumerate(items)}
    costs = {i: cost for i, (_, cost) in enumerate(items)}
    need = data.draw(st.integers(-1, sum(gains.values()) + 1))
    found = cheapest(gains, costs, need)
    enough = [(cost, -gain) for gain, cost in subsets(gains, costs) if gain >= need]
    if need <= 0:
        assert found == ()
    elif not enough:
        assert found is None
    else:
        assert found is not None
        gain, cost = totals(gains, costs, found)
        assert (cost, -gain) == min(enough)


def test_costs_are_compared_exactly():
    # In floats, 0.1 + 0.2 is above 0.3. The exact sum of the two floats is above the float 0.3 too,
    # by 2^-54, which a sum in floats that is larger by 10^6 would lose.
    found = cheapest({0: 1, 1: 1, 2: 2, 3: 5}, {0: 0.1, 1: 0.2, 2: 0.3, 3: 1e6}, 7)
    assert found == (2, 3)


def unbeaten(gains: Gains, costs: Costs) -> list[tuple[int, Fraction]]:
    """Gain and cost of each subset that no other one beats, descending."""
    front = [(0, Fraction(0))]
    for key, gain in gains.items():
        cost = Fraction(costs[key])
        more = [(g + gain, c + cost) for g, c in front]
        both, front = sorted([*front, *more], key=lambda x: (-x[0], x[1])), []
        for point in both:
            if not front or point[1] < front[-1][1]:
                front.append(point)
    return front


@each("count", [40, 60])
def test_sixty_groups_are_few(count: int):
    gains = {i: 8 * (1000 + 7919 * i * i % 100_003) for i in range(count)}
    costs = {i: (104_729 * i % 9_973) / 997 + 0.01 for i in range(count)}
    front = unbeaten(gains, costs)
    for share in (0.1, 0.5, 0.9):
        need = int(share * sum(gains.values()))
        found = cheapest(gains, costs, need)
        assert found is not None
        assert totals(gains, costs, found)[1] == min(c for gain, c in front if gain >= need)

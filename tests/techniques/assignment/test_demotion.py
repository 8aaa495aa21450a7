"""demote: the prefix of groups in low precision."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpkernels.techniques.assignment import (
    Formats,
    Group,
    Op,
    Pins,
    Scores,
    TensorSpec,
    demote,
    group,
)
from tests.loops import each
from tests.techniques.assignment.networks import chain

# The loss is counted as in the paper's code; the numbers of its rule are known for that count.
GROUPS = group(chain(loss_numel=4))


@each(
    "ratio, order, low, reached, bits, bit_ratio",
    [
        (0.0, "decreasing", (), 0.0, 173376, 0.0),
        (0.01, "decreasing", (1,), 0.621632, 121856, 0.594315),
        (0.62, "decreasing", (1,), 0.621632, 121856, 0.594315),
        (0.65, "decreasing", (1, 2), 0.930602, 95920, 0.893503),
        (0.8, "decreasing", (1, 2), 0.930602, 95920, 0.893503),
        (0.95, "decreasing", (1, 2, 0), 0.984496, 91536, 0.944075),
        (0.99, "decreasing", (1, 2, 0, 3), 1.0, 90192, 0.959579),
        (1.0, "decreasing", (1, 2, 0, 3), 1.0, 90192, 0.959579),
        (0.01, "increasing", (3,), 0.015504, 172032, 0.015504),
        (0.05, "increasing", (3, 0), 0.069398, 167648, 0.066076),
        (0.3, "increasing", (3, 0, 2), 0.378368, 141712, 0.365264),
        (0.5, "increasing", (3, 0, 2, 1), 1.0, 90192, 0.959579),
    ],
)
def test_the_largest_or_smallest_groups_go_first(
    ratio: float, order: Any, low: tuple[int, ...], reached: float, bits: int, bit_ratio: float
) -> None:
    made = demote(GROUPS, ratio, order=order)
    assert made.low_groups == low
    assert made.ratio == pytest.approx(reached, abs=5e-7)
    assert (made.bits, made.high_bits) == (bits, 173376)
    assert made.bit_ratio == pytest.approx(bit_ratio, abs=5e-7)


def test_the_scalar_loss_moves_the_last_group_alone():
    made = demote(group(chain()), 0.62)
    assert (made.low_groups, made.numel, made.low_numel) == ((1,), 10830, 6736)
    assert made.high_bits == 173280


def tensors(*sizes: int) -> tuple[Group, ...]:
    """Groups of one activation each."""
    return tuple(
        Group(i, (TensorSpec(f"t{i}.Y", "activation", size, i),)) for i, size in enumerate(sizes)
    )


THREE, COSTS = tensors(100, 10, 1000), {0: 4.0, 1: 5.0, 2: 20.0}


@each("order", ["decreasing", "increasing"])
def test_equal_groups_go_by_index(order: Any):
    assert demote(tensors(5, 5, 5), 0.5, order=order).low_groups == (0, 1)


def test_a_ratio_is_the_exact_value_of_the_float():
    # The float 0.1 is above a tenth, so one of ten elements does not reach it; it does reach the
    # fraction.
    ten = tensors(*[1] * 10)
    assert len(demote(ten, 0.1).low_groups) == 2
    assert len(demote(ten, Fraction(1, 10)).low_groups) == 1
    # The float 0.3 is below three tenths.
    assert len(demote(ten, 0.3).low_groups) == 3


def test_sizes_beyond_floats_are_compared_exactly():
    huge = tensors(2**60, 2**60 + 1)
    assert demote(huge, 0.5, order="increasing").low_groups == (0, 1)
    assert demote(huge, 0.5).low_groups == (1,)


def test_random_order_is_the_seeds_own():
    groups = tensors(*range(1, 9))
    orders = [demote(groups, 1.0, order="random", seed=seed).low_groups for seed in (123, 456, 789)]
    assert len(set(orders)) == 3
    assert demote(groups, 1.0, order="random", seed=123).low_groups == orders[0]
    # Python promises the numbers of random(), so these are the same everywhere.
    assert orders[0] == (5, 0, 1, 3, 7, 2, 6, 4)


def test_a_prefix_by_sensitivity_takes_the_cheapest_bits_first():
    # In these groups a saved bit costs 0.04, 0.5 and 0.02, divided by 8.
    made = demote(THREE, 0.95, order="sensitivity_prefix", scores=COSTS)
    assert made.low_groups == (2, 0)


def test_sensitivity_takes_the_cheapest_set():
    most = 16 * 1110
    saves = {1: (0,), 801: (0, 1), 881: (2,), 8001: (2, 0), 8801: (2, 0, 1)}
    for need, low in saves.items():
        made = demote(THREE, bits=most - need, order="sensitivity", scores=COSTS)
        assert made.low_groups == low
    # The ratio asks for 101 of 1110 elements: the first two groups have 110 and cost 9, the last
    # alone costs 20.
    made = demote(THREE, Fraction(101, 1110), order="sensitivity", scores=COSTS)
    assert made.low_groups == (0, 1)
    # The ratio asks for a hundredth of an element more than the first group has.
    made = demote(THREE, Fraction(10001, 111000), order="sensitivity", scores=COSTS)
    assert made.low_groups == (0, 1)
    assert demote(THREE, 0, order="sensitivity", scores=dict.fromkeys(range(3), 0)).bits == most


def test_what_is_held_low_counts_for_a_ratio_by_sensitivity():
    pins = Pins(low="t0.Y")
    made = demote(THREE, Fraction(110, 1110), order="sensitivity", scores=COSTS, pins=pins)
    assert (made.low_groups, made.low) == ((1,), {"t0.Y", "t1.Y"})


def test_sensitivity_takes_everything_where_pins_keep_a_ratio_from_being_reached():
    pins = Pins(high="t2.Y")
    made = demote(THREE, 0.5, order="sensitivity", scores=COSTS, pins=pins)
    assert made.low_groups == (0, 1)
    with pytest.raises(ValueError, match=r"bits=16,879 cannot be met.* there are 16,880"):
        demote(THREE, bits=16_879, order="sensitivity", scores=COSTS, pins=pins)


def test_a_budget_of_bits_stops_where_it_is_met():
    most = 16 * 1110
    made = [
        demote(THREE, bits=budget, order="sensitivity_prefix", scores=COSTS)
        for budget in (most, most - 1, most - 8000, most - 8001, most - 8880)
    ]
    assert [each.low_groups for each in made] == [(), (2,), (2,), (2, 0), (2, 0, 1)]
    assert [each.bits for each in made] == [17760, 9760, 9760, 8960, 8880]


def test_what_saves_no_bit_comes_last():
    groups = (
        Group(0, (TensorSpec("w.GP", "grad_weight", 10, 0),)),
        Group(1, (TensorSpec("a.Y", "activation", 10, 1),)),
    )
    made = demote(groups, 1.0, order="sensitivity", scores={0: 0, 1: 99})
    assert made.low_groups == (1, 0)


def test_scores_are_kept_for_every_budget(tmp_path):
    scores = Scores.of(GROUPS, {0: 0.5, 1: 3.0, 2: 1e-9, 3: 0.25})
    scores.save(tmp_path / "scores.json")
    loaded = Scores.load(tmp_path / "scores.json", GROUPS)
    assert loaded == scores
    orders: Any = ("sensitivity", "sensitivity_prefix")
    made = {
        o: [demote(GROUPS, r, order=o, scores=loaded).low_groups for r in (0.1, 0.5, 1)]
        for o in orders
    }
    # Group 1 alone is enough for a half, and costs a billionth less than it does with group 2.
    assert made["sensitivity"] == [(2,), (1,), (2, 1, 0, 3)]
    assert made["sensitivity_prefix"] == [(2,), (2, 1), (2, 1, 0, 3)]


def test_scores_of_other_groups_are_refused(tmp_path):
    Scores.of(GROUPS, dict.fromkeys(range(4), 1.0)).save(tmp_path / "scores.json")
    with pytest.raises(ValueError, match="scores: they are of another model, batch or tying: of 4"):
        Scores.load(tmp_path / "scores.json", group(chain()))
    with pytest.raises(ValueError, match=r"missing \[3\], of no group \[7\]"):
        Scores.of(GROUPS, {0: 1, 1: 1, 2: 1, 7: 1})
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"at least 0, got {bad} for group 2"):
            demote(GROUPS, 1.0, order="sensitivity", scores={0: 1, 1: 1, 2: bad, 3: 1})


@each(
    "ratio, options, error, match",
    [
        (1.1, {}, ValueError, "ratio must be from 0 to 1, got 1.1"),
        (-0.1, {}, ValueError, "ratio must be from 0 to 1, got -0.1"),
        (float("nan"), {}, ValueError, "ratio must be from 0 to 1, got nan"),
        ("0.5", {}, TypeError, "ratio must be a number of 0 to 1, got '0.5'"),
        (True, {}, TypeError, "ratio must be a number of 0 to 1, got True"),
        (None, {}, ValueError, "give ratio or bits, one of them; got ratio=None and bits=None"),
        (0.5, {"bits": 5}, ValueError, "give ratio or bits, one of them; got ratio=0.5"),
        (None, {"bits": 0.5}, ValueError, "bits must be an int of at least 0, got 0.5"),
        (None, {"bits": 90191}, ValueError, "bits=90,191 cannot be met.* there are 90,192"),
        (0.5, {"order": "size"}, ValueError, "order must be one of decreasing, .*; got size"),
        (0.5, {"order": "random"}, ValueError, "'random' takes an int as seed.* seed=None"),
        (0.5, {"seed": 1}, ValueError, "no other does; got order='decreasing' and seed=1"),
        (0.5, {"order": "sensitivity"}, ValueError, "scores go with order='sensitivity'.* no"),
        (0.5, {"order": "sensitivity_prefix"}, ValueError, "scores go with .*_prefix' and no"),
        (0.5, {"scores": {0: 1.0}}, ValueError, "got order='decreasing' and scores"),
    ],
)
def test_wrong_demands_are_refused(ratio: Any, options: dict, error: type, match: str):
    with pytest.raises(error, match=match):
        demote(GROUPS, ratio, **options)


def test_groups_are_expected():
    for wrong in ((), chain()):
        with pytest.raises(TypeError, match=r"demote: expected the groups of group\(ops\)"):
            demote(wrong, 0.5)


@st.composite
def networks(draw: st.DrawFn) -> list[Op]:
    """Operations that read earlier ones, some with parameters, some shared, some unknown."""
    sizes = st.integers(0, 2**40)
    ops = [Op("op0", False, (), {}, draw(sizes))]
    for i in range(1, draw(st.integers(1, 12))):
        inputs = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True))
        params = {f"w{k}": draw(sizes) for k in range(draw(st.integers(0, 2)))}
        ops.append(
            Op(f"op{i}", draw(st.booleans()), tuple(f"op{k}" for k in inputs), params, draw(sizes))
        )
    return ops


ORDERS = st.sampled_from([{}, {"order": "increasing"}, {"order": "random", "seed": 5}])
RATIOS = st.floats(0, 1)


@given(networks(), RATIOS, ORDERS)
def test_the_ratio_is_reached_by_the_smallest_prefix(ops: list[Op], ratio: float, order: dict):
    groups = group(ops)
    made = demote(groups, ratio, **order)
    total = sum(each.numel for each in groups)
    low = [groups[index].numel for index in made.low_groups]
    assert made.low_numel == sum(low)
    assert made.low == {t.key for i in made.low_groups for t in groups[i].tensors}
    # The comparison is exact, in rational numbers.
    assert sum(low) >= Fraction(ratio) * total
    if low:
        assert sum(low[:-1]) < Fraction(ratio) * total


@given(networks(), RATIOS, RATIOS, ORDERS)
def test_a_smaller_demand_is_a_prefix(ops: list[Op], a: float, b: float, order: dict):
    groups = group(ops)
    small, large = (demote(groups, ratio, **order) for ratio in sorted((a, b)))
    assert large.low_groups[: len(small.low_groups)] == small.low_groups
    assert small.bits >= large.bits


@given(networks(), st.data())
def test_budgets_of_bits_nest_and_are_met(ops: list[Op], data: st.DataObject):
    groups = group(ops)
    scores = {each.index: data.draw(st.floats(0, 1e6)) for each in groups}
    most, least = demote(groups, 0.0).bits, demote(groups, 1.0).bits
    budgets = sorted(data.draw(st.integers(least, most)) for _ in range(2))
    order: Any = "sensitivity_prefix"
    tight, loose = (demote(groups, bits=b, order=order, scores=scores) for b in budgets)
    assert tight.bits <= budgets[0]
    assert loose.bits <= budgets[1]
    assert tight.low_groups[: len(loose.low_groups)] == loose.low_groups


@given(networks(), RATIOS)
def test_every_group_is_low_or_high_as_a_whole_but_what_is_pinned(ops: list[Op], ratio: float):
    made = demote(group(ops), ratio, pins=Pins(high="op0.Y", low="op0.GY"))
    for home in made.groups:
        low = {t.key in made.low for t in home.tensors if t.key not in ("op0.Y", "op0.GY")}
        assert len(low) <= 1
    assert "op0.Y" not in made.low
    assert "op0.GY" in made.low


def test_other_formats_have_other_bits():
    made = demote(GROUPS, 1.0, formats=Formats.same("fp32", "bf16"))
    assert (made.high_bits, made.bits, made.bit_ratio) == (32 * 10836, 16 * 10836, 1.0)


def test_operations_that_are_not_known_are_named_beside_the_ratio() -> None:
    ops = [
        Op("in", False, (), {}, 4),
        Op("gru", False, ("in",), {"weight": 6}, 4, "gru", known=False),
        Op("fc", True, ("gru",), {"weight": 8}, 2),
    ]
    made = demote(group(ops), 0.5)
    assert made.unknown == ("gru",)
    assert str(made).splitlines()[-1] == "without what is computed inside gru"
    assert demote(group(ops[:1]), 0.5).unknown == ()

"""Plans, their costs and their texts: the tables of the papers, ties, remainders, refusals."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpkernels.techniques.cpt import (
    NAMED,
    PFQ,
    PROFILES,
    PrecisionScheduler,
    Schedule,
    bitops,
    bits_at,
    parse_schedule,
)
from tests.techniques.cpt.fakes import Named


def digits(plan: Any) -> str:
    return "".join(map(str, plan))


@pytest.mark.parametrize("total, bits, profile, expected", [
    # One cycle of the papers' code; digits stand for bits.
    (8, (3, 8), "cosine", "33456678"),
    (10, (3, 8), "cosine", "3334566788"),
    (16, (3, 8), "cosine", "3333445566677888"),
    (8, (4, 8), "cosine", "44556778"),
    (8, (3, 8), "linear", "34456677"),
    (8, (3, 8), "exp", "35677888"),
    (8, (3, 8), "rex", "33333445"),
])  # fmt: skip
def test_one_cycle_has_the_bits_of_the_published_code(
    total: int, bits: tuple[int, int], profile: str, expected: str
) -> None:
    assert digits(Schedule(bits, 1, profile).plan(total)) == expected
    steps = [bits_at(t, total, bits=bits, cycles=1, profile=profile) for t in range(total)]
    assert digits(steps) == expected


TEN = {
    "CR": "34673467", "CT": "87643467", "LR": "34673467", "LT": "87643467", "ER": "36783678",
    "ETV": "85433678", "ETH": "88763678", "RR": "33343334", "RTV": "88873334", "RTH": "84333334",
}  # fmt: skip


def test_the_ten_named_schedules() -> None:
    assert {name: digits(Schedule((3, 8), 2, **NAMED[name]).plan(8)) for name in NAMED} == TEN


def test_levels_of_a_published_run_change_where_they_should() -> None:
    plan = Schedule((3, 8), 32, remainder="partial").plan(64000)
    assert [int(np.argmax(plan == bits)) for bits in range(4, 9)] == [410, 739, 1000, 1262, 1591]
    shares = [0.205, 0.1645, 0.1305, 0.131, 0.1645, 0.2045]
    assert (np.bincount(plan)[3:] / 64000).tolist() == pytest.approx(shares, abs=1e-12)
    assert plan.mean() == pytest.approx(5.499)
    assert (plan == np.tile(Schedule((3, 8), 1).plan(2000), 32)).all()
    assert plan.dtype == np.int64


def published(step: int, total: int, low: int, high: int) -> int:
    """The formula of Fu et al. in float64, for one cycle."""
    z = step / total
    return int(np.rint(low + 0.5 * (high - low) * (1 + np.cos(np.pi * z + np.pi))))


def test_only_ties_differ_from_the_published_formula() -> None:
    differ = set()
    for low, high in [(3, 8), (4, 8), (4, 6), (3, 5), (2, 5), (1, 7)]:
        for total in (7, 12, 60, 97):
            for step in range(total):
                ours = bits_at(step, total, bits=(low, high), cycles=1)
                if ours != published(step, total, low, high):
                    differ.add(Fraction(step, total))
    assert differ <= {Fraction(1, 3), Fraction(1, 2), Fraction(2, 3)}


@pytest.mark.parametrize("step, total, bits, expected", [
    (1, 2, (3, 8), 6), (1, 2, (2, 5), 4), (1, 2, (4, 5), 4),
    # (1 - cos(pi / 3)) / 2 is 1/4, so the ties are 3.5 and 4.5.
    (1, 3, (3, 5), 4), (2, 3, (3, 5), 4), (1, 3, (4, 6), 4), (2, 3, (4, 6), 6),
])  # fmt: skip
def test_ties_go_to_the_even_width(step: int, total: int, bits: tuple, expected: int) -> None:
    assert bits_at(step, total, bits=bits, cycles=1) == expected


@pytest.mark.parametrize(
    "remainder, end", [("stretch", "667788"), ("partial", "883334"), ("hold_max", "888888")]
)
def test_steps_that_cycles_do_not_divide(remainder: str, end: str) -> None:
    assert digits(Schedule((3, 8), 8, remainder=remainder).plan(100)[-6:]) == end
    # Where there is no remainder they agree.
    assert digits(Schedule((3, 8), 4, remainder=remainder).plan(32)) == "33456678" * 4


@settings(max_examples=50)
@given(
    total=st.integers(32, 400),
    profile=st.sampled_from(sorted(PROFILES)),
    form=st.sampled_from(["repeated", "triangular"]),
    reflection=st.sampled_from(["horizontal", "vertical"]),
    remainder=st.sampled_from(["stretch", "partial", "hold_max"]),
)
def test_a_plan_is_bits_at_of_every_step(total: int, **options: Any) -> None:
    plan = Schedule((2, 9), 5, **options).plan(total)
    step = total * 2 // 3
    assert plan[step] == bits_at(step, total, bits=(2, 9), cycles=5, **options)
    assert 2 <= plan.min() and plan.max() <= 9


def test_what_comes_after_the_end_is_at_the_highest() -> None:
    assert [bits_at(t, 10, bits=(3, 8), cycles=1, profile="rex") for t in (9, 10, 99)] == [5, 8, 8]


def test_shuffled_bits_are_the_same_in_another_order() -> None:
    plain, shuffled = Schedule((3, 8), 4), Schedule((3, 8), 4, shuffled=True)
    a, b = plain.plan(165), shuffled.plan(165)
    assert sorted(a) == sorted(b) and list(a) != list(b)
    assert list(b) == [shuffled.bits_at(t, 165) for t in range(165)]
    first, second = (list(replace(shuffled, seed=seed).plan(165)) for seed in (0, 1))
    assert list(b) == first != second
    # The order is pinned: other versions of numpy must not change a run.
    pinned = Schedule((3, 8), 2, shuffled=True, seed=1).plan(16)
    assert digits(pinned) == "8376345835673466"


def test_functions_constants_and_the_widest_range() -> None:
    assert digits(Schedule((3, 8), 1, lambda z: z * z).plan(5)) == "33456"
    with pytest.raises(ValueError, match=r"from \[0, 1\] to \[0, 1\], got 1.5 at z=0.75"):
        Schedule((3, 8), 1, lambda z: 2 * z).plan(4)
    assert digits(Schedule((5, 5), 2).plan(8)) == "55555555"
    assert bits_at(9, 10, bits=(1, 24), cycles=1) == 23
    assert type(bits_at(0, 10, bits=(3, 8), cycles=1)) is int


# The cost of 64,000 steps in 32 cycles is that of one cycle.
CYCLE = 2000


@pytest.mark.parametrize("bits, backward, mean, relative, static, percent", [
    # Bits, backward bits, mean bits, relative cost, static cost, saving in per cent.
    ((3, 8), 8, 5.499, 0.039579, 0.0625, 36.67), ((3, 6), 6, 4.499, 0.024593, 0.035156, 30.05),
    ((3, 4), 6, 3.5, 0.017741, 0.020833, 14.84), ((4, 8), 8, 5.999, 0.043683, 0.0625, 30.11),
    ((4, 6), 6, 5.0, 0.027883, 0.035156, 20.69), ((4, 6), 8, 5.0, 0.034392, 0.042969, 19.96),
    ((5, 8), 8, 6.499, 0.048028, 0.0625, 23.16), ((5, 6), 8, 5.5, 0.038574, 0.042969, 10.23),
])  # fmt: skip
def test_savings_of_64000_steps(bits, backward, mean, relative, static, percent):
    assert Schedule(bits).cycles == 32
    scheduler = PrecisionScheduler(None, CYCLE, bits=bits, cycles=1, grad_bits=backward)
    assert scheduler.plan()[:, 0].mean() == pytest.approx(mean, abs=6e-4)
    assert scheduler.expected_cost() == pytest.approx(relative, abs=6e-7)
    assert scheduler.static_cost() == pytest.approx(static, abs=6e-7)
    saved = 1 - scheduler.expected_cost() / scheduler.static_cost()
    assert round(100 * saved, 2) == percent


def test_the_cost_of_one_step() -> None:
    assert bitops(32, 32) == 1.0
    assert bitops(4, 8) == (16 + 64) / 3072
    # More than 16 bits count as 32: nothing is rounded there.
    assert bitops(17, 8) == bitops(32, 8) == (1024 + 512) / 3072 and bitops(24, 20) == 1
    assert bitops(16, 16) == 0.25


def plan(text: str, total: int = 8) -> list[list[int]]:
    scheduler = parse_schedule(text)(None, total, seed=3)
    assert isinstance(scheduler, PrecisionScheduler)
    return scheduler.plan().T.tolist()


@pytest.mark.parametrize("text, forward, backward", [
    ("cpt:3-8/8,cycles=2", "34673467", "88888888"),
    ("cpt:3-8/6-8,cycles=1", "33456678", "66677788"), ("static:4/6", "44444444", "66666666"),
    ("rise:3-8/8", "33456678", "88888888"), ("fall:8-3/8", "88766543", "88888888"),
    ("fall:8-3/8,profile=exp,reflection=vertical", "86544333", "88888888"),
    ("cpt:3-8,cycles=1,profile=exp,form=triangular,reflection=vertical", "86544333", "88888888"),
    ("ETV:3-8/8,cycles=2", "85433678", "88888888"), ("fall:8-3/8-6", "88766543", "88877766"),
    ("cpt:3-8/8,cycles=3,remainder=partial", "36363636", "88888888"),
])  # fmt: skip
def test_the_plan_of_a_text(text: str, forward: str, backward: str) -> None:
    assert ["".join(map(str, row)) for row in plan(text)] == [forward, backward]


@pytest.mark.parametrize("name", NAMED)
def test_every_name_of_the_ten_is_a_kind(name: str) -> None:
    assert plan(f"{name}:3-8/8", 64)[0] == Schedule((3, 8), 8, **NAMED[name]).plan(64).tolist()


def test_shuffled_takes_the_seed_of_the_run_unless_it_has_its_own() -> None:
    bits = plan("shuffled:3-8/8,cycles=2", 64)
    assert bits == plan("shuffled:3-8/8,cycles=2,seed=3", 64)
    assert bits != plan("shuffled:3-8/8,cycles=2,seed=4", 64)
    assert sorted(bits[0]) == sorted(plan("cpt:3-8/8,cycles=2", 64)[0])


def test_the_bits_of_evaluation_are_read() -> None:
    assert parse_schedule("static:3/8,eval=2")(None, 8).eval_bits == 2


@pytest.mark.parametrize(
    "total, period", [(64000, 400), (320, 2), (239, 1), (241, 2), (20, 1)], ids=str
)
def test_stages_have_160_periods(total: int, period: int) -> None:
    scheduler = parse_schedule("pfq:3-4-6/6-6-8,eps=0.15,decay=0.4")(target := Named(), total)
    assert isinstance(scheduler, PFQ) and scheduler.stages == ((3, 6), (4, 6), (6, 8))
    assert (scheduler.period, scheduler.eps, scheduler.decay) == (period, 0.15, 0.4)
    assert target.calls == [(3, 6)]


def test_one_number_of_grad_bits_is_for_all_stages() -> None:
    assert parse_schedule("pfq:3-8/6")(None, 9).stages == ((3, 6), (8, 6))
    assert parse_schedule("pfq:3-8")(None, 9).stages == ((3, 8), (8, 8))


def test_a_period_beyond_the_run_is_refused() -> None:
    schedule = parse_schedule("pfq:3-8/8,period=50")
    assert schedule(None, 50).period == 50
    with pytest.raises(ValueError, match="period: expected at most the 49 steps of the run, got 5"):
        schedule(None, 49)

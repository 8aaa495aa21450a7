"""Schedules as text: read, printed back, refused."""

import pytest

from lpkernels.techniques.cpt import NAMED, PFQ, PrecisionScheduler, Schedule, parse_schedule
from tests.loops import rows
from tests.techniques.cpt.fakes import Named, Quantized, Separate, Summing


def plan(text: str, total: int = 8) -> list[list[int]]:
    scheduler = parse_schedule(text)(None, total, seed=3)
    assert isinstance(scheduler, PrecisionScheduler)
    return scheduler.plan().T.tolist()


@rows(
    "text, forward, backward",
    ("cpt:3-8/8,cycles=2", "34673467", "88888888"),
    ("cpt:3-8/6-8,cycles=1", "33456678", "66677788"), ("static:4/6", "44444444", "66666666"),
    ("rise:3-8/8", "33456678", "88888888"), ("fall:8-3/8", "88766543", "88888888"),
    ("fall:8-3/8,profile=exp,reflection=vertical", "86544333", "88888888"),
    ("cpt:3-8,cycles=1,profile=exp,form=triangular,reflection=vertical", "86544333", "88888888"),
    ("ETV:3-8/8,cycles=2", "85433678", "88888888"), ("fall:8-3/8-6", "88766543", "88877766"),
    ("cpt:3-8/8,cycles=3,remainder=partial", "36363636", "88888888"),
    ("rise:3-8/8,warmup=4", "88883467", "88888888"),
)  # fmt: skip
def test_the_plan_of_a_text(text: str, forward: str, backward: str) -> None:
    assert ["".join(map(str, row)) for row in plan(text)] == [forward, backward]


def test_every_name_of_the_ten_is_a_kind_and_shuffled_takes_the_seed_of_the_run() -> None:
    for name in NAMED:
        expected = Schedule((3, 8), 8, **NAMED[name]).plan(64).tolist()
        assert plan(f"{name}:3-8/8", 64)[0] == expected
    found = plan("shuffled:3-8/8,cycles=2", 64)
    assert found == plan("shuffled:3-8/8,cycles=2,seed=3", 64)
    assert found != plan("shuffled:3-8/8,cycles=2,seed=4", 64)
    assert sorted(found[0]) == sorted(plan("cpt:3-8/8,cycles=2", 64)[0])


def test_what_bits_mean_reaches_the_targets() -> None:
    layer, summing, separate = Quantized(2, 2), Summing(2, 2), Separate()
    fixed = parse_schedule("static:3/8,formats=3:e2m0_sat,eval=3")(layer, 8)
    assert str(layer.table[3]) == "e2m0_sat" and fixed.eval_bits == 3
    parse_schedule("rise:none,acc=4-10,acc_format=e6m{bits}_chunk64")(summing, 8)
    assert str(summing.accumulator) == "e6m4_chunk64" and summing.bits == (16, 16)
    parse_schedule("rise:3-8/8,weight=2-4")(separate, 8)
    assert separate.bits == (3, 2, 8)


def test_stages_make_their_scheduler() -> None:
    schedule = parse_schedule("pfq:3-4-6/6-6-8,eps=0.15,decay=0.4")
    for total, period in ((64000, 400), (320, 2), (239, 1), (241, 2), (20, 1)):
        scheduler = schedule(target := Named(), total)
        assert isinstance(scheduler, PFQ) and scheduler.stages == ((3, 6), (4, 6), (6, 8))
        assert (scheduler.period, scheduler.eps, scheduler.decay) == (period, 0.15, 0.4)
        assert target.calls == [(3, 6)]
    assert parse_schedule("pfq:3-8,formats=3:e2m0_sat+8:e4m3fn_sat")(None, 9).stages[1] == (8, 8)
    long = parse_schedule("pfq:3-8/8,period=50")
    assert long(Named(), 50).period == 50
    with pytest.raises(ValueError, match="period: expected at most the 49 steps of the run, got 5"):
        long(Named(), 49)


@rows(
    "text, match",
    ("cpt", "expected <kind>:<bits>/<grad bits>,<option>=<value>"),
    ("cycle:3-8", "kinds are .*docs/cyclic-precision.md"),
    ("cpt:3-8/8,cycle=3", "cannot read 'cycle=3' in .*; expected cycles=<value>, "),
    ("cpt:3-8/8,cycles=4,cycles=5", "gives its cycles twice; write it once"),
    ("cpt:3-8/8,cycles=four", "cannot read 'cycles=four' in .*: expected a whole number"),
    ("fall:3-8", "bits: expected bits that fall, such as 8-3, got '3-8'"),
    ("cpt:3-5-8", "bits: expected 3-8 or 8, got '3-5-8'"),
    ("cpt:3-8/", "grad bits"),
    ("static:3-8", "static: expected one number of bits, got 3-8"),
    ("cpt:none,acc=4,weight=3", "weight_bits: expected bits of the inputs too"),
    ("cpt:3-8/8,formats=3:e9", "formats"),
    ("pfq:3-8/6-6-8", "grad bits: expected one number, or 2, one a stage, got"),
)
def test_wrong_texts(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        parse_schedule(text)
    assert f"cannot read the schedule {text!r}" in str(caught.value)

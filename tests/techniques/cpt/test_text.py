"""Schedules as text: read, printed back, refused."""

import pytest

from lpkernels.techniques.cpt import (
    NAMED,
    OpenLoop,
    StagedLoop,
    named_schedule,
    parse_schedule,
)
from tests.loops import rows
from tests.techniques.cpt.fakes import Named, Quantized, Separate, Summing


@rows(
    "text, printed",
    ("cpt:3-8/8,cycles=32", "cpt:3-8/8"), ("cpt:8-32/32", ""), ("cpt:3-8", "cpt:3-8/8"),
    ("cpt:4-8/6-8,profile=exp,form=triangular,reflection=vertical,remainder=partial,warmup=5", ""),
    ("static:4/8", ""), ("static:4-4/8", "static:4/8"), ("rise:3-8/8", ""),
    ("cpt:3-8/8,cycles=1", "rise:3-8/8"), ("rise:3-8/8,profile=linear,warmup=3", ""),
    ("fall:8-3/8", ""), ("fall:8-3/8-6,profile=rex,reflection=vertical", ""),
    ("fall:none,acc=8-2", ""), ("shuffled:3-8/8,cycles=8", ""),
    ("shuffled:3-8/8,cycles=8,seed=4", ""), ("shuffled:3-8/8,cycles=1", ""),
    ("RTV:3-8/8", "cpt:3-8/8,cycles=8,profile=rex,form=triangular,reflection=vertical"),
    ("LT:3-8/8,cycles=4", "cpt:3-8/8,cycles=4,profile=linear,form=triangular"),
    ("cpt:3-8/8,formats=float", ""), ("cpt:3-8/8,formats=fixed{bits}_f2,eval=10", ""),
    ("cpt:3-4/8,formats=3:e2m0_sat+4:fp4_e2m1", ""), ("cpt:3-8/8,weight=2-4", ""),
    ("cpt:none,acc=4-10,acc_format=e6m{bits}_chunk64", ""), ("static:none,acc=7", ""),
    ("cpt:8/8,acc=4-10", ""),
    ("pfq:3-4-6-8/6-6-8-8", ""), ("pfq:3-4-8/8", ""), ("pfq:3-8", "pfq:3-8/8"),
    ("pfq:3-8/6-6,period=400", "pfq:3-8/6,period=400"), ("pfq:3-8/8,eps=0.15,decay=0.4,eval=8", ""),
    ("pfq:3-8/8,formats=3:e2m0_sat+8:e4m3fn_sat", ""),
)  # fmt: skip
def test_a_schedule_prints_itself_back(text: str, printed: str) -> None:
    schedule = parse_schedule(text)
    assert str(schedule) == (printed or text)
    assert parse_schedule(str(schedule)) == schedule


def plan(text: str, total: int = 8) -> list[list[int]]:
    schedule = parse_schedule(text)
    assert isinstance(schedule, OpenLoop)
    return schedule.scheduler(Named(), total, seed=3).plan().T.tolist()


@rows(
    "text, forward, backward",
    ("cpt:3-8/8,cycles=2", "34673467", "88888888"),
    ("cpt:3-8/6-8,cycles=1", "33456678", "66677788"), ("static:4/6", "44444444", "66666666"),
    ("rise:3-8/8", "33456678", "88888888"), ("fall:8-3/8", "88766543", "88888888"),
    ("fall:8-3/8,profile=exp,reflection=vertical", "86544333", "88888888"),
    ("ETV:3-8/8,cycles=2", "85433678", "88888888"), ("rise:3-8/8,warmup=4", "88883467", "88888888"),
)  # fmt: skip
def test_the_plan_of_a_text(text: str, forward: str, backward: str) -> None:
    assert ["".join(map(str, row)) for row in plan(text)] == [forward, backward]


def test_every_name_of_the_ten_is_a_kind_and_shuffled_takes_the_seed_of_the_run() -> None:
    for name in NAMED:
        expected = named_schedule(name, (3, 8)).plan(64).tolist()
        assert plan(f"{name}:3-8/8", 64)[0] == expected
    found = plan("shuffled:3-8/8,cycles=2", 64)
    assert found == plan("shuffled:3-8/8,cycles=2,seed=3", 64)
    assert found != plan("shuffled:3-8/8,cycles=2,seed=4", 64)
    assert sorted(found[0]) == sorted(plan("cpt:3-8/8,cycles=2", 64)[0])


def test_what_bits_mean_reaches_the_targets() -> None:
    layer, summing, separate = Quantized(2, 2), Summing(2, 2), Separate()
    fixed = parse_schedule("static:3/8,formats=3:e2m0_sat,eval=3").scheduler(layer, 8)
    assert str(layer.table[3]) == "e2m0_sat" and fixed.eval_bits == 3
    parse_schedule("rise:none,acc=4-10,acc_format=e6m{bits}_chunk64").scheduler(summing, 8)
    assert str(summing.accumulator) == "e6m4_chunk64" and summing.bits == (16, 16)
    parse_schedule("rise:3-8/8,weight=2-4").scheduler(separate, 8)
    assert separate.bits == (3, 2, 8)


def test_stages_make_their_scheduler() -> None:
    schedule = parse_schedule("pfq:3-4-6/6-6-8,eps=0.15,decay=0.4")
    assert isinstance(schedule, StagedLoop) and schedule.stages == ((3, 6), (4, 6), (6, 8))
    for total, period in ((64000, 400), (320, 2), (239, 1), (241, 2), (20, 1)):
        made = schedule.scheduler(target := Named(), total)
        assert (made.period, made.eps, made.decay) == (period, 0.15, 0.4)
        assert target.calls == [(3, 6)]
    long = parse_schedule("pfq:3-8/8,period=50")
    assert isinstance(long, StagedLoop) and long.scheduler(Named(), 50).period == 50
    with pytest.raises(ValueError, match="period: expected at most the 49 steps of the run, got 5"):
        long.scheduler(Named(), 49)


@rows(
    "text, match",
    ("cpt", "expected <kind>:<bits>/<grad bits>,<option>=<value>"),
    ("cycle:3-8", "kinds are .*docs/cyclic-precision.md"),
    ("cpt:3-8/8,cycle=3", "cannot read 'cycle=3' in .*; expected cycles=<value>, "),
    ("cpt:3-8/8,seed=3", "cannot read 'seed=3' in"),
    ("cpt:3-8/8,cycles", "cannot read 'cycles' in"),
    ("cpt:3-8/8,cycles=4,cycles=5", "gives its cycles twice; write it once"),
    ("cpt:3-8/8,cycles=four", "cannot read 'cycles=four' in .*: expected a whole number"),
    ("cpt:3-8/8,cycles=0", "cycles: expected at least 1, got 0"),
    ("cpt:8-3", r"bits: expected \(lowest, highest\), got \(8, 3\)"),
    ("fall:3-8", "bits: expected bits that fall, such as 8-3, got '3-8'"),
    ("cpt:3-40", "expected 1 to 32 bits, got 40"),
    ("cpt:3-5-8", "bits: expected 3-8 or 8, got '3-5-8'"),
    ("cpt:x", "bits: expected a whole number, got 'x'"),
    ("cpt:3-8/", "grad bits"),
    ("static:3-8", "static: expected one number of bits, got 3-8"),
    ("cpt:none", "expected acc=<bits>, got neither bits nor acc"),
    ("cpt:none,acc=4,weight=3", "weight: bits of weights need those of the inputs"),
    ("cpt:3-8/8,acc_format=e5m{bits}", "acc_format: belongs to acc=<bits>"),
    ("cpt:none,acc=4-10,acc_format=e6", "text with {bits} in it once"),
    ("cpt:2-8/8,formats=float", "the table lacks 2"),
    ("cpt:3-8/8,formats=3:e9", "formats"),
    ("cpt:3-8/8,profile=sine", "profile: expected one of cosine"),
    ("pfq:8", r"stages: expected two or more, got \[\(8, 8\)\]"),
    ("pfq:3-8-6/8", r"stages: expected bits that do not fall, got \(8, 8\) and then \(6, 8\)"),
    ("pfq:3-8/8-6", r"bits that do not fall, got \(3, 8\) and then \(8, 6\)"),
    ("pfq:3-8/6-6-8", "grad bits: expected one number, or 2, one a stage, got"),
    ("pfq:3-40/8", "expected 1 to 32 bits, got 40"),
    ("pfq:3-x/8", "bits: expected a whole number, got '3-x'"),
    ("pfq:3-8/8,eps=0", "eps: expected a finite number above 0"),
    ("pfq:3-8/8,decay=1.5", "decay: expected a finite number above 0 and of at most 1, got 1.5"),
    ("pfq:3-8/8,period=-1", "period: expected at least 0, got -1"),
    ("pfq:3-8/8,weight=4", "cannot read 'weight=4'"),
    ("pfq:3-8/8,formats=3:e2m0_sat", "the table lacks 8"),
)
def test_wrong_texts(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        parse_schedule(text)
    assert f"cannot read the schedule {text!r}" in str(caught.value)

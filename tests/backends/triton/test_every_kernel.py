"""Every kernel, and every rounding that the planner can choose, compiles ahead of time.

One launch of each kernel is compiled wherever the tests run, and pytest -m slow does the rest. The
planner's pure functions, run over all formats, give all kernels that can be; `every` gives the
compiled ones. First come, for sm_90, every kernel, tier, mode and constant, and for the others
every kernel, tier and constant (`kernel_keys.covering`); then all that is left. A group takes up to
20 seconds: it has up to 52 kernels, and LLVM takes seconds for each of the longest.
"""

import ast
import itertools
import operator
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.triton.elementwise.quantize import way
from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats import FloatFormat
from lpkernels.rounding import ROUNDINGS
from tests.backends.triton import kernel_keys as keys
from tests.backends.triton.every.kernels import GROUPS, first_launches, launches
from tests.backends.triton.every.rules import Format, all_formats
from tests.backends.triton.launches import COUNTED, EVERY, Launch, compiled_launch, kernels, modules
from tests.backends.triton.machine_code import arithmetic, counts, innermost, machine_code

#: One target for each planner: sm_80 has the same planner as sm_90.
PLANNED = pytest.mark.parametrize("target", ["sm_90", "gfx942"])
#: Instructions of a product and thread in the main loop on sm_90, at most, chunks included. Drawn
#: sums are listed by the bits of a draw's field, of which a word has four, two or one.
MOST = {
    "half": 1.2, "brain": 1.2, "plain": 1.6, "fused": 4.2, "split": 5.0, "floor": 7.0,
    "range": 9.5, "fused64": 4.6, "nearest64": 10.3,
    "directed toward_zero": 2.9, "directed nearest_away": 4.7, "directed toward_positive": 6.2,
    "directed toward_negative": 6.2, "directed to_odd": 7.3,
    "directed stochastic 8": 10.4, "directed stochastic 16": 13.0, "directed stochastic 32": 21.0,
    "directed philox 8": 17.0, "directed philox 16": 22.0, "directed philox 32": 25.8,
    "cut64 toward_zero": 4.6, "cut64 nearest_away": 5.6, "cut64 stochastic 8": 11.6,
    "fixed nearest_even": 3.6, "fixed toward_zero": 8.0, "fixed nearest_away": 10.0,
    "fixed toward_positive": 3.6, "fixed toward_negative": 3.6, "fixed to_odd": 7.0,
    "exact": 145.0, "exact, drawn": 180.0, "exact, philox": 235.0,
    "operands, float32": 8.8, "operands": 10.2, "operands, in turns": 14.9,
}  # fmt: skip
# The steps of a pass of a certified kernel's main loop.
_STEPS = 8
#: Kernels that multiply and add in one operation, where it is exact or what is asked for.
MULTIPLY_ADDS = ("certified_kernel", "native_kernel")
#: Further instructions: where taps are absent (in products in sequence, and in blocks aligned by
#: their operands), where products are rounded (in float32 and in float64), where programs that
#: share chunks have half as many sums of float64, and where a thread has 16 sums or fewer, or a
#: program one warp, so that fewer sums share what is loaded.
ABSENT, ABSENT_OPERANDS, PRODUCTS, PRODUCTS64, SHARED64, FEW = 1.6, 2.8, 6.2, 10.0, 0.9, 0.5


@cache
def listed(target: str) -> dict[str, list[Launch]]:
    return {group: launches(group, target) for group in GROUPS}


def of(target: str, *names: str) -> Iterator[Launch]:
    """The launches of these kernels."""
    for found in listed(target).values():
        yield from (launch for launch in found if launch.name in names)


def test_whatever_is_launched_is_called_a_kernel() -> None:
    """Every function that the backend launches is a kernel that `launches.kernels` finds."""
    for module in modules():
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Subscript):
                continue
            # kernel[grid](..., **EXACT)
            if any(keyword.arg is None for keyword in node.keywords):
                kernel = node.func.value
                name = kernel.attr if isinstance(kernel, ast.Attribute) else kernel.id
                assert name in kernels(), module.__name__


def drawn(mode: str) -> list[dict[str, Any]]:
    """Options with numbers of random bits for every field, and both generators."""
    if mode != "stochastic":
        return [{}]
    return [{"random_bits": b, "rng": g} for b in (1, 8, 9, 16, 17, 24) for g in ("fast", "philox")]


def accumulators(product: Format | str | None = None) -> Iterator[Accumulator]:
    for fmt, mode in itertools.product(all_formats(), ROUNDINGS):
        for draws in drawn(mode):
            yield Accumulator(fmt, mode, product=product, **draws)


@pytest.mark.slow
@PLANNED
@pytest.mark.parametrize("product", [None, "e4m3"])
def test_every_choice_of_a_certified_kernel_is_listed(product: str | None, target: str) -> None:
    """Over all accumulators, each tier is listed with each rule that changes its instructions."""
    chosen = set()
    for acc in accumulators(product):
        ints = acc.to_ints()
        rule = rule_of(ints[8:16], ints[2], ints[4], ints[5])[0]
        for tier in _tiers.tiers(ints, nvidia=target != "gfx942"):
            chosen.add(keys.certified_key(tier, rule))
    have, with_products = set(), set()
    for launch in of(target, "certified_kernel"):
        tiers, rules = launch.constant("TIERS"), launch.constant("R")
        have |= {keys.certified_key(tier, rules.sum.value) for tier in tiers}
        with_products |= set(tiers) if rules.product is not None else set()
    assert chosen <= have
    assert product is None or {key[0] for key in chosen} <= with_products


@pytest.mark.slow
@PLANNED
def test_every_tier_has_chunks_and_tables(target: str) -> None:
    shapes: dict[tuple[int, ...], list[set[bool]]] = {}
    for launch in of(target, "certified_kernel"):
        told = launch.told
        found = shapes.setdefault(told["TIERS"], [set(), set(), set()])
        values = (told["R"].chunked, is_absent(launch), told["SWAPPED"])
        for seen, value in zip(found, values, strict=True):
            seen.add(value)
    for tiers, found in shapes.items():
        assert found == [{True, False}] * 3, [_tiers.NAMES[t] for t in tiers]


@pytest.mark.slow
@PLANNED
def test_every_rule_is_listed_in_every_place(target: str) -> None:
    """Every rule is listed alone, and for sums, products, chunks and results."""
    chosen, fields = set(), set()
    for acc in accumulators():
        ints = acc.to_ints()
        rule = rule_of(ints[8:16], ints[2], ints[4], ints[5])[0]
        chosen.add(keys.rule_key(rule))
        fields.add(keys.draw_key(rule))
    alone = [keys.rules_of(launch)["rule"] for launch in of(target, "accumulate_kernel")]
    assert {keys.rule_key(rule) for rule in alone} == chosen
    assert {keys.draw_key(rule) for rule in alone} == fields
    for place in ("sum", "product", "outer", "result"):
        launched = map(keys.rules_of, of(target, "exact_kernel"))
        rules = [by_place[place] for by_place in launched if place in by_place]
        draws = place != "result"
        assert {keys.rule_key(rule) for rule in rules} >= {
            key for key in chosen if draws or key[1] != "stochastic"
        }
        assert not draws or {keys.draw_key(rule) for rule in rules} == fields


@pytest.mark.slow
@PLANNED
def test_every_rounding_of_elements_is_listed(target: str) -> None:
    """Every rule in float32 is listed, with a rule of its own near zero and without."""
    chosen = set()
    floats = [fmt for fmt in all_formats() if isinstance(fmt, FloatFormat)]
    for fmt, mode in itertools.product(floats, ROUNDINGS):
        for bits in (8, 16, 24, 32) if mode == "stochastic" else (None,):
            ints = Quantizer(fmt, mode, random_bits=bits).to_ints()
            by = way(ints[:-4], torch.float32, torch.float32)
            if by:
                chosen.add((by, keys.float32_key(rule_of(ints[:-4], *ints[-4:-1])[0])))
    have = {
        (launch.constant("BY"), keys.float32_key(launch.constant("R")))
        for launch in of(target, "quantize_kernel")
        if launch.constant("BY")
    }
    assert chosen <= have


def usage(result: Any, *, loops: int) -> tuple[int, list[int]]:
    """A kernel's stack, and the instructions of its longest innermost loops, ascending."""
    if "amdgcn" in result.asm:
        (stack,) = re.findall(r"\.private_segment_fixed_size:\s*(\d+)", result.asm["amdgcn"])
        return int(stack), []
    function, _, stack = machine_code(result, read=loops > 0)
    costs = [counts(loop) for loop in innermost(function)]
    if loops == 1:
        return stack, [max(costs, key=arithmetic, default=Counter()).total()]
    longest = sorted(cost.total() for cost in costs)
    return stack, longest[len(longest) - loops :]


def ceilings_of(launch: Launch) -> list[float]:
    """The most instructions of a product in each main loop, ascending, for a kernel of products in
    sequence or in blocks aligned by their operands. A certified kernel has one for each tier.

    The loop that adds the sums of chunks, and for blocks with operands the loop of the largest
    exponent, are counted in test_ahead_of_time.py.
    """
    if launch.name == "certified_kernel":
        return sorted(tier_ceiling(launch, tier) for tier in launch.constant("TIERS"))
    if launch.name == "exact_kernel" and launch.argument("parts") is None:
        rules = keys.rules_of(launch).values()
        draws = [draw for rule in rules if (draw := keys.draw_key(rule))]
        philox = any(generator for _, generator in draws)
        return [MOST["exact, philox" if philox else "exact, drawn" if draws else "exact"]]
    if launch.name == "by_operands_kernel":
        kind = "operands, float32" if launch.constant("SINGLE") else "operands"
        kind = "operands, in turns" if launch.constant("TAKES_TURNS") else kind
        return [MOST[kind] + ABSENT_OPERANDS * is_absent(launch)]
    return []


def is_absent(launch: Launch) -> bool:
    """Whether an operand has absent taps."""
    return launch.told["LEFT_ABSENT"] or launch.told["RIGHT_ABSENT"]


def tier_ceiling(launch: Launch, tier: int) -> float:
    """The most instructions of a product in one tier of a certified kernel."""
    rules = launch.constant("R")
    kind, draws = _tiers.NAMES[tier], keys.draw_key(rules.sum.value)
    if draws:
        kind += f" {'philox' if draws[1] else 'stochastic'} {draws[0]}"
    elif tier in (_tiers.DIRECTED, _tiers.FIXED, _tiers.CUT):
        kind += f" {ROUNDINGS[rules.sum.mode]}"
    few = products_of(launch) <= 16 * _STEPS or launch.told["num_warps"] == 1
    double = tier >= _tiers.FUSED64
    shared = double and launch.argument("parts") is not None
    rounded = (PRODUCTS64 if double else PRODUCTS) * (rules.product is not None)
    return MOST[kind] + ABSENT * is_absent(launch) + FEW * few + SHARED64 * shared + rounded


def products_of(launch: Launch) -> float:
    """Products of one thread in one pass of the main loop."""
    told = launch.told
    steps = _STEPS if launch.name == "certified_kernel" else 1
    return told["BM"] * told["BN"] * steps / (32 * told["num_warps"])


#: The parts of a target's launches that are compiled first.
FIRST = {"sm_80": keys.constants, "sm_90": keys.features, "gfx942": keys.constants}


@cache
def compiled_first(target: str, group: str) -> list[Launch]:
    return keys.covering(listed(target)[group], FIRST[target])


@pytest.mark.slow
@EVERY
def test_every_kernel_and_tier_is_compiled(target: str) -> None:
    first = [launch for group in GROUPS for launch in compiled_first(target, group)]
    every = [launch for group in listed(target).values() for launch in group]
    for parts in {keys.constants, FIRST[target]}:
        assert set().union(*map(parts, first)) == set().union(*map(parts, every))
    assert {launch.name for launch in first} == set(kernels())
    assert {(x.name, x.constant("TIERS")) for x in first} == {
        (x.name, x.constant("TIERS")) for x in every
    }


def check(launches: list[Launch], target: str, *, counted: bool = True) -> None:
    """Kernels contract nothing, flush nothing, use no stack and have the launch's options; on sm_90
    a product's cost is bounded (counted)."""
    wrong = []
    for launch in launches:
        result = compiled_launch(launch, target)
        has = result.metadata._asdict()
        if any(has[name] != value for name, value in launch.told.items() if name in has):
            wrong.append((launch.name, launch.told, has))
        budget = ceilings_of(launch) if counted and target == "sm_90" else []
        stack, loops = usage(result, loops=len(budget))
        if COUNTED and stack > 0:
            wrong.append((launch.name, launch.told, f"{stack} bytes of stack"))
        ptx = result.asm.get("ptx", "")
        # The sums of chunks are added by multiply-adds where float32 has room for them.
        adds = launch.name == "exact_kernel" and launch.constant("SINGLE")
        banned = (".ftz",) if adds or launch.name in MULTIPLY_ADDS else (".ftz", "fma.rn")
        if any(word in ptx for word in banned):
            wrong.append((launch.name, launch.told, "flushed or contracted"))
        if COUNTED and budget:
            costs = [loop / products_of(launch) for loop in loops]
            if len(costs) < len(budget) or any(map(operator.gt, costs, budget)):
                wrong.append((launch.name, launch.told, costs, budget))
    assert not wrong


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in _tiers.NAMES])
def test_one_launch_of_each_kernel_compiles(group: str) -> None:
    """Small tiles of the certified kernels are compiled in test_ahead_of_time.py."""
    check(first_launches(group), "sm_90", counted=False)


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("part", ["first", "roundings", "rest"])
def test_compiles_within_its_budget(part: str, group: str, target: str) -> None:
    """In turn: the launches compiled first, each rounding beside these, and all that is left."""
    every, first = listed(target)[group], compiled_first(target, group)
    rounded = besides(keys.covering(every, keys.roundings), first)
    parts = {"first": first, "roundings": rounded, "rest": besides(every, first + rounded)}
    check(parts[part], target)


def besides(launches: list[Launch], others: list[Launch]) -> list[Launch]:
    known = {id(launch) for launch in others}
    return [launch for launch in launches if id(launch) not in known]

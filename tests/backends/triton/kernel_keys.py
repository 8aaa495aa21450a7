"""The keys of launches: a key holds everything that decides a kernel's instructions, and launches
with equal keys are compiled once."""

from collections.abc import Callable
from typing import Any

import torch

from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.triton.rounding.rule import Rule
from lpkernels.rounding import ROUNDINGS
from tests.backends.triton.launches import Launch

#: A function that gives the parts of a launch, each of which some chosen launch must have.
Parts = Callable[[Launch], set[tuple[Any, ...]]]
#: Tiers whose rounding mode is compiled in.
DIRECTED = (_tiers.DIRECTED, _tiers.FIXED, _tiers.CUT)
_NEAREST, _STOCHASTIC, _TO_ODD = (
    ROUNDINGS.index(mode) for mode in ("nearest_even", "stochastic", "to_odd")
)


def rule_key(rule: Rule) -> tuple[Any, ...]:
    """The properties of a rule that decide the instructions that round, except for the draws."""
    mode = ROUNDINGS[rule.mode]
    if rule.fixed:
        wraps = rule.overflow == 3
        return ("fixed", mode, wraps, wraps and rule.signed)
    parity = rule.exponent_parity and rule.mode in (_NEAREST, _TO_ODD)
    tie = rule.tie_stays and rule.mode == _NEAREST and not parity
    # Where nothing stops at max anyway, the code is the same.
    always = rule.always_overflows and mode.startswith(("toward", "to_"))
    zeros = (rule.one_zero, rule.signed)
    return ("float", mode, rule.overflow, rule.subnormals, parity, zeros, tie, always)


def draw_key(rule: Rule) -> tuple[Any, ...]:
    """The properties of a rule that decide how it draws: the field of a draw, the generator."""
    if rule.mode != _STOCHASTIC:
        return ()
    bits = rule.random_bits
    return (8 if bits <= 8 else 16 if bits <= 16 else 32, rule.philox)


def certified_key(tier: int, rule: Rule) -> tuple[Any, ...]:
    """The properties of a rule that decide the instructions of a certified kernel."""
    if tier == _tiers.RANGE:
        return (tier, rule.overflow, rule.tie_stays, rule.one_zero)
    if tier == _tiers.FIXED:
        return (tier, rule.mode, rule.overflow)
    if tier in (_tiers.DIRECTED, _tiers.CUT):
        return (tier, rule.mode, rule.subnormals, draw_key(rule))
    return (tier, rule.subnormals)


def float32_key(rule: Rule) -> tuple[Any, ...]:
    """`rule_key` for float32, which finds ties by bits, and whether all 32 bits are drawn."""
    return (*rule_key(rule)[:6], rule.random_bits == 32)


def key(launch: Launch) -> tuple[Any, ...]:
    """The properties of a launch that decide its instructions; equal ones are compiled once."""
    told = {n: v for n, v in launch.told.items() if n not in ("R", "C", "N")}
    rules = launch.constant("R")
    if rules is None:
        found: tuple[Any, ...] = ()
    elif isinstance(rules, Rule):
        found = (rule_key(rules), draw_key(rules), rules.random_bits == 32)
    else:
        tiers = launch.constant("TIERS")
        sums = _rule(rules.sum)
        if tiers is not None:
            sums = tuple(certified_key(tier, rules.sum.value) for tier in tiers)
        if launch.name == "native_kernel":
            sums = ()
        bias = isinstance(_outputs(launch).bias, torch.Tensor)
        outer = _rule(rules.outer) if rules.chunked or bias else ()
        product = _rule(rules.product) if tiers is None else rules.product is not None
        zeros = [x is not None and x.one_zero for x in (rules.sum, rules.product, rules.outer)]
        found = (
            sums,
            product,
            outer,
            _rule(rules.result),
            rules.chunked,
            rules.scale_order,
            *zeros,
        )
    return (launch.name, found, tuple(sorted(told.items())), _types(launch.arguments))


def rules_of(launch: Launch) -> dict[str, Rule]:
    """The one rule or the four rules of a launch, by name."""
    rules = launch.constant("R")
    if rules is None:
        return {}
    if hasattr(rules, "_fields") and "sum" in rules._fields:
        return {name: r.value for name, r in rules._asdict().items() if hasattr(r, "value")}
    return {"rule": rules}


def constants(launch: Launch) -> set[tuple[Any, ...]]:
    """A kernel with each constant and option, and whether its programs share chunks."""
    shared = launch.argument("parts") is not None
    told = {(launch.name, n, v) for n, v in launch.told.items() if n not in ("R", "C", "N")}
    return told | {(launch.name, "shared", shared)}


def features(launch: Launch) -> set[tuple[Any, ...]]:
    """`constants`, each of these with the tiers, and with the first tier each mode and field of
    draws in each place where it occurs."""
    tiers, rules = launch.constant("TIERS"), rules_of(launch)
    found: set[tuple[Any, ...]] = set()
    for place, rule in rules.items():
        of_tier = tiers is not None and place == "sum"
        mode = None if of_tier and tiers[0] not in DIRECTED else ROUNDINGS[rule.mode]
        found |= {("mode", rule.fixed, mode), ("draw", *draw_key(rule)), ("place", place)}
    chunked = getattr(launch.constant("R"), "chunked", None)
    found |= {("chunked", chunked), ("scales", _scaled(launch))}
    told = {(launch.name, tiers, *constant) for constant in constants(launch)}
    first = None if tiers is None else tiers[0]
    return told | {(launch.name, first, *feature) for feature in found}


def roundings(launch: Launch) -> set[tuple[Any, ...]]:
    """`features`, and each rounding."""
    tiers = launch.constant("TIERS")
    found = features(launch)
    for place, rule in rules_of(launch).items():
        keys = [rule_key(rule)]
        if tiers is not None and place == "sum":
            keys = [certified_key(tier, rule) for tier in tiers]
        found |= {(launch.name, tiers, *key) for key in keys}
    return found


def covering(launches: list[Launch], parts: Parts) -> list[Launch]:
    """Some launches that together have every part; each one chosen adds the most new parts."""
    all_parts = [parts(launch) for launch in launches]
    chosen, missing = [], set().union(*all_parts)
    while missing:
        best = max(range(len(launches)), key=lambda i: len(all_parts[i] & missing))
        chosen.append(launches[best])
        missing -= all_parts[best]
    return chosen


def _rule(known: Any) -> tuple[Any, ...]:
    return () if known is None else (rule_key(known.value), draw_key(known.value))


def _scaled(launch: Launch) -> int | None:
    """How the sums of chunks meet their scales; None: there are none."""
    scaled = any(getattr(a, "row_scales", None) is not None for a in launch.arguments)
    return launch.constant("R").scale_order if scaled else None


def _outputs(launch: Launch) -> Any:
    return next(a for a in launch.arguments if hasattr(a, "bias"))


def _types(value: Any) -> Any:
    """The types of pointers and the places of absent arguments; all numbers count as the same."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype)
    if isinstance(value, tuple):
        return tuple(_types(v) for v in value)
    return None if value is None else "number"

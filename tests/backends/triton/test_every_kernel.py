"""Every kernel compiles ahead of time, without a GPU.

The calls of tests/data/replay.txt are made while launches are recorded (`launches.replayed`): they
start every kernel, with every tier. One launch of each kernel is compiled wherever the tests run.
pytest -m slow compiles launches that together have every feature of all of them; a kernel takes up
to minutes, because LLVM takes seconds for each of the longest variants.
"""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.triton.rounding.rule import Rule
from lpkernels.rounding import ROUNDINGS
from tests.backends.triton.launches import (
    COUNTED,
    EVERY,
    Launch,
    compiled_launch,
    kernels,
    modules,
    replayed,
)
from tests.backends.triton.machine_code import machine_code

#: Kernels that multiply and add in one operation, where it is exact or what is asked for.
MULTIPLY_ADDS = ("certified_kernel", "native_kernel")
NAMES = sorted(kernels())


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
                assert name in NAMES, module.__name__


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_replay_starts_every_kernel_and_every_tier(target: str) -> None:
    launches = replayed(target)
    assert {launch.name for launch in launches} == set(NAMES)
    tiers = {tier for launch in launches for tier in launch.constant("TIERS") or ()}
    nvidia = {_tiers.HALF, _tiers.BRAIN, _tiers.DIRECTED}
    want = set(range(len(_tiers.NAMES))) - (nvidia if target == "gfx942" else {_tiers.CUT})
    assert tiers == want, sorted(map(_tiers.NAMES.__getitem__, tiers ^ want))


def rules_of(launch: Launch) -> dict[str, Rule]:
    """The one rule or the four rules of a launch, by name."""
    rules = launch.constant("R")
    if rules is None:
        return {}
    if hasattr(rules, "_fields") and "sum" in rules._fields:
        return {name: r.value for name, r in rules._asdict().items() if hasattr(r, "value")}
    return {"rule": rules}


def features(launch: Launch) -> set[tuple[Any, ...]]:
    """A kernel with its tiers and each constant and option, and in each place of a rounding the
    mode, what happens beyond the format, the zeros, and the field of the draws."""
    tiers = launch.constant("TIERS")
    constants = {
        (name, value) for name, value in launch.told.items() if name not in ("R", "C", "N")
    }
    constants.add(("shared", launch.argument("parts") is not None))
    for place, rule in rules_of(launch).items():
        constants |= {
            (place, "mode", rule.fixed, ROUNDINGS[rule.mode]), (place, "overflow", rule.overflow),
            (place, "zeros", rule.one_zero, rule.subnormals),
        }  # fmt: skip
        if ROUNDINGS[rule.mode] == "stochastic":
            constants.add((place, "draws", (rule.random_bits - 1) // 8, rule.philox))
    return {(launch.name, tiers and tiers[0], *constant) for constant in constants}


def covering(launches: list[Launch]) -> list[Launch]:
    """Some launches that have all features together; each one chosen adds the most new ones."""
    parts = list(map(features, launches))
    chosen, missing = [], set().union(*parts)
    while missing:
        best = max(range(len(launches)), key=lambda i: len(parts[i] & missing))
        chosen.append(launches[best])
        missing -= parts[best]
    return chosen


def stack_of(result: Any) -> int:
    """The bytes of stack of a thread."""
    if "amdgcn" in result.asm:
        (stack,) = re.findall(r"\.private_segment_fixed_size:\s*(\d+)", result.asm["amdgcn"])
        return int(stack)
    return machine_code(result, read=False)[1]


def check(launches: list[Launch], target: str) -> None:
    """Kernels contract and flush nothing, have no stack, and have the launch's options."""
    wrong = []
    for launch in launches:
        result = compiled_launch(launch, target)
        has = result.metadata._asdict()
        if any(has[name] != value for name, value in launch.told.items() if name in has):
            wrong.append((launch.name, launch.told, has))
        stack = stack_of(result)
        if COUNTED and stack > 0:
            wrong.append((launch.name, launch.told, f"{stack} bytes of stack"))
        # The sums of chunks are added by multiply-adds where float32 has room for them.
        adds = launch.name == "exact_kernel" and launch.constant("SINGLE")
        banned = (".ftz",) if adds or launch.name in MULTIPLY_ADDS else (".ftz", "fma.rn")
        if any(word in result.asm.get("ptx", "") for word in banned):
            wrong.append((launch.name, launch.told, "flushed or contracted"))
    assert not wrong


@pytest.mark.parametrize("name", [name for name in NAMES if name != "certified_kernel"])
def test_one_launch_of_each_kernel_compiles(name: str) -> None:
    """Small tiles of the certified kernels are compiled in test_ahead_of_time.py."""
    check([next(launch for launch in replayed() if launch.name == name)], "sm_90")


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("name", NAMES)
def test_every_feature_compiles(name: str, target: str) -> None:
    check(covering([launch for launch in replayed(target) if launch.name == name]), target)

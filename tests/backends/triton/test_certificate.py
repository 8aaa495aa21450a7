"""Triton's certificate against that of C++ (csrc/common/certificate.h), bound for bound, over drawn
facts of operands."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from lpkernels import backends
from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.backends.planning import triton_tiers as tiers
from lpkernels.backends.triton._launch import EXACT
from lpkernels.backends.triton._roundings import roundings_of
from lpkernels.backends.triton.certified.certificate import certified, room
from lpkernels.backends.triton.operands.facts import COUNT, NONE
from tests.support import cuda_host

PAIRS = 64
#: Triton looks at sums once in 8 steps, so products lie 2^5 below the bound. It scales no operand,
#: so bounds lie within 2^-100 .. 2^100.
STEPS, ENOUGH = 5, 100
#: The tiers to nearest, and the digits of their sums.
DIGITS = {
    tiers.FUSED: 24, tiers.SPLIT: 24, tiers.FLOOR: 24, tiers.RANGE: 24, tiers.FUSED64: 53,
    tiers.NEAREST: 53,
}  # fmt: skip


@triton.jit
def certificate_kernel(
    left_ptr, right_ptr, holds_ptr, limit_ptr, overflow_ptr, C,
    R: tl.constexpr, TIER: tl.constexpr, FACTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)
    holds, limit = certified(left_ptr + at * FACTS, right_ptr + at * FACTS, C, R, TIER, False)
    tl.store(holds_ptr + at, tl.cast(holds, tl.int32))
    tl.store(limit_ptr + at, tl.zeros([BLOCK], tl.int32) + limit)
    tl.store(overflow_ptr, room(C.sum))


class Certificates(NamedTuple):
    """Of PAIRS pairs of operands: whether the tier makes their sums, and the exponent that sums
    must not reach; and the exponent at which the format overflows."""

    holds: list[int]
    limits: list[int]
    overflow: int


def of_triton(acc: Accumulator, tier: int, pairs: np.ndarray, device: str) -> Certificates:
    """pairs: (2, PAIRS, 3), the width, the lowest and the highest exponent of each operand."""
    width, lowest, highest = np.moveaxis(pairs, -1, 0)
    words = np.stack([highest - 1, -lowest, width, np.full_like(width, NONE.value)], axis=-1)
    facts = torch.from_numpy(words.astype(np.int32)).to(device)
    found = torch.zeros((3, PAIRS), dtype=torch.int32, device=device)
    roundings, constants = roundings_of(acc.to_ints())
    certificate_kernel[(1,)](
        facts[0], facts[1], found[0], found[1], found[2], constants,
        R=roundings, TIER=tier, FACTS=COUNT, BLOCK=PAIRS, **EXACT,
    )  # fmt: skip
    holds, limits, (overflow, *_) = found.tolist()
    return Certificates(holds, limits, overflow)


def of_module(acc: Accumulator, digits: int, pair: np.ndarray) -> dict[str, int]:
    left, right = pair.tolist()
    return cuda_host.certificate(acc, left, right, digits, 1)


def drawn(source: np.random.Generator, middle: int) -> np.ndarray:
    """Facts of operands whose products lie about 2^middle; some elements lie far apart."""
    shape = (2, PAIRS)
    width = np.where(source.random(shape) < 0.8, source.integers(1, 13, shape), 24)
    highest = np.clip(middle // 2 + source.integers(-14, 15, shape), -100, 128)
    apart = np.where(source.random(shape) < 0.7, source.integers(0, 6, shape), 40)
    return np.stack([width, np.maximum(highest - width - apart, -149), highest], axis=-1)


NAMES = (
    "e6m9", "e5m10", "e8m7", "e4m3fn", "e5m2_nan", "e4m3_sat", "e6m9_nosub", "e6m11", "e6m11_sat",
    "e8m12", "e5m20", "e7m21", "e4m4_b-60", "e4m4_b70", "e6m9:product=e4m3", "e8m11:product=e5m10",
    "e4m5_sat:product=e4m3fn_sat",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_bounds_are_those_of_the_module(name: str, device: str) -> None:
    if reason := backends.get("cpu").why_not():
        pytest.skip(reason)
    acc, source = accumulator(name), np.random.default_rng(len(name))
    ends = of_module(acc, 24, np.array([[1, 0, 1]] * 2))
    outcomes = set()
    for tier in [tier for tier in tiers.tiers(acc.to_ints()) if tier in DIGITS]:
        for middle in (0, ends["overflow"] - 4, ends["place"] + 6, ends["place"] + 30):
            pairs = drawn(source, middle)
            found = of_triton(acc, tier, pairs, device)
            assert found.overflow == ends["overflow"]
            for n in range(PAIRS):
                holds = compare(acc, tier, pairs[:, n], bool(found.holds[n]), found.limits[n])
                outcomes.add((tier, holds))
    assert len({holds for _, holds in outcomes}) == 2


def compare(acc: Accumulator, tier: int, pair: np.ndarray, holds: bool, limit: int) -> bool:
    """Whether the tier makes the sums of a pair, by the module's bounds: as Triton says."""
    digits = DIGITS[tier]
    c, (width, lowest, highest) = of_module(acc, digits, pair), pair.sum(0).tolist()
    shown = f"{acc} {tiers.NAMES[tier]} {pair.tolist()} {c}"
    exact = digits == 53 or (width <= 24 and lowest >= -126 and highest <= 126)
    nearest = c["nearest"]
    if acc.product is not None:
        rounded = of_module(Accumulator(acc.product), digits, pair)
        exact = exact and highest < rounded["overflow"]
        if exact and c["stay"]:
            # Triton takes products for as wide as their format, whatever they are.
            nearest = of_module(acc, digits, widened(acc, pair))["nearest"]
    if tier == tiers.RANGE:
        assert holds == (exact and nearest > c["overflow"]), shown
        return holds
    bound = min(nearest, c["overflow"], ENOUGH)
    floored = tier in (tiers.FLOOR, tiers.NEAREST) and getattr(acc.fmt, "subnormals", False)
    safe = exact and (floored or c["lowest"] >= c["place"])
    assert holds == (safe and highest + STEPS <= bound and bound >= -ENOUGH), shown
    assert not exact or limit == bound - 1, shown
    return holds


def widened(acc: Accumulator, pair: np.ndarray) -> np.ndarray:
    """The pair with products as wide as their format."""
    wide = pair.copy()
    wide[:, 0] = [1, getattr(acc.product, "man_bits", 0)]
    return wide

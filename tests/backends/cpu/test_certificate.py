"""The bounds of certificates at the ends of float32 and of formats: every number by which a valid
certificate scales is a normal float32, and no sum that overflows goes unwatched."""

from typing import Any

import numpy as np
import pytest
import torch

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.formats import FloatFormat
from tests.backends.cpu_products import assert_matmul
from tests.support import cuda_host
from tests.support.processor import Isas

Facts = tuple[int, int, int]


def certificate(acc: Accumulator, left: Facts, right: Facts, terms: int) -> dict[str, Any]:
    """The C++ certificate for sums in float32; facts are (width, lowest, highest)."""
    return cuda_host.certificate(acc, left, right, 24, terms)


def check_scales(acc: Accumulator, left: Facts, right: Facts, terms: int) -> bool:
    c = certificate(acc, left, right, terms)
    if not c["valid"]:
        return False
    shift, shown = 1 - c["bound"], f"{acc} {left} {right} {c}"
    assert -126 <= shift <= 127, shown
    assert left[1] + shift >= -126 and left[2] + shift <= 127, shown
    assert c["highest"] <= c["bound"] <= c["overflow"], shown
    if not c["reached"]:
        # Sums to nearest stay below so many times the largest product.
        most = min(terms, 2 ** (getattr(acc.fmt, "man_bits", 0) + 2))
        assert most * 2.0 ** c["highest"] <= 2.0 ** c["bound"], f"{shown} {terms} terms"
    if c["floor"]:
        assert isinstance(acc.fmt, FloatFormat)
        binade = acc.fmt.emin + shift
        assert binade >= -126 and binade + 24 - acc.fmt.man_bits <= 127, shown
    return True


def drawn_format(source: np.random.Generator) -> FloatFormat | None:
    exp_bits, man_bits = (int(source.integers(*ends)) for ends in ((1, 9), (0, 24)))
    specials, overflow = source.choice(["ieee", "none"]), source.choice(["infinity", "saturate"])
    try:
        return FloatFormat(
            exp_bits, man_bits, bias=int(source.integers(-130, 150)), specials=specials,
            overflow=overflow, subnormals=bool(source.random() < 0.8),
        )  # fmt: skip
    except ValueError:
        return None


def drawn_facts(source: np.random.Generator) -> Facts:
    width, highest = int(source.integers(1, 25)), int(source.integers(-125, 129))
    least = max(highest - width - int(source.integers(0, 40)), -126 - width + 1)
    return width, min(least, highest - 1), highest


def test_scales_are_normal_numbers() -> None:
    source, valid = np.random.default_rng(3), 0
    for _ in range(20_000):
        fmt = drawn_format(source)
        if fmt is not None:
            mode = source.choice(["nearest_even", "toward_zero", "stochastic"])
            facts = drawn_facts(source), drawn_facts(source)
            valid += check_scales(Accumulator(fmt, mode), *facts, int(source.integers(1, 5000)))
    assert valid > 200


def test_bounds_stay_within_the_scales_that_float32_has() -> None:
    # The overflow of e8m10 is at 2^128, and products of so many bits are exact below 2^128, too.
    found = certificate(accumulator("e8m10"), (10, 60, 64), (10, 46, 60), 1)
    assert found["valid"] and found["bound"] == 127 < found["nearest"] and found["overflow"] == 128
    # All values of this format are below 2^-127.
    found = certificate(accumulator("e3m5_b142"), (3, -70, -67), (3, -70, -67), 4)
    assert not found["valid"] and found["overflow"] < -126


@pytest.mark.parametrize(
    "name", ["e2m1", "e4m1_nan", "e4m2_sat", "e5m3", "e5m3:toward_positive", "e4m2:stochastic"]
)
def test_sums_that_are_rounded_up_to_a_power_of_two_overflow(name: str, isas: Isas) -> None:
    """All products are below 2^h, but n of them reach n 2^h, which is beyond the largest value."""
    acc = accumulator(name)
    beyond = certificate(acc, (1, 0, 1), (1, 0, 1), 1)["overflow"]
    for bits in range(getattr(acc.fmt, "man_bits", 0) + 2):
        a = torch.full((13, 1 << bits), 63 / 64)
        b = torch.full((1 << bits, 37), 63 / 64 * 2.0 ** (beyond - bits))
        assert_matmul(isas, a, b, acc, f"{1 << bits} products")


@pytest.mark.parametrize("name", ["e5m10:product=e5m4", "e5m10_sat:product=e5m3"])
def test_two_rounded_products_below_the_largest_value_overflow(name: str, isas: Isas) -> None:
    """Each is almost the power of two that its operands' binades bound it by."""
    a, b = torch.full((13, 2), 240.0), torch.full((2, 37), 248.0)
    assert_matmul(isas, a, b, accumulator(name), name)

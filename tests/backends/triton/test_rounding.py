"""round_to, round_to_float and add_rounded against csrc/common, for every rule that exists."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from lpkernels import backends
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends.triton import BACKEND
from lpkernels.formats import FloatFormat
from lpkernels.rounding import ROUNDINGS
from tests.backends.triton.every.rules import some_rules
from tests.cases import hard_values
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.element_bits import quantized
from tests.support.elements import Format

CPU: Any = backends.get("cpu")
SEED = torch.tensor(91)
#: Those with numbers that float32 alone does not reach, and an odd exponent code, too.
RULES = some_rules() + [
    (FloatFormat(exp_bits, man_bits, bias=128), mode)
    for (exp_bits, man_bits), mode in itertools.product(((3, 0), (8, 5), (8, 0)), ROUNDINGS)
]


@pytest.fixture(autouse=True)
def plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled module computes by csrc/common alone, one value after the other."""
    reason = backends.status()["cpu"]
    if reason != "available":
        pytest.skip(f"cpu: {reason}")
    monkeypatch.setenv("LPKERNELS_ISA", "scalar")


def values(fmt: Format) -> torch.Tensor:
    """Every float64 that may round differently, infinities, NaN and both zeros among them."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.asarray(hard_values(fmt, 5)))


@each("rule, dtype", itertools.product(RULES, (torch.float64, torch.float32)))
def test_round_to(rule: tuple[Format, str], dtype: torch.dtype, device: str) -> None:
    """Values that float32 holds are rounded without float64 where the format allows it."""
    fmt, mode = rule
    x = values(fmt).to(dtype)
    for bits in (1, 8, 24, 32) if mode == "stochastic" else (None,):
        quantizer = Quantizer(fmt, mode, random_bits=bits)
        got = quantized(x, quantizer, BACKEND, device, dtype)
        assert_bit_equal(got, quantized(x, quantizer, CPU, dtype=dtype), f"{quantizer}")


@each("fmt, mode", RULES)
def test_add_rounded(fmt: Format, mode: str, device: str) -> None:
    acc = Accumulator(fmt, mode).to_ints()
    addend = values(fmt).float()[None, :]
    total = torch.empty_like(addend)
    nearest = Quantizer(fmt).to_ints()
    CPU.quantize(addend.flip(1).roll(37), nearest, None, 0, 4, total)
    want, got = total.clone(), total.to(device, copy=True)
    CPU.accumulate(want, addend, (0, 0), acc, SEED, 1, 2, 3)
    BACKEND.accumulate(got, addend.to(device), (0, 0), acc, SEED, 1, 2, 3)
    assert_bit_equal(got.cpu(), want)

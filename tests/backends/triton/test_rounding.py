"""round_to, round_to_float and add_rounded against csrc/common, for every rule that exists."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from lpkernels import backends
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends.triton import BACKEND
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.rounding import ROUNDINGS
from tests.backends.triton.every.rules import some_rules
from tests.cases import hard_values
from tests.compare import assert_bit_equal

pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

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


def values(fmt: FloatFormat | FixedFormat) -> torch.Tensor:
    """Every float64 that may round differently, infinities, NaN and both zeros among them."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.asarray(hard_values(fmt, 5)))


@pytest.mark.parametrize(("fmt", "mode"), RULES, ids=str)
def test_round_to(fmt: FloatFormat | FixedFormat, mode: str, device: str) -> None:
    x = values(fmt)
    for bits in (1, 8, 32) if mode == "stochastic" else (None,):
        quantizer = Quantizer(fmt, mode, random_bits=bits).to_ints()
        want, got = (torch.empty(x.shape, dtype=torch.float64, device=d) for d in ("cpu", device))
        backends.get("cpu").quantize(x, quantizer, SEED, 1, 4, want)
        BACKEND.quantize(x.to(device), quantizer, SEED, 1, 4, got)
        assert_bit_equal(got.cpu(), want)


@pytest.mark.parametrize(("fmt", "mode"), RULES, ids=str)
def test_float32_alone(fmt: FloatFormat | FixedFormat, mode: str, device: str) -> None:
    """Values that float32 holds are rounded without float64 where the format allows it."""
    x = values(fmt).float()
    for bits in (1, 8, 24, 32) if mode == "stochastic" else (None,):
        quantizer = Quantizer(fmt, mode, random_bits=bits).to_ints()
        want, got = (torch.empty(x.shape, device=d) for d in ("cpu", device))
        backends.get("cpu").quantize(x, quantizer, SEED, 1, 4, want)
        BACKEND.quantize(x.to(device), quantizer, SEED, 1, 4, got)
        assert_bit_equal(got.cpu(), want)


@pytest.mark.parametrize(("fmt", "mode"), RULES, ids=str)
def test_add_rounded(fmt: FloatFormat | FixedFormat, mode: str, device: str) -> None:
    acc = Accumulator(fmt, mode).to_ints()
    addend = values(fmt).float()[None, :]
    total = torch.empty_like(addend)
    nearest = Quantizer(fmt).to_ints()
    backends.get("cpu").quantize(addend.flip(1).roll(37), nearest, None, 0, 4, total)
    want, got = total.clone(), total.to(device, copy=True)
    backends.get("cpu").accumulate(want, addend, (0, 0), acc, SEED, 1, 2, 3)
    BACKEND.accumulate(got, addend.to(device), (0, 0), acc, SEED, 1, 2, 3)
    assert_bit_equal(got.cpu(), want)

"""Blocks aligned by their operands, and sums that start elsewhere than at zero, in csrc/cuda, on
the host and on a device, against the reference."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import Fused
from lpkernels.backends.cuda import BACKEND
from tests.cases import CONV_CASES
from tests.loops import each
from tests.support.operand_cases import (
    CONVOLVED,
    MODES,
    SHORT_MODES,
    STARTED,
    UNIT_ACCUMULATORS,
    rows,
    short_rows,
    tensor,
)
from tests.support.operand_draws import accumulators
from tests.support.products import PASSES, assert_pass, assert_product, tensors_of

check = partial(assert_product, BACKEND)
# Some operands hold values that no tensor core has.
pytestmark = pytest.mark.filterwarnings("ignore:matmul. the .* operand holds")


@each("acc", UNIT_ACCUMULATORS.values())
def test_units(acc: Accumulator, device: str):
    check(rows(2, 75, 1), rows(1, 75, 2).T, acc, device)
    check(short_rows(9, 75, 1), short_rows(3, 75, 2).T, acc, device)


@each("acc", MODES)
def test_modes(acc: Accumulator, device: str):
    check(rows(9, 21, 3), rows(1, 21, 4).T, acc, device)


@each("acc", SHORT_MODES)
def test_modes_in_float32(acc: Accumulator, device: str):
    check(short_rows(9, 21, 3), short_rows(3, 21, 4).T, acc, device)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(accumulators(), st.integers(0, 19), st.integers(0, 2**32))
def test_any_accumulator(device: str, acc: Accumulator, length: int, seed: int):
    initial = rows(1, 3, seed + 2) if seed % 2 else None
    a, b = rows(1, length, seed), rows(1, length, seed + 1)[1:].T
    check(a, b, acc, device, initial=initial)


@each("acc, length", itertools.product(STARTED, [0, 21]))
def test_sums_start_at_initial(acc: Accumulator, length: int, device: str):
    initial = rows(1, 5, 7)
    initial[0] = torch.tensor([1e30, -1e30, 1e-30, 0.3, -0.0])
    a, b = rows(1, length, 5), tensor((length, 5), "short", torch.Generator().manual_seed(6))
    check(a, b, acc, device, initial=initial)


def test_initial_of_batches(device: str):
    generator = torch.Generator().manual_seed(8)
    a, b = (tensor(s, "short", generator) for s in ((3, 2, 9), (3, 9, 5)))
    initial = tensor((3, 5, 2), "cancelling", generator).mT
    check(a, b, UNIT_ACCUMULATORS["ada_e4m3"], device, initial=initial)


def test_operands_and_results_are_rounded(device: str):
    fused = Fused(*(Quantizer(name).to_ints() for name in ("e4m3fn", "e5m2", "e5m2")))
    acc = UNIT_ACCUMULATORS["h100_e4m3"]
    check(torch.randn(3, 40), torch.randn(40, 5), acc, device, fused=fused)


@each("exponent", [0, 37, 38, 39, 40, 41, 60])
def test_large_operands_are_summed_in_double(exponent: int, device: str):
    # 40 products of 2^exponent squared: where the certificate of float32 ends.
    x = tensor((3, 40), "short", torch.Generator().manual_seed(9)) * 2.0**exponent
    check(x, x.T, UNIT_ACCUMULATORS["h100_e4m3"], device)


@each("name, acc", itertools.product(PASSES, CONVOLVED))
def test_passes_of_convolutions(name: str, acc: Accumulator, device: str):
    for case in CONV_CASES.values():
        assert_pass(BACKEND, name, case, tensors_of(case), acc, device)

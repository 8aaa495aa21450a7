"""Blocks aligned by their operands, and sums that start elsewhere than at zero, in csrc/cuda. The
kernels' own code runs on the host, thread by thread, against the reference, and the instructions of
their machine code are counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import Fused
from lpkernels.backends.cuda import BACKEND
from tests.backends.cuda.test_cuda_conv import PASSES, operands, run, special
from tests.cases import CONV_CASES, ids
from tests.compare import assert_bit_equal
from tests.support import cuda_host
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

REFERENCE = lp.backends.get("reference")
SEED, ROLE = torch.tensor(-1234567890123456789), 4
NOTHING = Fused()


def check(
    a: Tensor, b: Tensor, acc: Accumulator, initial: Tensor | None = None, **fused: Any
) -> None:
    call = (acc.to_ints(), SEED, ROLE)
    want = REFERENCE.matmul(a, b, None, *call, initial=initial)
    got = BACKEND.matmul(a, b, None, *call, **fused, initial=initial)
    assert_bit_equal(got, want, str(acc))


@pytest.mark.skipif(bool(cuda_host.reason()), reason=cuda_host.reason())
class TestOnHost:
    @pytest.fixture(autouse=True)
    def kernels(self):
        with cuda_host.on_host():
            yield

    @pytest.mark.parametrize("name", UNIT_ACCUMULATORS)
    def test_units(self, name: str):
        check(rows(2, 75, 1), rows(1, 75, 2).T, UNIT_ACCUMULATORS[name])
        check(short_rows(9, 75, 1), short_rows(3, 75, 2).T, UNIT_ACCUMULATORS[name])

    @pytest.mark.parametrize("acc", MODES, ids=ids)
    def test_modes(self, acc: Accumulator):
        check(rows(9, 21, 3), rows(1, 21, 4).T, acc)

    @pytest.mark.parametrize("acc", SHORT_MODES, ids=ids)
    def test_modes_in_float32(self, acc: Accumulator):
        check(short_rows(9, 21, 3), short_rows(3, 21, 4).T, acc)

    @settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(accumulators(), st.integers(0, 19), st.integers(0, 2**32))
    def test_any_accumulator(self, acc: Accumulator, length: int, seed: int):
        initial = rows(1, 3, seed + 2) if seed % 2 else None
        check(rows(1, length, seed), rows(1, length, seed + 1)[1:].T, acc, initial)

    @pytest.mark.parametrize("acc", STARTED, ids=ids)
    @pytest.mark.parametrize("length", [0, 21])
    def test_sums_start_at_initial(self, acc: Accumulator, length: int):
        initial = rows(1, 5, 7)
        initial[0] = torch.tensor([1e30, -1e30, 1e-30, 0.3, -0.0])
        a, b = rows(1, length, 5), tensor((length, 5), "short", torch.Generator().manual_seed(6))
        check(a, b, acc, initial)

    def test_initial_of_batches(self):
        generator = torch.Generator().manual_seed(8)
        a, b = (tensor(s, "short", generator) for s in ((3, 2, 9), (3, 9, 5)))
        initial = tensor((3, 5, 2), "cancelling", generator).mT
        check(a, b, UNIT_ACCUMULATORS["ada_e4m3"], initial)

    def test_operands_and_results_are_rounded(self):
        acc = UNIT_ACCUMULATORS["h100_e4m3"]
        a, b = torch.randn(3, 40), torch.randn(40, 5)
        ints = [Quantizer(name).to_ints() for name in ("e4m3fn", "e5m2", "e5m2")]
        got = BACKEND.matmul(a, b, None, acc.to_ints(), None, ROLE, Fused(*ints))
        left, right = lp.quantize(a, "e4m3fn"), lp.quantize(b, "e5m2")
        want = lp.quantize(lp.matmul(left, right, acc, backend="reference"), "e5m2")
        assert_bit_equal(got, want)

    @pytest.mark.parametrize("exponent", [0, 37, 38, 39, 40, 41, 60])
    def test_large_operands_are_summed_in_double(self, exponent: int):
        # 40 products of 2^exponent squared: where the certificate of float32 ends.
        x = tensor((3, 40), "short", torch.Generator().manual_seed(9)) * 2.0**exponent
        check(x, x.T, UNIT_ACCUMULATORS["h100_e4m3"])

    @pytest.mark.parametrize("acc", CONVOLVED, ids=ids)
    @pytest.mark.parametrize("name", PASSES)
    def test_passes_of_convolutions(self, name: str, acc: Accumulator):
        torch.manual_seed(4)
        for case in CONV_CASES.values():
            tensors = operands(name, case, special)
            got = run(BACKEND, name, case, tensors, acc)
            assert_bit_equal(got, run(REFERENCE, name, case, tensors, acc), f"{name} {case}")

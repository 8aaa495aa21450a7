"""Tables in the reference: sums by rational numbers, blocks, masters, layers and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic import Quantizer
from lpkernels.reference import exact, twin
from lpkernels.reference.events import matmul_events
from lpkernels.rounding import ROUNDINGS
from tests.compare import assert_bit_equal


def test_zeros_of_products_are_positive_before_they_are_added():
    minus = torch.tensor([[-0.0]])
    for acc, negative in (("e5m2", True), ("e5m2:product=nf4", False), ("posit8es1", False)):
        y = lp.matmul(minus, torch.ones(1, 1), acc, initial=minus)
        assert bool(y.signbit()) is negative, acc


def test_events_are_swamped_products_and_sums_beyond_the_ends():
    a, b = torch.tensor([[1.0, 1e-4, 0.5, -1.0]]), torch.ones(4, 1)
    found = matmul_events(a.numpy(), b.numpy(), lp.Accumulator("nf4"))
    # 1 + 1e-4 and 1.5 lie beyond the end 1 and become it; 1 - 1 is 0.
    assert found.counts == (2, 4, 0, 0, 1) and found.sums.tolist() == [[0.0]]
    measured = lp.techniques.accumulation.measure(a, b, lp.Accumulator("nf4"))
    assert measured.overflowed == 1.0


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_blocks_of_tables_are_exact(mode):
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((3, 40)) * 2.0 ** rng.integers(-20, 20, (3, 40))).astype(np.float32)
    x[0, :8], x[1, 3], x[2, 20] = [0.0, -0.0] * 4, np.nan, np.inf
    for text in ("block8_nf4_sfp32", "row_posit8es1", "tensor_log6s3", "tile2x8_nf4_sfp32_up"):
        quantizer = Quantizer(text, mode)
        want = exact.quantize(x, quantizer, seed=9)
        assert_bit_equal(twin.quantize(x, quantizer, seed=9), want, text)
        assert_bit_equal(lp.quantize(torch.tensor(want), "fp32"), torch.tensor(want), text)
    q = twin.scaled(x, Quantizer("block8_nf4_sfp32", mode), seed=9)
    assert_bit_equal(q.values[0, :8], np.zeros(8, np.float32))
    assert np.isnan(q.scale[1, 0]) and np.isnan(q.scale[2, 2]) and q.scale[0, 0] == 1.0

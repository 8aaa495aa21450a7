"""counts= of lp.quantize and lp.count, and range=, the given ends of an affine format."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.backends import BINS, COUNTS
from lpkernels.functional.unchecked import count_to_nearest
from tests.compare import assert_bit_equal
from tests.support.autograd import Operators, alike


def zeros(length: int = COUNTS + BINS) -> torch.Tensor:
    return torch.zeros(length, dtype=torch.int64)


def test_a_zero_outside_of_the_range_is_both(backend):
    x = torch.tensor([0.0, -0.0, 0.5, 1.5, 3.0])
    assert lp.count(x, "affine8", range=(1.0, 2.0), backend=backend).tolist() == [4, 0, 2, 0]
    assert lp.count(x, "affine8", range=(-1.0, 2.0), backend=backend).tolist() == [1, 0, 2, 0]


def test_counting_draws_what_plain_rounding_draws():
    # Half of the draws overflow, midway from max to the next value.
    x = torch.full((4000,), 61440.0)
    alike((None, zeros(4)), lambda counts: lp.quantize(x, "e5m2:stochastic", counts=counts))
    torch.manual_seed(5)
    counts = lp.count(x, "e5m2", "stochastic")
    torch.manual_seed(5)
    assert_bit_equal(lp.quantize(x, "e5m2", "stochastic").isinf().sum(), counts[0])


def test_counts_stay_where_a_call_is_refused():
    counts = zeros(4)
    with pytest.raises(ValueError, match="range"):
        lp.quantize(torch.ones(3), "e5m2", counts=counts, range=(0.0, 1.0))
    assert not counts.any()


def values_to_count() -> dict[str, Tensor]:
    x = torch.randn(6, 8) * torch.logspace(-9, 6, 8)
    x[0, :4] = torch.tensor([0.0, -0.0, math.inf, math.nan])
    complex_values = torch.complex(x, x)
    return {
        "float32": x, "float16": x.half(), "bfloat16": x.bfloat16(), "float64": x.double(),
        "transposed": x.T, "strided": x[:, ::2], "0-d": x[1, 1], "empty": x[:0],
        "parameter": torch.nn.Parameter(x), "negative bit": complex_values.conj().imag,
    }  # fmt: skip


def test_counting_many_tensors_counts_as_the_operator_does() -> None:
    fmt = lp.parse_format("e4m3")
    for name, x in values_to_count().items():
        counts = zeros()
        count_to_nearest(x, fmt, counts)
        count_to_nearest(x, fmt, counts)
        assert_bit_equal(counts, 2 * lp.count(x, fmt, histogram=True), name)
        if name == "float32":
            assert counts[:4].tolist() != [0, 0, 0, 0]


def test_a_tensor_without_memory_takes_the_operator() -> None:
    x, counts = torch.ones(3, device="meta"), torch.zeros(260, dtype=torch.int64, device="meta")
    with Operators() as operators:
        count_to_nearest(x, lp.parse_format("e4m3"), counts)
    assert operators.names[0] == "lpkernels::_count"


# The published quantizer's own vectors: Fu et al. 2021 (CPT), modules/quantize.py.
VECTOR = [-1.0, -0.4, 0.1, 0.7, 1.5]
PUBLISHED = {2: [0, 1, 1, 2, 3], 3: [0, 2, 3, 5, 7], 4: [0, 4, 7, 10, 15]} | {
    8: [0, 61, 112, 173, 255]
}


@pytest.mark.parametrize("bits", PUBLISHED)
def test_the_published_codes(bits, backend):
    x = torch.tensor(VECTOR)
    step = 2.5 / (2**bits - 1)
    want = torch.tensor([code * step - 1 for code in PUBLISHED[bits]], dtype=torch.float64).float()
    fmt = lp.AffineFormat(bits)
    for ends in ((-1.0, 1.5), (x.min(), x.max()), torch.tensor([-1.0, 1.5])):
        got = lp.quantize(x, fmt, range=ends, backend=backend)
        assert_bit_equal(got, want)
        assert_bit_equal(got, lp.quantize(x, fmt, backend=backend))


def test_values_outside_take_the_end_codes_and_a_single_value_the_smallest_step(backend):
    x = torch.tensor([-5.0, -0.0, 0.4, 0.6, 3.0, 9.0, math.inf, -math.inf, math.nan])
    got = lp.quantize(x, "affine2", range=(0, 3), backend=backend)
    want = [0.0, 0.0, 0.0, 1.0, 3.0, 3.0, 3.0, 0.0, math.nan]
    assert_bit_equal(got, torch.tensor(want))
    x = torch.tensor([0.5, 0.5 + 2**-20, 2.0])
    got = lp.quantize(x, "affine1", range=(0.5, 0.5), backend=backend)
    assert got.tolist() == [0.5, np.float32(0.5 + 1e-8), np.float32(0.5 + 1e-8)]


@pytest.mark.parametrize(
    "ends", [(1, 0), (math.nan, 0), (0, math.inf), (-math.inf, 0), (math.inf, math.inf)]
)
def test_ends_in_tensors_that_are_none_give_nan(ends, backend):
    x = torch.tensor([[0.0, 1.0, math.inf], [0.5, -1.0, 2.0]])
    bad = torch.tensor([[ends[0], -1.0], [ends[1], 2.0]])
    counts = torch.zeros(4, dtype=torch.int64)
    for fmt in ("affine2_axis0", "affine2_sym_axis0"):
        got = lp.quantize(x, fmt, range=bad, counts=counts, backend=backend)
        assert got[0].isnan().all()
        assert not got[1].isnan().any()
    assert counts.tolist() == [0, 2, 2, 2]


def test_a_range_takes_out_and_leaves_the_gradient(backend):
    x = torch.randn(9) * torch.exp2(torch.randint(-6, 6, (9,)).float())
    out = torch.empty(9)
    lp.quantize(x, "affine4", range=(-1.0, 1.0), out=out, backend=backend)
    x.requires_grad_()
    ends = torch.tensor([-1.0, 1.0], requires_grad=True)
    y = lp.quantize(x, "affine4", range=ends, backend=backend)
    assert_bit_equal(y.detach(), out)
    y.sum().backward()
    assert_bit_equal(x.grad, torch.ones(9))
    assert ends.grad is None

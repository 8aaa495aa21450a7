"""The reference backend: tensors of any dtype and strides in and out, with the bits of the twin."""

import numpy as np
import pytest
import torch

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends._reference import BACKEND
from lpkernels.reference import twin
from lpkernels.rng import SITE_BIAS, SITE_OUTER, SITE_QUANTIZE, Role, derive_seed
from tests.backends import by_hand
from tests.compare import assert_bit_equal
from tests.support.processor import flushed

SEED = torch.tensor(-12345)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("result", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_quantize_takes_and_gives_every_dtype(dtype: torch.dtype, result: torch.dtype) -> None:
    x = torch.randn(5, 6).mul(9).to(dtype)
    x[0, :5] = torch.tensor([torch.nan, torch.inf, -0.0, 1e-7, -3e4]).to(dtype)
    quantizer = Quantizer("e5m2", "stochastic", random_bits=7)
    out = torch.empty(5, 6, dtype=result)
    by_hand.quantize(BACKEND, x, quantizer.to_ints(), SEED, Role.INPUT, SITE_QUANTIZE, out)
    seed = derive_seed(-12345, Role.INPUT)
    want = torch.from_numpy(twin.quantize(x.double().numpy(), quantizer, seed=seed))
    # Widening is exact, and every dtype's NaN is its own 0x7fc00000.
    assert out.dtype == result
    assert_bit_equal(out.float(), want)


def test_quantize_keeps_float32_and_bfloat16_subnormals_when_flushing() -> None:
    x = torch.tensor([1, -(2**31) + 0x30000], dtype=torch.int32).view(torch.float32)
    narrow = x[1:].to(torch.bfloat16)
    with flushed():
        for source in (x, narrow):
            out = torch.empty_like(source)
            by_hand.quantize(
                BACKEND, source, Quantizer("fp32").to_ints(), None, 0, SITE_QUANTIZE, out
            )
            assert_bit_equal(out, source)


@pytest.mark.parametrize("rounding", ["nearest_even", "toward_negative", "stochastic"])
def test_accumulate_makes_the_outer_additions_of_a_chunked_sum(rounding: str) -> None:
    # Each chunk is one exact product, so the inner sums draw nothing that matters.
    a, b, bias = torch.randn(4, 6).bfloat16().float(), torch.randn(6, 3).bfloat16(), torch.randn(3)
    ints, inner = Accumulator("fp32", rounding, chunk=1, outer="e5m3").to_ints(), Accumulator()
    total, b = torch.zeros(4, 3), b.float()
    for k in range(6):
        addend = by_hand.matmul(
            BACKEND, a[:, k : k + 1], b[k : k + 1], None, inner.to_ints(), SEED, 0
        )
        by_hand.accumulate(BACKEND, total, addend, (0, 0), ints, SEED, 0, SITE_OUTER, k)
    by_hand.accumulate(BACKEND, total, bias, (0, 0), ints, SEED, 0, SITE_BIAS, 0)
    assert_bit_equal(total, by_hand.matmul(BACKEND, a, b, bias, ints, SEED, 0))


def test_accumulate_keys_its_draws_by_the_rows_and_columns_of_a_part() -> None:
    total, addend = torch.randn(6, 5), torch.randn(6, 5)
    ints = Accumulator("fp32", "stochastic", chunk=1, outer="e5m1").to_ints()
    total = by_hand.matmul(
        BACKEND, torch.eye(6), total, None, Accumulator("e5m1").to_ints(), None, 0
    )
    whole, part = total.clone(), total[2:, 3:].contiguous()
    by_hand.accumulate(BACKEND, whole, addend, (0, 0), ints, SEED, 3, SITE_OUTER, 9)
    by_hand.accumulate(BACKEND, part, addend[2:, 3:], (2, 3), ints, SEED, 3, SITE_OUTER, 9)
    assert_bit_equal(part, whole[2:, 3:])


def test_backend_leaves_numpy_error_state_alone() -> None:
    with np.errstate(all="raise"):
        x = torch.tensor([[torch.inf, torch.nan, 3e38, 1e-45]])
        by_hand.matmul(BACKEND, x, -x.t(), None, Accumulator("e4m3fn").to_ints(), None, 0)
        by_hand.quantize(BACKEND, x, Quantizer("e4m3fn").to_ints(), None, 0, 0, torch.empty_like(x))
        assert set(np.geterr().values()) == {"raise"}

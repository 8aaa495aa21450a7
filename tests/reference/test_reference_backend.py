"""The reference backend: tensors of any dtype and strides in and out, with the bits of the twin."""

import numpy as np
import pytest
import torch

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends._reference import BACKEND
from lpkernels.reference import twin
from lpkernels.rng import SITE_QUANTIZE, Role, derive_seed
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


def test_backend_leaves_numpy_error_state_alone() -> None:
    with np.errstate(all="raise"):
        x = torch.tensor([[torch.inf, torch.nan, 3e38, 1e-45]])
        by_hand.matmul(BACKEND, x, -x.t(), None, Accumulator("e4m3fn").to_ints(), None, 0)
        by_hand.quantize(BACKEND, x, Quantizer("e4m3fn").to_ints(), None, 0, 0, torch.empty_like(x))
        assert set(np.geterr().values()) == {"raise"}

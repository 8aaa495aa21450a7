"""lp.pack and lp.unpack: exact round trips, lengths, layouts and messages, on every backend."""

import pytest
import torch

import lpkernels as lp
from lpkernels import ops
from tests.cases import SPECIAL_VALUES
from tests.compare import assert_bit_equal

FORMATS = [
    *("e5m2", "fp8_e4m3", "fp6_e2m3", "fp4_e2m1", "e2m2none_sat", "fp16", "fp32"),
    *("fixed5_f2", "ufixed7_f3", "block4_e2m1", "block4_axis0_e4m3", "block32_e5m2"),
]


@pytest.fixture(autouse=True)
def every_backend(backend, monkeypatch):
    monkeypatch.setenv("LPKERNELS_BACKEND", backend)


def values_of(fmt: str, *shape: int) -> torch.Tensor:
    """Values of fmt with both zeros, and with infinities and NaN where fmt has codes for them."""
    x = torch.randn(shape) * 3
    parsed = lp.parse_format(fmt)
    specials = [0.0, -0.0]
    if isinstance(parsed, lp.FloatFormat) and parsed.specials == "ieee":
        specials = list(SPECIAL_VALUES)
    flat = x.view(-1)
    count = min(len(specials), flat.numel())
    flat[:count] = torch.tensor(specials[:count])
    return lp.quantize(x, fmt, backend="reference")


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 13), (3, 4, 5), (0,), (2, 0, 3)])
@pytest.mark.parametrize("fmt", FORMATS)
def test_pack_round_trips_with_the_codes_of_the_reference(fmt, shape, monkeypatch):
    x = values_of(fmt, *shape)
    codes = lp.pack(x, fmt)
    assert codes.dtype == torch.uint8
    assert codes.shape == (ops.packed_bytes(lp.parse_format(fmt).to_ints(), shape),)
    want = x + 0.0 if "fixed" in fmt else x
    assert_bit_equal(lp.unpack(codes, fmt, shape), want)
    monkeypatch.setenv("LPKERNELS_BACKEND", "reference")
    assert_bit_equal(codes, lp.pack(x, fmt))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_pack_takes_other_dtypes_and_strides(dtype):
    x = values_of("e5m2", 6, 5).to(dtype)
    assert_bit_equal(lp.pack(x.t(), "e5m2"), lp.pack(x.float().t().contiguous(), "e5m2"))


def test_a_scale_that_is_nan_may_have_a_sign():
    nan = torch.full((1, 1), -0x400000, dtype=torch.int32).view(torch.float32)
    q = lp.Scaled(torch.zeros(1, 2), nan, None, "mxfp8")
    assert lp.pack(q).tolist() == [255, 0, 0] and q.tensors()[1].isnan()

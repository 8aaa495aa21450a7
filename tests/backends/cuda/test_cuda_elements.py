"""Rounding on the cuda adapter: its reasons and its strides are tested anywhere, its bits where a
device is."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import as_quantizer
from lpkernels.backends import Rounding
from lpkernels.backends.cuda import BACKEND, TRITON_ALONE
from lpkernels.backends.cuda._quantize import collapsed
from lpkernels.rounding import ROUNDINGS
from tests import cases
from tests.compare import assert_bit_equal
from tests.support.cuda_host import needs_device


def offsets(sizes: list[int], strides: list[int]) -> list[int]:
    places = np.zeros([1] * len(sizes), dtype=np.int64)
    for d, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        shape = [1] * len(sizes)
        shape[d] = size
        places = places + (np.arange(size) * stride).reshape(shape)
    return places.ravel().tolist()


LAYOUTS = {
    "contiguous": (torch.zeros(2, 3, 4), 1),
    "transposed": (torch.zeros(4, 6).t(), 2),
    "sliced": (torch.zeros(4, 6, 5)[:, ::2], 2),
    "expanded": (torch.zeros(3, 1, 2).expand(3, 4, 2), 3),
    "channels_last": (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), 3),
    "ones": (torch.zeros(1, 1, 1), 0),
    "scalar": (torch.zeros(()), 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_collapsed_visits_every_element_in_order(layout: str):
    x, dims = LAYOUTS[layout]
    out = torch.zeros(x.shape)
    sizes, x_strides, out_strides = collapsed(x, out)
    assert len(sizes) == dims
    assert offsets(sizes, out_strides) == list(range(x.numel()))
    assert offsets(sizes, x_strides) == offsets(list(x.shape), list(x.stride()))


def test_unsupported_names_what_is_missing_and_who_has_it():
    device = torch.device("cuda")
    for op in ("quantize", "matmul", "conv_dgrad", "accumulate"):
        assert BACKEND.unsupported(op, device) == ""
    for op in ("matmul_ordered", "conv_dgrad_operands"):
        assert "backend='triton' has these" in BACKEND.unsupported(op, device)
    for op in ("matmul_cores", "conv_wgrad_cores", "matmul_scaled_cores"):
        assert "AMD's matrix cores are the cpu and reference" in BACKEND.unsupported(op, device)
    for op in TRITON_ALONE:
        want = f"on a GPU, {op} is an operation of the triton backend alone"
        assert BACKEND.unsupported(op, device) == want
    assert "no kernel yet for matmul_events" in BACKEND.unsupported("matmul_events", device)
    assert "on a CUDA device" in BACKEND.unsupported("quantize", torch.device("cpu"))


def rounding(fmt: str, **more: Tensor) -> Rounding:
    return Rounding(torch.ones(3), as_quantizer(fmt).to_ints(), out=torch.empty(3), **more)


@pytest.mark.parametrize(
    "method, arguments",
    [("quantize", [rounding("affine8")]), ("quantize", [rounding("block32_e4m3")]),
    ("quantize", [rounding("e4m3", counts=torch.zeros(4, dtype=torch.int64))]),
    ("pack", ()), ("unpack", ()), ("update", ()), ("hadamard", ())],
)  # fmt: skip
def test_what_triton_alone_has_is_refused(method: str, arguments: Any):
    with pytest.raises(NotImplementedError, match="is an operation of the triton backend alone"):
        getattr(BACKEND, method)(*arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_quantize_on_cuda_without_a_device_says_why():
    with pytest.raises(RuntimeError, match="cannot be used: torch"):
        lp.quantize(torch.zeros(2), "e5m2", backend="cuda")


def compare(x: torch.Tensor, fmt, rounding: str, **options: int) -> None:
    torch.manual_seed(1)
    got = lp.quantize(x.cuda(), fmt, rounding, backend="cuda", **options)
    torch.manual_seed(1)
    assert_bit_equal(got, lp.quantize(x, fmt, rounding, backend="reference", **options))


@needs_device
@pytest.mark.parametrize("fmt", cases.ROUND_FORMATS, ids=str)
def test_quantize(fmt):
    x = torch.from_numpy(cases.hard_values(fmt, 50))
    for rounding in ROUNDINGS:
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            compare(x.to(dtype), fmt, rounding)


@needs_device
@pytest.mark.parametrize("random_bits", [1, 8, 9, 16, 17, 32])
def test_quantize_draws_the_same_bits(random_bits: int):
    compare(torch.randn(129, 33), "e5m2", "stochastic", random_bits=random_bits)


@needs_device
@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantize_takes_any_strides(layout: str):
    x = torch.rand_like(LAYOUTS[layout][0], memory_format=torch.preserve_format)
    compare(x, "e5m2", "stochastic")


@needs_device
def test_quantize_takes_a_seed_on_the_device():
    x, seed = torch.randn(1000), torch.tensor(-5)
    got = lp.quantize(x.cuda(), "e5m2", "stochastic", generator=seed.cuda(), backend="cuda")
    want = lp.quantize(x, "e5m2", "stochastic", generator=seed, backend="reference")
    assert_bit_equal(got, want)


@needs_device
@pytest.mark.slow
def test_quantize_reaches_past_the_last_32_bit_index():
    x = torch.full((2**31 + 5,), 1.1, dtype=torch.float16, device="cuda")
    assert lp.quantize(x, "e5m2", backend="cuda")[-5:].tolist() == [1.0] * 5

"""Counting and given ranges on the cuda adapter: the calls that it makes to its kernels are tested
anywhere, its bits where a device is.

Anywhere, the kernels of csrc/cpu stand in for those of csrc/cuda and read the same pointers.
"""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from torch import Tensor

from lpkernels import _build
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import BINS, COUNTS, _reference, cpu
from lpkernels.backends.cuda import BACKEND, _counting
from lpkernels.formats import AffineFormat, parse_format
from tests import cases
from tests.compare import assert_bit_equal
from tests.support.elements import (
    KINDS,
    TENSOR_FORMATS,
    float32_values,
    tensor_values,
)

REASON = BACKEND.why_not()
NEEDS_MODULE = pytest.mark.skipif(not cpu.BACKEND.available(), reason=cpu.BACKEND.why_not())
ELEMENTS = [parse_format(name) for name in ("e5m2", "fp8_e4m3", "fixed8_f4_wrap")]
AFFINES = [fmt for fmt in TENSOR_FORMATS if isinstance(fmt, AffineFormat)]
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)


class CpuKernels:
    """The functions of lpkernels._C that begin with ``cuda_count``, carried out by those of the
    CPU."""

    def __init__(self) -> None:
        self.cpu = _build.load_extension()

    def cuda_count(self, *, sizes, x_strides, out_strides, out_type, **call) -> None:
        # The kernels of the CPU take contiguous elements only.
        dense = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
        assert x_strides == out_strides == dense
        self.count(sizes=[1, math.prod(sizes), 1], out_type=out_type, **call)

    def cuda_count_scaled(self, *, scratch, **call) -> None:
        assert len(scratch) == 2
        self.count(out_type=0, **call)

    def count(
        self, *, x, x_type, out, out_type, sizes, quantizer, seed, device_seed, role, site,
        counting, stream,
    ) -> None:  # fmt: skip
        assert not device_seed
        counts, histogram, limits = counting
        signed = seed - 2**64 if seed >= 2**63 else seed
        self.cpu.quantize_counting(
            x, out, x_type, out_type, sizes, quantizer, signed, role, site, 1, 1 << 40,
            counts, BINS if histogram else 0, limits,
        )  # fmt: skip


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_counting, "module", CpuKernels)
    monkeypatch.setattr(_counting, "on_device", lambda x: contextlib.nullcontext())
    monkeypatch.setattr(_counting, "stream", lambda x: 0)


def check(x: Tensor, quantizer: Quantizer, device: str, limits: Tensor | None = None) -> None:
    name = f"{quantizer} {tuple(x.shape)} {x.dtype}"
    call = (quantizer.to_ints(), torch.tensor(-5), 3, 4)
    want, want_counts = torch.empty(x.shape), torch.zeros(COUNTS + BINS, dtype=torch.int64)
    _reference.BACKEND.quantize_counting(x, *call, want, want_counts, limits)
    x, limits = x.to(device), None if limits is None else limits.to(device)
    for length in (COUNTS, COUNTS + BINS):
        for out in (torch.empty(x.shape, device=device), None):
            counts = torch.full((length,), 5, dtype=torch.int64, device=device)
            BACKEND.quantize_counting(x, *call, out, counts, limits)
            assert (counts - 5).tolist() == want_counts[:length].tolist(), name
            if out is not None:
                assert_bit_equal(out, want, name)


def ranges(x: Tensor, fmt: AffineFormat) -> Tensor:
    slices = 1 if fmt.axis is None else x.shape[fmt.axis]
    limits = torch.sort(torch.randn(2, slices, dtype=torch.float64), dim=0)[0]
    limits[:, 1:2] = float("nan")
    return limits.contiguous()


@NEEDS_MODULE
@pytest.mark.parametrize("fmt", [*ELEMENTS, *TENSOR_FORMATS], ids=cases.ids)
def test_every_element_is_asked_for(on_host, fmt):
    base = tensor_values((4, 6, 10), "special")
    for x in (base, base.double(), base.half(), base.bfloat16()):
        check(x, Quantizer(fmt), "cpu")
    check(base, Quantizer(fmt, "stochastic", random_bits=7), "cpu")
    if isinstance(fmt, AffineFormat):
        check(base, Quantizer(fmt), "cpu", ranges(base, fmt))


@NEEDS_MODULE
@pytest.mark.parametrize("fmt", TENSOR_FORMATS, ids=cases.ids)
def test_scaled_formats_take_any_strides(on_host, fmt):
    base = tensor_values((4, 6, 10), "wide")
    for x in (base.transpose(0, 1), base[:, ::2], base[:, :1].expand(4, 6, 10)):
        check(x, Quantizer(fmt), "cpu")
    out = torch.empty(base.shape[::-1], dtype=torch.float64).permute(2, 1, 0)
    counts, want = torch.zeros(4, dtype=torch.int64), torch.empty(base.shape)
    call = (base, Quantizer(fmt).to_ints(), None, 0, 4)
    BACKEND.quantize_counting(*call, out, counts, None)
    _reference.BACKEND.quantize(*call, want)
    assert_bit_equal(out.contiguous().float(), want)


@NEEDS_MODULE
@pytest.mark.parametrize("fmt", AFFINES, ids=cases.ids)
def test_a_range_needs_no_counts(on_host, fmt):
    x = tensor_values((4, 6, 10), "wide")
    limits, want, out = ranges(x, fmt), torch.empty(x.shape), torch.empty(x.shape)
    call = (x, Quantizer(fmt).to_ints(), None, 0, 4)
    _reference.BACKEND.quantize_counting(*call, want, None, limits)
    BACKEND.quantize_counting(*call, out, None, limits)
    assert_bit_equal(out, want)


@NEEDS_MODULE
def test_many_dimensions_are_made_dense(on_host):
    x = torch.randn(2, 3, 2, 3, 2, 3, 2, 3, 2).permute(*reversed(range(9)))
    check(x, Quantizer("e5m2"), "cpu")


@pytest.mark.cuda
@pytest.mark.skipif(bool(REASON), reason=f"cuda: {REASON}")
class TestOnDevice:
    @pytest.mark.parametrize("rounding", cases.ROUNDINGS)
    @pytest.mark.parametrize("fmt", cases.ROUND_FORMATS, ids=cases.ids)
    def test_counts_match_the_reference(self, fmt, rounding):
        x = torch.tensor(float32_values(fmt, 30))
        for dtype in DTYPES:
            check(x.to(dtype), Quantizer(fmt, rounding), "cuda")

    @pytest.mark.parametrize("fmt", TENSOR_FORMATS, ids=cases.ids)
    def test_scaled_formats_match_the_reference(self, fmt):
        for shape in ((1, 1, 1), (2, 70, 3), (3, 2, 66), (70, 3, 1)):
            for i, kind in enumerate(KINDS):
                x = tensor_values(shape, kind).to(DTYPES[i % 4])
                for rounding in ("nearest_even", "stochastic"):
                    limits = ranges(x, fmt) if isinstance(fmt, AffineFormat) else None
                    check(x, Quantizer(fmt, rounding), "cuda", limits)

    @pytest.mark.parametrize("fmt", [ELEMENTS[0], TENSOR_FORMATS[0], TENSOR_FORMATS[5]])
    def test_large_and_strided_tensors_match_the_cpu(self, fmt):
        x = torch.randn(257, 129, 33) * 1000
        for view in (x, x.transpose(0, 2), x[::2, :, 1:]):
            check(view, Quantizer(fmt), "cuda")

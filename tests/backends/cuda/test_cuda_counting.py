"""Counting and given ranges on the cuda adapter: the calls that it makes to its kernels are tested
anywhere, its bits where a device is.

Anywhere, the kernels of csrc/cpu stand in for those of csrc/cuda and read the same pointers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from lpkernels import _build
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import BINS, COUNTS, _reference, cpu
from lpkernels.backends.cuda import BACKEND, _counting
from lpkernels.formats import AffineFormat, parse_format
from tests import cases
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support import cuda_host
from tests.support.cuda_host import needs_device
from tests.support.element_bits import assert_counted, ranges
from tests.support.elements import KINDS, TENSOR_FORMATS, float32_values, tensor_values

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
def by_cpu() -> Iterator[None]:
    if not cpu.BACKEND.available():
        pytest.skip(cpu.BACKEND.why_not())
    with cuda_host.replaced((_counting,), CpuKernels):
        yield


#: With a histogram and without, with values and without.
check = partial(
    assert_counted, BACKEND, seed=-5, role=3,
    ways=tuple(itertools.product((COUNTS, COUNTS + BINS), (True, False))),
)  # fmt: skip


@each("fmt", [*ELEMENTS, *TENSOR_FORMATS])
def test_every_element_is_asked_for(fmt, by_cpu):
    base = tensor_values((4, 6, 10), "special")
    for x in (base, base.double(), base.half(), base.bfloat16()):
        check(x, Quantizer(fmt))
    check(base, Quantizer(fmt, "stochastic", random_bits=7))
    if isinstance(fmt, AffineFormat):
        check(base, Quantizer(fmt), limits=ranges(base, fmt))


@each("fmt", TENSOR_FORMATS)
def test_scaled_formats_take_any_strides(fmt, by_cpu):
    base = tensor_values((4, 6, 10), "wide")
    for x in (base.transpose(0, 1), base[:, ::2], base[:, :1].expand(4, 6, 10)):
        check(x, Quantizer(fmt))
    out = torch.empty(base.shape[::-1], dtype=torch.float64).permute(2, 1, 0)
    counts, want = torch.zeros(4, dtype=torch.int64), torch.empty(base.shape)
    call = (base, Quantizer(fmt).to_ints(), None, 0, 4)
    BACKEND.quantize_counting(*call, out, counts, None)
    _reference.BACKEND.quantize(*call, want)
    assert_bit_equal(out.contiguous().float(), want)


@each("fmt", AFFINES)
def test_a_range_needs_no_counts(fmt, by_cpu):
    x = tensor_values((4, 6, 10), "wide")
    limits, want, out = ranges(x, fmt), torch.empty(x.shape), torch.empty(x.shape)
    call = (x, Quantizer(fmt).to_ints(), None, 0, 4)
    _reference.BACKEND.quantize_counting(*call, want, None, limits)
    BACKEND.quantize_counting(*call, out, None, limits)
    assert_bit_equal(out, want)


def test_many_dimensions_are_made_dense(by_cpu):
    x = torch.randn(2, 3, 2, 3, 2, 3, 2, 3, 2).permute(*reversed(range(9)))
    check(x, Quantizer("e5m2"))


@needs_device
@each("fmt, rounding", itertools.product(cases.ROUND_FORMATS, cases.ROUNDINGS))
def test_counts_match_the_reference(fmt, rounding):
    x = torch.tensor(float32_values(fmt, 30))
    for dtype in DTYPES:
        check(x.to(dtype), Quantizer(fmt, rounding), "cuda")


@needs_device
@each("fmt", TENSOR_FORMATS)
def test_scaled_formats_match_the_reference(fmt):
    for shape in ((1, 1, 1), (2, 70, 3), (3, 2, 66), (70, 3, 1)):
        for i, kind in enumerate(KINDS):
            x = tensor_values(shape, kind).to(DTYPES[i % 4])
            for rounding in ("nearest_even", "stochastic"):
                limits = ranges(x, fmt) if isinstance(fmt, AffineFormat) else None
                check(x, Quantizer(fmt, rounding), "cuda", limits)


@needs_device
@each("fmt", [ELEMENTS[0], TENSOR_FORMATS[0], TENSOR_FORMATS[5]])
def test_large_and_strided_tensors_match_the_cpu(fmt):
    x = torch.randn(257, 129, 33) * 1000
    for view in (x, x.transpose(0, 2), x[::2, :, 1:]):
        check(view, Quantizer(fmt), "cuda")

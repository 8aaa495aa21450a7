"""Rounding, scales, codes and counts on the cuda adapter: its reasons, its strides and the calls
that it makes to its kernels are tested anywhere, its bits where a device is.

Anywhere, the kernels of csrc/cpu stand in for those of csrc/cuda and read the same pointers.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels import _build
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import BINS, COUNTS, _reference, cpu
from lpkernels.backends.cuda import BACKEND, _counting, _packing, _quantize
from lpkernels.backends.cuda._quantize import collapsed
from lpkernels.formats import AffineFormat, BlockFormat, parse_format
from tests import cases
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support import cuda_host, element_bits
from tests.support.cuda_host import needs_device
from tests.support.elements import (
    KINDS,
    TENSOR_FORMATS,
    WIDTHS,
    codable,
    float32_values,
    tensor_values,
)

FORMATS = [
    *TENSOR_FORMATS, AffineFormat(1), AffineFormat(16, axis=1), BlockFormat("fp8_e4m3", 32, axis=0),
    BlockFormat("e2m1", 5, axis=1),
]  # fmt: skip
BLOCKS = [fmt for fmt in FORMATS if isinstance(fmt, BlockFormat)]
AFFINES = [fmt for fmt in TENSOR_FORMATS if isinstance(fmt, AffineFormat)]
ELEMENTS = [parse_format(name) for name in ("e5m2", "fp8_e4m3", "fixed8_f4_wrap")]
SHAPES = [(1, 1, 1), (2, 70, 3), (3, 2, 66), (70, 3, 1), (4, 33), (5,)]
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
check_quantize = partial(element_bits.assert_quantized, BACKEND, seed=-5, role=3)
#: With a histogram and without, with values and without.
check_counts = partial(
    element_bits.assert_counted, BACKEND, seed=-5, role=3,
    ways=tuple(itertools.product((COUNTS, COUNTS + BINS), (True, False))),
)  # fmt: skip


class CpuKernels:
    """The functions of lpkernels._C that begin with ``cuda_``, carried out by those of the CPU."""

    def __init__(self) -> None:
        self.cpu = _build.load_extension()

    def cuda_quantize_scaled(
        self, x, x_type, out, sizes, quantizer, seed, device_seed, role, site, scratch, stream
    ) -> None:
        assert not device_seed and len(scratch) == 2
        draws = (signed(seed), role, site)
        self.cpu.quantize(x, out, x_type, 0, sizes, quantizer, *draws, 1, 1 << 40)

    def cuda_pack(self, x, format, sizes, words, refused, stream) -> None:
        index = self.cpu.pack(x, words, sizes, format, 1)
        if index >= 0:
            ctypes.c_int64.from_address(refused).value = index

    def cuda_unpack(self, codes, bytes, format, sizes, out, stream) -> None:
        assert bytes == self.cpu.packed_bytes(sizes, format)
        self.cpu.unpack(codes, out, sizes, format, 1)

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
        self.cpu.quantize_counting(
            x, out, x_type, out_type, sizes, quantizer, signed(seed), role, site, 1, 1 << 40,
            counts, BINS if histogram else 0, limits,
        )  # fmt: skip


def signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed


@pytest.fixture(params=["by the cpu", pytest.param("device", marks=pytest.mark.cuda)])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of the adapter's tensors: "cpu" where the CPU's kernels stand in, or "cuda"."""
    backend = cpu.BACKEND if request.param == "by the cpu" else BACKEND
    if not backend.available():
        pytest.skip(backend.why_not())
    if backend is BACKEND:
        yield "cuda"
        return
    with cuda_host.replaced((_counting, _packing, _quantize), CpuKernels):
        yield "cpu"


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


@each("layout", LAYOUTS)
def test_collapsed_visits_every_element_in_order(layout: str):
    x, dims = LAYOUTS[layout]
    out = torch.zeros(x.shape)
    sizes, x_strides, out_strides = collapsed(x, out)
    assert len(sizes) == dims
    assert offsets(sizes, out_strides) == list(range(x.numel()))
    assert offsets(sizes, x_strides) == offsets(list(x.shape), list(x.stride()))


def test_unsupported_names_what_is_missing():
    device = torch.device("cuda")
    for op in ("quantize", "quantize_affine", "quantize_block", "matmul", "matmul_ordered", "pack"):
        assert BACKEND.unsupported(op, device) == ""
    assert BACKEND.unsupported("conv_dgrad", device) == ""
    assert "no kernel yet for matmul_events" in BACKEND.unsupported("matmul_events", device)
    assert "on a CUDA device" in BACKEND.unsupported("quantize", torch.device("cpu"))


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
@each("fmt, rounding", itertools.product(cases.ROUND_FORMATS, cases.ROUNDINGS))
def test_quantize_matches_reference(fmt, rounding: str):
    compare(torch.from_numpy(cases.hard_values(fmt, 50)), fmt, rounding)


DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@needs_device
@each("fmt, dtype", itertools.product(["e4m3fn", "e5m2", "fixed8_f4", "bf16"], DTYPES))
def test_quantize_takes_every_dtype(fmt: str, dtype: torch.dtype):
    x = torch.from_numpy(cases.hard_values(lp.parse_format(fmt), 50)).to(dtype)
    compare(x, fmt, "nearest_even")


@needs_device
@each("random_bits", [1, 8, 9, 16, 17, 32])
def test_quantize_draws_the_same_bits(random_bits: int):
    compare(torch.randn(129, 33), "e5m2", "stochastic", random_bits=random_bits)


@needs_device
@each("layout", LAYOUTS)
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


@each("fmt", FORMATS)
def test_scales_ask_for_every_element(fmt, place: str):
    base = tensor_values((4, 6, 10), "wide")
    for x in (base, base.transpose(0, 1), base[:, ::2], base[:, :0], base.double()):
        check_quantize(x, Quantizer(fmt), place)
    check_quantize(base, Quantizer(fmt, "stochastic", random_bits=7), place)
    out = torch.empty(base.shape[::-1], dtype=torch.float64, device=place).permute(2, 1, 0)
    BACKEND.quantize(base.to(place), Quantizer(fmt).to_ints(), None, 0, 4, out)
    assert_bit_equal(out.contiguous().float(), element_bits.quantized(base, Quantizer(fmt)))


@each("fmt, rounding", itertools.product([AffineFormat(4), BLOCKS[0]], cases.DETERMINISTIC))
def test_scales_take_every_mode(fmt, rounding: str, place: str):
    check_quantize(torch.randn(50, 3, 129), Quantizer(fmt, rounding), place)


@needs_device
@each("fmt, shape", itertools.product(FORMATS, SHAPES))
def test_scales_match_reference(fmt, shape: tuple[int, ...]):
    axis = fmt.axis if fmt.axis is not None else 0
    if not -len(shape) <= axis < len(shape):
        pytest.skip(f"{fmt} has axis {axis}")
    for kind, dtype, rounding in itertools.product(KINDS, DTYPES, ("nearest_even", "stochastic")):
        check_quantize(tensor_values(shape, kind).to(dtype), Quantizer(fmt, rounding), "cuda")


@needs_device
@each("fmt", [AffineFormat(4), AffineFormat(4, axis=0), BLOCKS[0]])
def test_scales_of_large_tensors_match_the_cpu(fmt):
    x = torch.randn(257, 129, 33)
    got = lp.quantize(x.cuda(), fmt, backend="cuda")
    assert_bit_equal(got, lp.quantize(x, fmt, backend="cpu"))


@each("fmt", [*cases.ROUND_FORMATS, *WIDTHS])
def test_codes_match_reference(fmt, place: str):
    for count in (0, 1, 7, 33, 1500) if place == "cuda" else (0, 1, 33):
        element_bits.assert_codes(BACKEND, codable(fmt, count), fmt, place)
    element_bits.assert_codes(BACKEND, codable(fmt, 84).view(2, 14, 3).transpose(0, 2), fmt, place)


@each("fmt, shape", itertools.product(BLOCKS, [(0, 3, 2), (1, 1, 1), *SHAPES[1:4]]))
def test_codes_of_blocks_match_reference(fmt, shape: tuple[int, ...], place: str):
    for kind in KINDS if 0 not in shape else ("wide",):
        x = element_bits.quantized(tensor_values(shape, kind), Quantizer(fmt))
        element_bits.assert_codes(BACKEND, x, fmt, place)


REFUSED = r"pack: element 1313 \(in row-major order\) is 1.100000023841858, for which the format"


@each("fmt", ["e5m2", "block4_e4m3"])
def test_pack_names_the_first_value_without_a_code(fmt: str, place: str):
    x = torch.ones(100_000, device=place)
    x[[1313, 99_000]] = 1.1
    with pytest.raises(ValueError, match=REFUSED):
        BACKEND.pack(x, lp.parse_format(fmt).to_ints())


@needs_device
def test_a_captured_graph_draws_afresh():
    x, seed = torch.randn(300, device="cuda"), torch.tensor(1, device="cuda")
    for fmt in (AffineFormat(4), BLOCKS[0]):
        quantizer = Quantizer(fmt, "stochastic")
        call = (quantizer.to_ints(), seed, 0, 4)
        out = torch.empty_like(x)
        BACKEND.quantize(x, *call, out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            BACKEND.quantize(x, *call, out)
        for value in (5, 6):
            seed.fill_(value)
            graph.replay()
            assert_bit_equal(out, element_bits.quantized(x.cpu(), quantizer, seed=value))


@needs_device
@pytest.mark.slow
def test_codes_reach_past_the_last_32_bit_index():
    x = torch.zeros(2**31 + 5, device="cuda")
    x[-1] = -1.5
    codes = BACKEND.pack(x, lp.parse_format("e2m1").to_ints())
    assert codes.numel() == 2**30 + 3 and codes[-1].item() == 0xB
    back = BACKEND.unpack(codes, lp.parse_format("e2m1").to_ints(), [2**31 + 5])
    assert back[-1].item() == -1.5 and not back[:-1].any()


@each("fmt", [*ELEMENTS, *TENSOR_FORMATS])
def test_counts_ask_for_every_element(fmt, place: str):
    base = tensor_values((4, 6, 10), "special")
    for x in (base, base.double(), base.half(), base.bfloat16()):
        check_counts(x, Quantizer(fmt), place)
    check_counts(base, Quantizer(fmt, "stochastic", random_bits=7), place)
    if isinstance(fmt, AffineFormat):
        check_counts(base, Quantizer(fmt), place, limits=element_bits.ranges(base, fmt))


@each("fmt", TENSOR_FORMATS)
def test_counts_of_scaled_formats_take_any_strides(fmt, place: str):
    base = tensor_values((4, 6, 10), "wide")
    for x in (base.transpose(0, 1), base[:, ::2], base[:, :1].expand(4, 6, 10)):
        check_counts(x, Quantizer(fmt), place)
    out = torch.empty(base.shape[::-1], dtype=torch.float64, device=place).permute(2, 1, 0)
    counts = torch.zeros(4, dtype=torch.int64, device=place)
    BACKEND.quantize_counting(
        base.to(place), Quantizer(fmt).to_ints(), None, 0, 4, out, counts, None
    )
    assert_bit_equal(out.contiguous().float(), element_bits.quantized(base, Quantizer(fmt)))


@each("fmt", AFFINES)
def test_a_range_needs_no_counts(fmt, place: str):
    x = tensor_values((4, 6, 10), "wide")
    limits, want = element_bits.ranges(x, fmt), torch.empty(x.shape)
    call, out = (Quantizer(fmt).to_ints(), None, 0, 4), torch.empty(x.shape, device=place)
    _reference.BACKEND.quantize_counting(x, *call, want, None, limits)
    BACKEND.quantize_counting(x.to(place), *call, out, None, limits.to(place))
    assert_bit_equal(out, want)


def test_many_dimensions_are_made_dense(place: str):
    x = torch.randn(2, 3, 2, 3, 2, 3, 2, 3, 2).permute(*reversed(range(9)))
    check_counts(x, Quantizer("e5m2"), place)


@needs_device
@each("fmt, rounding", itertools.product(cases.ROUND_FORMATS, cases.ROUNDINGS))
def test_counts_match_the_reference(fmt, rounding):
    x = torch.tensor(float32_values(fmt, 30))
    for dtype in DTYPES:
        check_counts(x.to(dtype), Quantizer(fmt, rounding), "cuda")


@needs_device
@each("fmt", TENSOR_FORMATS)
def test_counts_of_scaled_formats_match_the_reference(fmt):
    for shape in ((1, 1, 1), (2, 70, 3), (3, 2, 66), (70, 3, 1)):
        for i, kind in enumerate(KINDS):
            x = tensor_values(shape, kind).to(DTYPES[i % 4])
            for rounding in ("nearest_even", "stochastic"):
                limits = element_bits.ranges(x, fmt) if isinstance(fmt, AffineFormat) else None
                check_counts(x, Quantizer(fmt, rounding), "cuda", limits)


@needs_device
@each("fmt", [ELEMENTS[0], TENSOR_FORMATS[0], TENSOR_FORMATS[5]])
def test_counts_of_large_and_strided_tensors_match_the_cpu(fmt):
    x = torch.randn(257, 129, 33) * 1000
    for view in (x, x.transpose(0, 2), x[::2, :, 1:]):
        check_counts(view, Quantizer(fmt), "cuda")

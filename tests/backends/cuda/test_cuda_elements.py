"""Scales and codes on the cuda adapter: the calls that it makes to its kernels are tested anywhere,
its bits where a device is.

Anywhere, the kernels of csrc/cpu stand in for those of csrc/cuda and read the same pointers.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels import _build
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import cpu
from lpkernels.backends.cuda import BACKEND, _packing, _quantize
from lpkernels.formats import AffineFormat, BlockFormat
from tests import cases
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support import cuda_host
from tests.support.cuda_host import needs_device
from tests.support.element_bits import assert_codes, assert_quantized, quantized
from tests.support.elements import KINDS, TENSOR_FORMATS, WIDTHS, codable, tensor_values

FORMATS = [
    *TENSOR_FORMATS,
    AffineFormat(1),
    AffineFormat(16, axis=1),
    BlockFormat("fp8_e4m3", 32, axis=0),
    BlockFormat("e2m1", 5, axis=1),
]
BLOCKS = [fmt for fmt in FORMATS if isinstance(fmt, BlockFormat)]
SHAPES = [(1, 1, 1), (2, 70, 3), (3, 2, 66), (70, 3, 1), (4, 33), (5,)]
check_quantize = partial(assert_quantized, BACKEND, seed=-5, role=3)


class CpuKernels:
    """The functions of lpkernels._C that begin with ``cuda_``, carried out by those of the CPU."""

    def __init__(self) -> None:
        self.cpu = _build.load_extension()

    def cuda_quantize_scaled(
        self, x, x_type, out, sizes, quantizer, seed, device_seed, role, site, scratch, stream
    ) -> None:
        assert not device_seed and len(scratch) == 2
        signed = seed - 2**64 if seed >= 2**63 else seed
        self.cpu.quantize(x, out, x_type, 0, sizes, quantizer, signed, role, site, 1, 1 << 40)

    def cuda_pack(self, x, format, sizes, words, refused, stream) -> None:
        index = self.cpu.pack(x, words, sizes, format, 1)
        if index >= 0:
            ctypes.c_int64.from_address(refused).value = index

    def cuda_unpack(self, codes, bytes, format, sizes, out, stream) -> None:
        assert bytes == self.cpu.packed_bytes(sizes, format)
        self.cpu.unpack(codes, out, sizes, format, 1)


@pytest.fixture
def by_cpu() -> Iterator[None]:
    if not cpu.BACKEND.available():
        pytest.skip(cpu.BACKEND.why_not())
    with cuda_host.replaced((_packing, _quantize), CpuKernels):
        yield


@each("fmt", FORMATS)
def test_quantize_asks_for_every_element(fmt, by_cpu):
    base = tensor_values((4, 6, 10), "wide")
    for x in (base, base.transpose(0, 1), base[:, ::2], base[:, :0], base.double()):
        check_quantize(x, Quantizer(fmt))
    check_quantize(base, Quantizer(fmt, "stochastic", random_bits=7))
    out = torch.empty(base.shape[::-1], dtype=torch.float64).permute(2, 1, 0)
    BACKEND.quantize(base, Quantizer(fmt).to_ints(), None, 0, 4, out)
    assert_bit_equal(out.contiguous().float(), quantized(base, Quantizer(fmt)))


@each("fmt", [*WIDTHS[::5], lp.FixedFormat(5, 2), *BLOCKS])
def test_codes_ask_for_every_element(fmt, by_cpu):
    for shape in ((0, 3, 2), (2, 70, 3), (1, 1, 1)):
        if isinstance(fmt, BlockFormat):
            assert_codes(BACKEND, quantized(tensor_values(shape, "plain"), Quantizer(fmt)), fmt)
        else:
            x = codable(fmt, int(np.prod(shape))).view(shape)
            assert_codes(BACKEND, x, fmt)
            assert_codes(BACKEND, x.transpose(0, 2), fmt)


REFUSED = r"pack: element 13 \(in row-major order\) is 1.100000023841858, for which the format"


@each("fmt", ["e5m2", "block4_e4m3"])
def test_pack_names_the_first_value_without_a_code(fmt: str, by_cpu):
    x = torch.ones(40)
    x[[13, 30]] = 1.1
    with pytest.raises(ValueError, match=REFUSED):
        BACKEND.pack(x, lp.parse_format(fmt).to_ints())


@needs_device
@each("fmt, shape", itertools.product(FORMATS, SHAPES))
def test_quantize_matches_reference(fmt, shape: tuple[int, ...]):
    axis = fmt.axis if fmt.axis is not None else 0
    if not -len(shape) <= axis < len(shape):
        pytest.skip(f"{fmt} has axis {axis}")
    for kind in KINDS:
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float16):
            x = tensor_values(shape, kind).to(dtype)
            for rounding in ("nearest_even", "stochastic"):
                check_quantize(x, Quantizer(fmt, rounding), "cuda")


@needs_device
@each("fmt, rounding", itertools.product([AffineFormat(4), BLOCKS[0]], cases.DETERMINISTIC))
def test_quantize_takes_every_mode(fmt, rounding: str):
    check_quantize(torch.randn(50, 3, 129), Quantizer(fmt, rounding), "cuda")


@needs_device
@each("fmt", [AffineFormat(4), AffineFormat(4, axis=0), BLOCKS[0]])
def test_quantize_of_large_tensors_matches_the_cpu(fmt):
    x = torch.randn(257, 129, 33)
    got = lp.quantize(x.cuda(), fmt, backend="cuda")
    assert_bit_equal(got, lp.quantize(x, fmt, backend="cpu"))


@needs_device
@each("fmt", [*cases.ROUND_FORMATS, *WIDTHS])
def test_codes_match_reference(fmt):
    for count in (1, 7, 33, 1500):
        assert_codes(BACKEND, codable(fmt, count), fmt, "cuda")


@needs_device
@each("fmt, shape", itertools.product(BLOCKS, SHAPES[1:4]))
def test_codes_of_blocks_match_reference(fmt, shape: tuple[int, ...]):
    for kind in KINDS:
        x = quantized(tensor_values(shape, kind), Quantizer(fmt))
        assert_codes(BACKEND, x, fmt, "cuda")


@needs_device
@each("fmt", ["e5m2", "block4_e4m3"])
def test_pack_names_the_first_value_without_a_code_on_a_device(fmt: str):
    x = torch.ones(100_000, device="cuda")
    x[[1313, 99_000]] = 1.1
    with pytest.raises(ValueError, match=r"pack: element 1313 \(in row-major order\)"):
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
            assert_bit_equal(out, quantized(x.cpu(), quantizer, seed=value))


@needs_device
@pytest.mark.slow
def test_codes_reach_past_the_last_32_bit_index():
    x = torch.zeros(2**31 + 5, device="cuda")
    x[-1] = -1.5
    codes = BACKEND.pack(x, lp.parse_format("e2m1").to_ints())
    assert codes.numel() == 2**30 + 3 and codes[-1].item() == 0xB
    back = BACKEND.unpack(codes, lp.parse_format("e2m1").to_ints(), [2**31 + 5])
    assert back[-1].item() == -1.5 and not back[:-1].any()

"""Scales and codes on the cuda adapter: the calls that it makes to its kernels are tested anywhere,
its bits where a device is.

Anywhere, the kernels of csrc/cpu stand in for those of csrc/cuda and read the same pointers.
"""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels import _build
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import _reference, cpu
from lpkernels.backends.cuda import BACKEND, _packing, _quantize
from lpkernels.formats import AffineFormat, BlockFormat
from tests import cases
from tests.compare import assert_bit_equal
from tests.support.elements import KINDS, TENSOR_FORMATS, WIDTHS, codable, tensor_values

REASON = BACKEND.why_not()
REFERENCE = _reference.BACKEND
NEEDS_MODULE = pytest.mark.skipif(not cpu.BACKEND.available(), reason=cpu.BACKEND.why_not())

FORMATS = [
    *TENSOR_FORMATS,
    AffineFormat(1),
    AffineFormat(16, axis=1),
    BlockFormat("fp8_e4m3", 32, axis=0),
    BlockFormat("e2m1", 5, axis=1),
]
BLOCKS = [fmt for fmt in FORMATS if isinstance(fmt, BlockFormat)]
SHAPES = [(1, 1, 1), (2, 70, 3), (3, 2, 66), (70, 3, 1), (4, 33), (5,)]


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
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (_packing, _quantize):
        monkeypatch.setattr(part, "module", CpuKernels)
        monkeypatch.setattr(part, "on_device", lambda x: contextlib.nullcontext())
        monkeypatch.setattr(part, "stream", lambda x: 0)


def check_quantize(x: Tensor, quantizer: Quantizer, device: str) -> None:
    call = (quantizer.to_ints(), torch.tensor(-5), 3, 4)
    want, out = torch.empty(x.shape), torch.empty(x.shape, device=device)
    REFERENCE.quantize(x, *call, want)
    BACKEND.quantize(x.to(device), *call, out)
    assert_bit_equal(out, want, f"{quantizer} {tuple(x.shape)} {x.dtype}")


def check_codes(x: Tensor, fmt, device: str) -> None:
    ints = fmt.to_ints()
    codes = BACKEND.pack(x.to(device), ints)
    want = REFERENCE.pack(x, ints)
    assert_bit_equal(codes, want, f"codes of {fmt}")
    values = BACKEND.unpack(codes, ints, list(x.shape))
    assert_bit_equal(values, REFERENCE.unpack(want, ints, tuple(x.shape)), f"values of {fmt}")


def quantized(x: Tensor, fmt) -> Tensor:
    out = torch.empty(x.shape)
    REFERENCE.quantize(x, Quantizer(fmt).to_ints(), None, 0, 4, out)
    return out


@NEEDS_MODULE
@pytest.mark.parametrize("fmt", FORMATS, ids=cases.ids)
def test_quantize_asks_for_every_element(on_host, fmt):
    base = tensor_values((4, 6, 10), "wide")
    for x in (base, base.transpose(0, 1), base[:, ::2], base[:, :0], base.double()):
        check_quantize(x, Quantizer(fmt), "cpu")
    check_quantize(base, Quantizer(fmt, "stochastic", random_bits=7), "cpu")
    out = torch.empty(base.shape[::-1], dtype=torch.float64).permute(2, 1, 0)
    BACKEND.quantize(base, Quantizer(fmt).to_ints(), None, 0, 4, out)
    assert_bit_equal(out.contiguous().float(), quantized(base, fmt))


@NEEDS_MODULE
@pytest.mark.parametrize("fmt", [*WIDTHS[::5], lp.FixedFormat(5, 2), *BLOCKS], ids=cases.ids)
def test_codes_ask_for_every_element(on_host, fmt):
    for shape in ((0, 3, 2), (2, 70, 3), (1, 1, 1)):
        count = int(np.prod(shape))
        if isinstance(fmt, BlockFormat):
            x = quantized(tensor_values(shape, "plain"), fmt)
        else:
            x = codable(fmt, count).view(shape)
        check_codes(x, fmt, "cpu")
        if not isinstance(fmt, BlockFormat):
            check_codes(x.transpose(0, 2), fmt, "cpu")


@NEEDS_MODULE
@pytest.mark.parametrize("fmt", ["e5m2", "block4_e4m3"])
def test_pack_names_the_first_value_without_a_code(on_host, fmt: str):
    x = torch.ones(40)
    x[[13, 30]] = 1.1
    match = r"pack: element 13 \(in row-major order\) is 1.100000023841858, for which the format"
    with pytest.raises(ValueError, match=match):
        BACKEND.pack(x, lp.parse_format(fmt).to_ints())


@pytest.mark.cuda
@pytest.mark.skipif(bool(REASON), reason=f"cuda: {REASON}")
class TestOnDevice:
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("fmt", FORMATS, ids=cases.ids)
    def test_quantize_matches_reference(self, fmt, shape: tuple[int, ...]):
        axis = fmt.axis if fmt.axis is not None else 0
        if not -len(shape) <= axis < len(shape):
            pytest.skip(f"{fmt} has axis {axis}")
        for kind in KINDS:
            for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float16):
                x = tensor_values(shape, kind).to(dtype)
                for rounding in ("nearest_even", "stochastic"):
                    check_quantize(x, Quantizer(fmt, rounding), "cuda")

    @pytest.mark.parametrize("rounding", cases.DETERMINISTIC)
    @pytest.mark.parametrize("fmt", [AffineFormat(4), BLOCKS[0]], ids=cases.ids)
    def test_quantize_takes_every_mode(self, fmt, rounding: str):
        check_quantize(torch.randn(50, 3, 129), Quantizer(fmt, rounding), "cuda")

    @pytest.mark.parametrize("fmt", [AffineFormat(4), AffineFormat(4, axis=0), BLOCKS[0]])
    def test_quantize_of_large_tensors_matches_the_cpu(self, fmt):
        x = torch.randn(257, 129, 33)
        got = lp.quantize(x.cuda(), fmt, backend="cuda")
        assert_bit_equal(got, lp.quantize(x, fmt, backend="cpu"))

    @pytest.mark.parametrize("fmt", [*cases.ROUND_FORMATS, *WIDTHS], ids=cases.ids)
    def test_codes_match_reference(self, fmt):
        for count in (1, 7, 33, 1500):
            check_codes(codable(fmt, count), fmt, "cuda")

    @pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
    @pytest.mark.parametrize("fmt", BLOCKS, ids=cases.ids)
    def test_codes_of_blocks_match_reference(self, fmt, shape: tuple[int, ...]):
        for kind in KINDS:
            check_codes(quantized(tensor_values(shape, kind), fmt), fmt, "cuda")

    @pytest.mark.parametrize("fmt", ["e5m2", "block4_e4m3"])
    def test_pack_names_the_first_value_without_a_code(self, fmt: str):
        x = torch.ones(100_000, device="cuda")
        x[[1313, 99_000]] = 1.1
        with pytest.raises(ValueError, match=r"pack: element 1313 \(in row-major order\)"):
            BACKEND.pack(x, lp.parse_format(fmt).to_ints())

    def test_a_captured_graph_draws_afresh(self):
        x, seed = torch.randn(300, device="cuda"), torch.tensor(1, device="cuda")
        for fmt in (AffineFormat(4), BLOCKS[0]):
            call = (Quantizer(fmt, "stochastic").to_ints(), seed, 0, 4)
            out = torch.empty_like(x)
            BACKEND.quantize(x, *call, out)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                BACKEND.quantize(x, *call, out)
            for value in (5, 6):
                seed.fill_(value)
                graph.replay()
                want = torch.empty(x.shape)
                REFERENCE.quantize(x.cpu(), call[0], torch.tensor(value), 0, 4, want)
                assert_bit_equal(out, want)

    @pytest.mark.slow
    def test_codes_reach_past_the_last_32_bit_index(self):
        x = torch.zeros(2**31 + 5, device="cuda")
        x[-1] = -1.5
        codes = BACKEND.pack(x, lp.parse_format("e2m1").to_ints())
        assert codes.numel() == 2**30 + 3 and codes[-1].item() == 0xB
        back = BACKEND.unpack(codes, lp.parse_format("e2m1").to_ints(), [2**31 + 5])
        assert back[-1].item() == -1.5 and not back[:-1].any()

"""The elementwise kernels against rounding.py, to the bit: instruction sets, modes, sizes."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.backends import _reference, cpu
from lpkernels.formats import AffineFormat, BlockFormat, parse_format
from tests.cases import DETERMINISTIC, ROUND_FORMATS, ids
from tests.compare import assert_bit_equal
from tests.support.elements import (
    END_FORMATS,
    KINDS,
    SEED,
    SITE,
    TENSOR_FORMATS,
    Format,
    expected,
    float32_values,
    quantizers,
    tensor_values,
)
from tests.support.processor import isa

__all__ = ["isa"]

pytestmark = pytest.mark.skipif(
    not cpu.BACKEND.available(), reason=f"cpu backend: {cpu.BACKEND.why_not()}"
)


def quantized(x: Tensor, quantizer: Quantizer, out: Tensor | None = None) -> Tensor:
    """x on the cpu backend, written into ``out`` or a float32 tensor."""
    out = torch.empty_like(x, dtype=torch.float32) if out is None else out
    cpu.BACKEND.quantize(x, quantizer.to_ints(), torch.tensor(SEED), 0, SITE, out)
    return out


@pytest.mark.parametrize("fmt", [*ROUND_FORMATS, *END_FORMATS], ids=ids)
def test_float32_matches_round_array(fmt: Format, isa: str) -> None:
    x = float32_values(fmt)
    for quantizer in quantizers(fmt):
        got = quantized(torch.from_numpy(x), quantizer)
        assert_bit_equal(got, expected(x, quantizer), f"{quantizer} {quantizer.random_bits}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["e4m3", "e5m2_sat", "fp8_e4m3", "e3m2_nosub", "e5m0", "e4m7"])
def test_16_bit_patterns_match_round_array(name: str, dtype: torch.dtype, isa: str) -> None:
    """All 65536 patterns are rounded into the same type and into float32."""
    fmt = parse_format(name)
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    for quantizer in quantizers(fmt):
        want = torch.from_numpy(expected(x.float().numpy(), quantizer))
        assert_bit_equal(quantized(x, quantizer), want, f"{quantizer} to float32")
        if fmt.fits_in(5, 10) or dtype == torch.bfloat16:
            got = quantized(x, quantizer, torch.empty_like(x))
            canonical = {torch.float16: 0x7E00, torch.bfloat16: 0x7FC0}[dtype]
            bits = torch.where(want.isnan(), canonical, want.to(dtype).view(torch.int16))
            assert_bit_equal(got.view(torch.int16), bits.to(torch.int16), f"{quantizer}")


CHOSEN = [
    Quantizer("e5m2"),
    Quantizer("e4m3", "stochastic", random_bits=6),
    Quantizer("e6m9", "stochastic", random_bits=13),
    Quantizer("bf16", "stochastic"),
    Quantizer("e3m2_nosub", "to_odd"),
    Quantizer("fixed8_f4", "stochastic", random_bits=9),
]


@pytest.mark.parametrize("stream_bytes", [0, 1 << 62], ids=["streamed", "cached"])
@pytest.mark.parametrize("quantizer", CHOSEN, ids=ids)
def test_lengths_and_alignments(
    quantizer: Quantizer, stream_bytes: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 to 70 elements go from any start to any start, and nothing beside them is written."""
    monkeypatch.setattr(cpu, "STREAM_BYTES", stream_bytes)
    generator = np.random.default_rng(3)
    x = torch.from_numpy(generator.normal(0, 3, 100).astype(np.float32))
    for count in range(71):
        for start in (0, 1, 3, 4, 8):
            out = torch.full((100,), 77.0)
            source = x[start : start + count]
            quantized(source, quantizer, out[start // 2 : start // 2 + count])
            got = out[start // 2 : start // 2 + count]
            assert_bit_equal(got, expected(source.numpy(), quantizer), f"{count} from {start}")
            assert (out[: start // 2] == 77).all()
            assert (out[start // 2 + count :] == 77).all()


@pytest.mark.parametrize("quantizer", CHOSEN, ids=ids)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_tensors(
    quantizer: Quantizer, dtype: torch.dtype, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensors have several pieces (65536 elements in quantize.cpp), any number of threads, both
    kinds of stores."""
    generator = np.random.default_rng(4)
    x = torch.from_numpy(generator.normal(0, 3, 3 * 65536 + 77).astype(np.float32)).to(dtype)
    want = expected(x.float().numpy(), quantizer)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            for stream_bytes in (0, 1 << 62):
                torch.set_num_threads(count)
                monkeypatch.setattr(cpu, "STREAM_BYTES", stream_bytes)
                assert_bit_equal(quantized(x, quantizer), want, f"{count} {stream_bytes}")
    finally:
        torch.set_num_threads(threads)


def test_flush_to_zero_does_not_show(isa: str) -> None:
    fmt = parse_format("bf16")
    x = float32_values(fmt)
    assert torch.set_flush_denormal(True)
    try:
        results = {q: quantized(torch.from_numpy(x), q) for q in quantizers(fmt)}
    finally:
        torch.set_flush_denormal(False)
    for quantizer, got in results.items():
        assert_bit_equal(got, expected(x, quantizer), str(quantizer))


SHAPES = [(1, 1, 1), (2, 3, 33), (3, 70, 5), (5, 2, 130), (2, 40, 1), (1, 1, 3001)]


@pytest.mark.parametrize("fmt", TENSOR_FORMATS, ids=ids)
def test_affine_and_block_match_reference(fmt: AffineFormat | BlockFormat, isa: str) -> None:
    modes = ["stochastic", "nearest_even", *DETERMINISTIC[1:]]
    dtypes = [torch.float32, torch.bfloat16, torch.float64]
    for i, (shape, kind) in enumerate(product(SHAPES, KINDS)):
        x = tensor_values(shape, kind).to(dtypes[i % len(dtypes)])
        quantizer = Quantizer(fmt, modes[i % len(modes)])
        want = torch.empty(shape)
        _reference.BACKEND.quantize(x, quantizer.to_ints(), torch.tensor(SEED), 0, SITE, want)
        got = quantized(x, quantizer)
        assert_bit_equal(got, want, f"{shape} {kind} {x.dtype} {quantizer.rounding}")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("element", ["e7m0_b-1", "e2m1", "e4m3"])
def test_blocks_of_float64_beyond_float32(element: str, axis: int, isa: str) -> None:
    """The scale of a block is that of its largest value, even where float32 does not hold that
    value."""
    rows = [[2.0**1000, 1.0, 2.0**100, -(2.0**60)], [2.0**230, 2.0**127, 2.0**-1000, -0.0]]
    x = torch.tensor(rows, dtype=torch.float64)
    quantizer = Quantizer(BlockFormat(element, 4, axis=axis))
    want = torch.empty(x.shape)
    _reference.BACKEND.quantize(x, quantizer.to_ints(), None, 0, SITE, want)
    assert_bit_equal(quantized(x, quantizer), want)


@pytest.mark.parametrize("fmt", TENSOR_FORMATS, ids=ids)
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_large_affine_and_block(fmt: AffineFormat | BlockFormat, rounding: str) -> None:
    """Any number of threads takes the pieces of the work, of which a single slice may have
    several."""
    quantizer = Quantizer(fmt, rounding)
    x = tensor_values((3, 150, 401), "special")
    want = torch.empty(x.shape)
    _reference.BACKEND.quantize(x, quantizer.to_ints(), torch.tensor(SEED), 0, SITE, want)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert_bit_equal(quantized(x, quantizer), want, f"{count} threads")
    finally:
        torch.set_num_threads(threads)

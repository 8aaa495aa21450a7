"""The elementwise kernels against rounding.py, to the bit: instruction sets, modes, sizes. The slow
tests go through every float32 pattern, beside independent casts, and tensors of more than 2^31
elements."""

from collections.abc import Callable, Iterable
from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.backends import cpu
from lpkernels.formats import AffineFormat, BlockFormat, parse_format
from lpkernels.rounding import round_array
from tests.backends import by_hand
from tests.backends.cpu_products import REFERENCE
from tests.cases import EVERY_FORMAT
from tests.compare import assert_bit_equal
from tests.support import elements
from tests.support.processor import Isas, Threads, flushed


def assert_quantized(
    ways: Iterable[str], x: Tensor, quantizer: Quantizer, want: object, name: object = ""
) -> None:
    for way in ways:
        assert_bit_equal(elements.cpu_quantized(x, quantizer), want, f"{way} {quantizer} {name}")


@pytest.mark.parametrize("fmt", [*EVERY_FORMAT, *elements.END_FORMATS], ids=str)
def test_float32(fmt: elements.Format, isas: Isas) -> None:
    x = elements.float32_values(fmt)
    for quantizer in elements.quantizers(fmt):
        want = elements.expected(x, quantizer)
        assert_quantized(isas, torch.from_numpy(x), quantizer, want, quantizer.random_bits)
        if str(fmt) == "e8m7":
            with flushed():
                got = elements.cpu_quantized(torch.from_numpy(x), quantizer)
            assert_bit_equal(got, want, "flushed")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["e4m3", "e5m2_sat", "fp8_e4m3", "e3m2_nosub", "e5m0", "e4m7"])
def test_16_bit_patterns(name: str, dtype: torch.dtype, isas: Isas) -> None:
    """All 65536 patterns are rounded into the same type and into float32."""
    fmt, x = parse_format(name), elements.patterns(dtype)
    for quantizer in elements.quantizers(fmt):
        want = elements.expected(x.float().numpy(), quantizer)
        for isa in isas:
            assert_bit_equal(elements.cpu_quantized(x, quantizer), want, f"{isa} {quantizer}")
            if fmt.fits_in(5, 10) or dtype == torch.bfloat16:
                got = elements.cpu_quantized(x, quantizer, torch.empty_like(x)).view(torch.int16)
                assert_bit_equal(got, elements.narrowed(want, dtype), f"{isa} {quantizer}")


CHOSEN = [
    as_quantizer(text)
    for text in ("e5m2", "e4m3:stochastic:bits=6", "e6m9:stochastic:bits=13", "bf16:stochastic",
                 "e3m2_nosub:to_odd", "fixed8_f4:stochastic:bits=9")
]  # fmt: skip
#: Bytes from which results go past the caches: all, none.
STREAM_BYTES = (0, 1 << 62)


@pytest.mark.parametrize("quantizer", CHOSEN, ids=str)
def test_lengths_and_alignments(quantizer: Quantizer, isas: Isas, monkeypatch: pytest.MonkeyPatch):
    """0 to 70 elements go from any start to any start, and nothing beside them is written."""
    x = torch.from_numpy(np.random.default_rng(3).normal(0, 3, 100).astype(np.float32))
    for start, stream_bytes in product((0, 1, 3, 4, 8), STREAM_BYTES):
        monkeypatch.setattr(cpu.BACKEND, "stream_bytes", stream_bytes)
        values = elements.expected(x[start : start + 70].numpy(), quantizer)
        for isa in isas:
            for count in range(71):
                part = slice(start // 2, start // 2 + count)
                out, want = torch.full((100,), 77.0), np.full(100, 77.0, np.float32)
                want[part] = values[:count]
                elements.cpu_quantized(x[start : start + count], quantizer, out[part])
                assert_bit_equal(out, want, f"{isa} {count} from {start}")


@pytest.mark.parametrize("quantizer", CHOSEN, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_tensors(quantizer, dtype, isas, threads, monkeypatch):
    """There are several pieces (65536 elements in quantize.cpp), with both kinds of stores."""
    generator = np.random.default_rng(4)
    x = torch.from_numpy(generator.normal(0, 3, 3 * 65536 + 77).astype(np.float32)).to(dtype)
    want = elements.expected(x.float().numpy(), quantizer)
    for stream_bytes in STREAM_BYTES:
        monkeypatch.setattr(cpu.BACKEND, "stream_bytes", stream_bytes)
        for isa in isas:
            assert_quantized(threads, x, quantizer, want, f"{isa} {stream_bytes}")


def by_reference(x: Tensor, quantizer: Quantizer) -> Tensor:
    want = torch.empty(x.shape)
    by_hand.quantize(
        REFERENCE, x, quantizer.to_ints(), torch.tensor(elements.SEED), 0, elements.SITE, want
    )
    return want


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("element", ["e7m0_b-1", "e2m1", "e4m3"])
def test_blocks_of_float64_beyond_float32(element: str, axis: int, isas: Isas) -> None:
    """A block's scale follows from its largest value, even if float32 does not hold that value."""
    rows = [[2.0**1000, 1.0, 2.0**100, -(2.0**60)], [2.0**230, 2.0**127, 2.0**-1000, -0.0]]
    x = torch.tensor(rows, dtype=torch.float64)
    quantizer = Quantizer(BlockFormat(element, 4, axis=axis))
    assert_quantized(isas, x, quantizer, by_reference(x, quantizer))


@pytest.mark.parametrize("fmt", elements.TENSOR_FORMATS, ids=str)
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_large_affine_and_block(fmt: AffineFormat | BlockFormat, rounding: str, threads: Threads):
    """Threads take pieces of the work; a single slice may be several pieces."""
    quantizer = Quantizer(fmt, rounding)
    x = elements.tensor_values((3, 150, 401), "special")
    assert_quantized(threads, x, quantizer, by_reference(x, quantizer))


BLOCK = 1 << 24
NAN = 0x7FC00000


def canonical(y: np.ndarray) -> np.ndarray:
    """The bits of float32 values; every NaN has 0x7fc00000."""
    bits = y.view(np.uint32).copy()
    bits[np.isnan(y)] = NAN
    return bits


def by_round_array(x: np.ndarray) -> np.ndarray:
    y = round_array(x.astype(np.float64), parse_format("e5m2_sat"), "nearest_even")
    return y.astype(np.float32)


CASTS: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = [
    ("e4m3fn", lambda x: x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)),
    ("bf16", lambda x: torch.from_numpy(x).bfloat16().float().numpy()),
    ("e5m2_sat", by_round_array),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cast"), CASTS)
def test_every_float32(name: str, cast: Callable[[np.ndarray], np.ndarray]) -> None:
    """All 2^32 patterns are rounded, 2^24 at a time. The positive ones are compared with the
    oracle; the negative ones, also of the independent casts, are their mirror image."""
    quantizer = Quantizer(name)
    for start in range(0, 2**31, BLOCK):
        x = np.arange(start, start + BLOCK, dtype=np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            want = canonical(cast(x))
            mirrored = np.where(want == NAN, want, want | np.uint32(0x80000000))
            if cast is not by_round_array:
                assert np.array_equal(canonical(cast(-x)), mirrored), hex(start + 2**31)
        for argument, bits in ((x, want), (-x, mirrored)):
            got = elements.cpu_quantized(torch.from_numpy(argument), quantizer)
            assert np.array_equal(got.numpy().view(np.uint32), bits), hex(start)


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic", "stochastic of 8 bits"])
def test_more_than_2_31_elements(rounding: str) -> None:
    """The bfloat16 tensors are 8 GiB in and out. Both ends and the part around 2^31 are checked,
    and the zeros between stay zeros."""
    mode, bits = rounding.split()[0], 8 if "8" in rounding else None
    quantizer = Quantizer("e4m3", mode, random_bits=bits)
    count, window = 2**31 + 2**20, 1 << 16
    starts = (0, 2**31 - window // 2, count - window)
    x = torch.zeros(count, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(6)
    for start in starts:
        x[start : start + window] = torch.randn(window, generator=generator)
    out = torch.ones(count, dtype=torch.bfloat16)
    elements.cpu_quantized(x, quantizer, out)
    nonzeros = 0
    for start in starts:
        part = slice(start, start + window)
        want = elements.expected(x[part].float().numpy(), quantizer, first=start)
        assert_bit_equal(out[part].float(), want, f"from {start}")
        nonzeros += int(np.count_nonzero(want))
    assert sum(int(part.count_nonzero()) for part in out.split(1 << 24)) == nonzeros

"""Elementwise kernels on the CPU: lengths, threads, stores past the caches. test_shared.py has
formats, modes and values. The slow tests go through every float32 pattern, beside independent
casts, and tensors of more than 2^31 elements."""

from collections.abc import Callable, Iterable
from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.arithmetic.hadamard import signs_of
from lpkernels.backends import cpu
from lpkernels.formats import AffineFormat, BlockFormat, parse_format
from lpkernels.rounding import round_array
from tests.backends import by_hand
from tests.backends.cpu_products import REFERENCE
from tests.backends.shared_elements import assert_scaled
from tests.compare import assert_bit_equal
from tests.support import elements
from tests.support.processor import Isas, Threads


def assert_quantized(
    ways: Iterable[str], x: Tensor, quantizer: Quantizer, want: object, name: object = ""
) -> None:
    for way in ways:
        assert_bit_equal(elements.cpu_quantized(x, quantizer), want, f"{way} {quantizer} {name}")


CHOSEN = [
    as_quantizer(text)
    for text in ("e5m2", "e4m3:stochastic:bits=6", "e6m9:stochastic:bits=13", "bf16:stochastic",
                 "e3m2_nosub:to_odd", "fixed8_f4:stochastic:bits=9", "posit8es1")
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


@pytest.mark.parametrize("fmt", elements.TENSOR_FORMATS, ids=str)
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_large_affine_and_block(fmt: AffineFormat | BlockFormat, rounding: str, threads: Threads):
    """Threads take pieces of the work; a single slice may be several pieces."""
    quantizer = Quantizer(fmt, rounding)
    x = elements.tensor_values((3, 150, 401), "special")
    assert_quantized(threads, x, quantizer, by_reference(x, quantizer))


@pytest.mark.parametrize(
    "name", ["mxfp4", "nvfp4", "nvfp4_2d_te", "fp8_128x128", "fp8_tensor", "row_axis0_e4m3"]
)
def test_large_scaled_tensors(name: str, threads: Threads) -> None:
    """Threads take pieces of tiles, or of one long tile; strided tensors are copied."""
    x = elements.tensor_values((600, 464), "special")[::2, 3:].transpose(0, 1)
    assert x.numel() > 2 * 65536
    assert_scaled(cpu.BACKEND, x, Quantizer(name, "stochastic"), "cpu", threads, name="strided")


@pytest.mark.parametrize(
    "name", ["e3m2", "mxfp8", "mxfp6_e3m2", "block5_e2m1", "block9_axis0_e2m3"]
)
def test_large_codes(name: str, threads: Threads) -> None:
    """Pieces of several threads meet within a byte, and the first refusal is reported."""
    fmt, shape = parse_format(name), (300, 461)
    x = elements.quantized(elements.tensor_values(shape, "normal"), Quantizer(fmt))
    for _ in threads:
        elements.assert_codes_or_refused(cpu.BACKEND, x, fmt)
    x.view(-1)[[70001, 120000]] = 1e-30
    for _ in threads:
        with pytest.raises(ValueError, match="element 70001"):
            cpu.BACKEND.pack(x, fmt.to_ints())


@pytest.mark.parametrize("size", [16, 128])
def test_large_hadamard_transforms(size: int, threads: Threads) -> None:
    """Results go past the caches; a piece of them has an infinity, and is made once more."""
    x, signs = torch.randn(1040, 2048), signs_of(size, 9)
    x[5, 77] = torch.inf
    parts = [cpu.BACKEND.hadamard(part, size, signs, 1) for part in x.split(80)]
    assert_bit_equal(parts[0][:8], REFERENCE.hadamard(x[:8], size, signs, 1))
    for count in threads:
        got = cpu.BACKEND.hadamard(x, size, signs, 1)
        assert_bit_equal(got, torch.cat(parts), count)


def test_a_table_that_the_process_has_not_made_is_refused() -> None:
    kind, _, *rest = parse_format("posit8es1").to_ints()
    with pytest.raises(ValueError, match=r"handle 12345: make the format first"):
        cpu.BACKEND.pack(torch.zeros(3), (kind, 12345, *rest))


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

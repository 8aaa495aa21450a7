"""Block formats on every instruction set against the reference: values, codes and scales, counts,
and packing."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from lpkernels import Scaled, pack
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import cpu
from lpkernels.formats import BlockFormat, FloatFormat, parse_format
from lpkernels.formats.grids import misfit
from lpkernels.formats.integers import block_by_block
from lpkernels.ops import packed_bytes
from tests.backends import by_hand
from tests.backends.cpu_products import REFERENCE, assert_same
from tests.backends.scaled_cases import BLOCK_FORMATS
from tests.cases import DETERMINISTIC, formats_named
from tests.compare import assert_bit_equal
from tests.support import elements
from tests.support.processor import Isas, Threads, flushed
from tests.support.strategies import LAYOUTS, ScaledCall, scaled_calls

SEED = torch.tensor(elements.SEED)
EVERY = pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=str)
SHAPES = [(7, 33), (3, 70, 5), (5, 64), (1, 3001), (40, 132)]
KINDS = ("normal", "wide", "special", "tiny", "huge", "ties", "patterns")
DTYPES = [torch.float32, torch.float64, torch.float32, torch.bfloat16, torch.float16]
AMAX = (None, 3.7, 1e-45, 1e300, float("nan"), -1.0)


def values(shape: tuple[int, ...], kind: str) -> Tensor:
    """The kinds of `elements.tensor_values` and more: near float32's ends, ties, any bits."""
    x = elements.tensor_values(shape, kind if kind in elements.KINDS else "normal")
    if kind == "huge":
        return x * 1e38
    if kind == "ties":
        return (x * 4).round() / 4
    if kind == "patterns":
        bits = np.random.default_rng(9).integers(0, 2**32, x.numel(), dtype=np.uint32)
        return torch.from_numpy(bits.view(np.float32)).view(shape)
    return x


@pytest.mark.parametrize("name", elements.UNDERFLOWING)
def test_scales_that_underflow(name: str, isas: Isas) -> None:
    for largest in elements.SMALL:
        x = elements.small_tensor(largest)
        for quantizer in (Quantizer(name), Quantizer(name, "stochastic")):
            assert_quantized(isas, x, quantizer, None, f"{largest}")


def starting(cases: Sequence[Any], ints: tuple[int, ...]) -> Iterator[Any]:
    """The cases for ever, from one on that differs between formats."""
    first = sum(ints) % len(cases)
    return cycle([*cases[first:], *cases[:first]])


def quantizers(fmt: BlockFormat) -> Iterator[Quantizer]:
    yield Quantizer(fmt)
    for bits, rng in ((None, "fast"), (8, "fast"), (12, "philox")):
        yield Quantizer(fmt, "stochastic", random_bits=bits, rng=rng)
    if fmt.steps == "exact":
        yield from (Quantizer(fmt, mode) for mode in DETERMINISTIC[1:])


def assert_parts(got: Iterable[Tensor], want: Iterable[Tensor], name: str) -> None:
    for part, a, b in zip(("codes", "scales", "tensor's scale"), got, want, strict=True):
        assert_bit_equal(a, b, f"{name}: {part}")


def assert_quantized(
    ways: Iterable[str], x: Tensor, quantizer: Quantizer, amax: Tensor | None, name: str
) -> None:
    """Values with and without counts, and the parts, are the reference's."""
    ints = quantizer.to_ints()
    call = (x, ints, SEED, 0, elements.SITE)
    want, want_counts = torch.empty(x.shape), torch.zeros(260, dtype=torch.int64)
    by_hand.quantize(REFERENCE, *call, want, want_counts, amax)
    want_parts = by_hand.scaled(REFERENCE, *call, amax)
    for way in ways:
        label = f"{way} {quantizer} {name} amax {amax}"
        got, counts = torch.empty(x.shape), torch.zeros_like(want_counts)
        by_hand.quantize(cpu.BACKEND, *call, got, None, amax)
        assert_bit_equal(got, want, label)
        by_hand.quantize(cpu.BACKEND, *call, got, counts, amax)
        assert_bit_equal(got, want, f"{label} counting")
        assert_bit_equal(counts, want_counts, f"{label}: counts")
        parts = by_hand.scaled(cpu.BACKEND, *call, amax)
        assert_parts(parts, want_parts, label)
        values = by_hand.dequantize(cpu.BACKEND, *want_parts, quantizer.fmt.to_ints())
        assert_bit_equal(values, want, f"{label}: dequantized")


@EVERY
def test_blocks_match_reference(fmt: BlockFormat, isas: Isas) -> None:
    """The cases go round kinds of values, shapes, types and amax."""
    ints = fmt.to_ints()
    shapes = cycle([shape for shape in SHAPES if misfit(ints, len(shape)) is None])
    kinds, dtypes, amaxes = starting(KINDS, ints), starting(DTYPES, ints), cycle(AMAX)
    takes_amax = fmt.tensor_scale or fmt.block_size == "tensor"
    for quantizer in quantizers(fmt):
        kind, given = next(kinds), next(amaxes) if takes_amax else None
        x = values(next(shapes), kind).to(next(dtypes))
        amax = None if given is None else torch.tensor([given], dtype=torch.float64)
        assert_quantized(isas, x, quantizer, amax, f"{tuple(x.shape)} {kind} {x.dtype}")


@pytest.mark.parametrize(
    "name", ["mxfp4", "nvfp4", "nvfp4_2d_te", "fp8_128x128", "fp8_tensor", "row_axis0_e4m3"]
)
def test_threads_and_strides(name: str, threads: Threads) -> None:
    """Threads take pieces of tiles, or of one long tile; strided tensors are copied."""
    fmt = parse_format(name)
    x = values((600, 464), "special")[::2, 3:].transpose(0, 1)
    assert x.numel() > 2 * 65536
    assert_quantized(threads, x, Quantizer(fmt, "stochastic"), None, "strided")


def flushing(ways: Iterable[str]) -> Iterator[str]:
    """The ways, each while the processor flushes denormals."""
    for way in ways:
        with flushed():
            yield f"{way} flushing denormals"


def assert_call(isas: Isas, call: ScaledCall) -> None:
    """Parts, values and counts of a drawn call, and values of the packed codes."""
    x, quantizer = LAYOUTS[call.layout](call.x), call.quantizer
    name = f"{tuple(x.shape)} {x.dtype} {call.layout}"
    ways = flushing(isas) if call.flushed else isas
    amax = None if call.amax is None else torch.tensor([call.amax], dtype=torch.float64)
    with np.errstate(all="ignore"):
        assert_quantized(ways, x, quantizer, amax, name)
    ints, way = quantizer.fmt.to_ints(), (quantizer.to_ints(), SEED, 0, elements.SITE)
    q = Scaled(*by_hand.scaled(REFERENCE, x.contiguous(), *way, amax), quantizer.fmt)
    if any(part.isnan().any() for part in (q.values, q.scale)):
        return  # Some formats have no code of NaN.
    stream = pack(q)
    assert_same(isas, "unpack", stream, ints, list(x.shape), name=f"{quantizer} {name}")


@pytest.mark.parametrize(
    "count, longest", [(100, 70), pytest.param(3000, 300, marks=pytest.mark.slow)]
)
def test_any_call(count: int, longest: int, isas: Isas) -> None:
    @settings(max_examples=count)
    @given(call=scaled_calls(longest=longest))
    def check(call: ScaledCall) -> None:
        assert_call(isas, call)

    check()


PACKED = formats_named("""
    mxfp8_up mxfp4 mxfp6_e2m3 mxint8 block5_e2m1 block7_axis0_e3m2 block32_axis0_e4m3 block1500_e5m2
    block9_axis1_e2m3
""")
PACKED.append(BlockFormat(FloatFormat(2, 2, specials="none"), 6))


@pytest.mark.parametrize("fmt", PACKED, ids=str)
@pytest.mark.parametrize("shape", [(7, 33), (64, 96), (3, 70, 5), (1, 4003)], ids=str)
def test_codes_with_scales_match_reference(
    fmt: BlockFormat, shape: tuple[int, ...], isas: Isas
) -> None:
    ints = fmt.to_ints()
    assert block_by_block(ints)
    x = values(shape, "special")
    codes, scale, one = by_hand.scaled(REFERENCE, x, Quantizer(fmt).to_ints(), None, 0, 4, None)
    stream = assert_same(isas, "pack_scaled", codes, scale, ints, name=fmt)
    back = assert_same(isas, "unpack", stream, ints, list(shape), name=fmt)
    assert_bit_equal(back, by_hand.dequantize(REFERENCE, codes, scale, one, ints), str(fmt))
    if fmt.rule == "floor":
        assert_same(isas, "pack", back, ints, name=fmt)


@pytest.mark.parametrize("fmt", [*BLOCK_FORMATS, *PACKED], ids=str)
def test_any_bytes_are_the_values_of_the_reference(fmt: BlockFormat, isas: Isas) -> None:
    """Streams of t, scales and elements, NaN and infinities among them, and streams of blocks."""
    ints, rng = fmt.to_ints(), np.random.default_rng(11)
    for shape in ((7, 33), (2, 64, 96), (1, 4003)):
        if misfit(ints, len(shape)) is None:
            stream = torch.from_numpy(rng.integers(0, 256, packed_bytes(ints, shape), np.uint8))
            assert_same(isas, "unpack", stream, ints, list(shape), name=f"{fmt} {shape}")


@pytest.mark.parametrize("name", ["mxfp8", "mxfp6_e3m2", "block5_e2m1", "block9_axis0_e2m3"])
def test_large_packs(name: str, threads: Threads) -> None:
    """Pieces of several threads meet within a byte, and the first refusal is reported."""
    fmt = parse_format(name)
    ints, shape = fmt.to_ints(), (300, 461)
    x = torch.empty(shape)
    by_hand.quantize(REFERENCE, values(shape, "normal"), Quantizer(fmt).to_ints(), None, 0, 4, x)
    stream = assert_same(threads, "pack", x, ints)
    assert_bit_equal(assert_same(threads, "unpack", stream, ints, list(shape)), x)
    x.view(-1)[[70001, 120000]] = 1e-30
    for _ in threads:
        with pytest.raises(ValueError, match="element 70001"):
            cpu.BACKEND.pack(x, ints)


@pytest.mark.parametrize("name", ["mxfp8", "mxint8", "block7_axis0_e3m2"])
def test_refuses_what_the_reference_refuses(name: str, isas: Isas) -> None:
    """Values beside codes, values that become codes when a scale multiplies them, and blocks
    with NaN among numbers are refused."""
    fmt = parse_format(name)
    ints, good = fmt.to_ints(), torch.empty(14, 64)
    by_hand.quantize(
        REFERENCE, values((14, 64), "normal"), Quantizer(fmt).to_ints(), None, 0, 4, good
    )
    good *= 2.0**100
    for value in (2.0**100 * (1 + 2**-20), float("nan"), float("-inf"), 1e-45, 2.0**60):
        x = good.clone()
        x[9, 11] = value
        for _ in isas:
            with pytest.raises(ValueError, match=r"element 587 \(in row-major order\)"):
                cpu.BACKEND.pack(x, ints)
        with pytest.raises(ValueError, match=r"\(9, 11\)"):
            REFERENCE.pack(x, ints)

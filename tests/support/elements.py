"""Elementwise work of a backend against the reference, to the bit: formats, quantizers and values
for rounding, counting and codes, and runs whose Hadamard transforms are hard to round."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpkernels import rng
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import BINS, COUNTS, cpu
from lpkernels.backends import get as backend_of
from lpkernels.formats import AffineFormat, BlockFormat, FixedFormat, FloatFormat, TableFormat
from lpkernels.rounding import round_array
from tests.backends import by_hand
from tests.cases import DETERMINISTIC, formats_named, hard_values
from tests.compare import assert_bit_equal
from tests.support.processor import flushed

SEED = 0x1234567812345678
SITE = rng.SITE_QUANTIZE
Format = FloatFormat | FixedFormat | TableFormat

#: Formats at the ends of float32: their normals lie below its own, or there is no room above.
END_FORMATS = formats_named("""
    e1m3none_b128 e2m3_b128 e4m3_b128_sat e4m3_b128_nosub e4m3_b129 e3m0_b128 e3m0_b127_nosub
    e4m5_b127_nosub e3m22_b127 e3m3_b-121 e3m0_b-121 e3m0_b-121_nosub_nan
""")
#: Few exponent bits and many, so that codes take every width from 2 to 32 bits.
WIDTHS = [
    *(FloatFormat(1, bits - 2, specials="none", bias=0) for bits in range(2, 8)),
    *(FloatFormat(2, bits - 3, specials="none") for bits in range(8, 25)),
    *(FloatFormat(8, bits - 9) for bits in range(10, 33)),
]
TENSOR_FORMATS = formats_named("""
    affine8 affine3_sym affine8_axis0 affine5_axis1 affine8_sym_axis-1 block32_e4m3
    block5_axis0_e2m1 block7_axis1_e2m3 block1500_e5m2
""")
#: Kinds of tensors; see tensor_values().
KINDS = ("normal", "wide", "special", "tiny", "nothing finite")
SHAPES = [(1, 1, 1), (2, 3, 33), (3, 70, 5), (5, 2, 130), (2, 40, 1), (1, 1, 3001)]
#: Largest magnitudes beside which scales of tensors and blocks underflow, or reciprocals overflow,
#: and a few that are a little too large for that.
SMALL = (
    0.0, 2.0**-149, 3 * 2.0**-149, 4 * 2.0**-149, 1344 * 2.0**-149, 1345 * 2.0**-149, 2.0**-126,
    1e-36, 7.8e-36, 8e-36, 5e-34, 5.1e-34, 1e-30,
)  # fmt: skip
UNDERFLOWING = "nvfp4 nvfp4_torchao nvfp4_te nvfp4_2d nvfp4_one fp8_tensor int4_g32 mxfp4".split()


def small_tensor(largest: float) -> Tensor:
    """Blocks of this magnitude, of a ninth and of a thousandth of it, and of zeros alone."""
    row = torch.tensor([1.0, -1.0 / 9, 0.0, -0.0, -0.75] + [0.0] * 11)
    parts = [largest, largest / 9, largest / 1000, 0.0]
    return torch.stack([row.double() * part for part in parts]).float()


def quantizers(fmt: Format) -> Iterator[Quantizer]:
    """Every mode, with few and many random bits of either generator."""
    for rounding in DETERMINISTIC:
        yield Quantizer(fmt, rounding)
    for bits in (1, 5, 8, 9, 16, 17, 23, 24, 31, 32):
        yield Quantizer(fmt, "stochastic", random_bits=bits)
    for bits in (7, 12, None):
        yield Quantizer(fmt, "stochastic", random_bits=bits, rng="philox")


def cpu_quantized(x: Tensor, quantizer: Quantizer, out: Tensor | None = None) -> Tensor:
    """x on the cpu backend, written into ``out`` or a float32 tensor."""
    out = torch.empty_like(x, dtype=torch.float32) if out is None else out
    by_hand.quantize(cpu.BACKEND, x, quantizer.to_ints(), torch.tensor(SEED), 0, SITE, out)
    return out


def expected(x: np.ndarray, quantizer: Quantizer, first: int = 0) -> np.ndarray:
    """The float32 result of `round_array`; the elements of x have the row-major positions from
    ``first`` on."""
    bits = quantizer.random_bits or 32
    draws = None
    if quantizer.rounding == "stochastic":
        index = np.arange(first, first + x.size)
        draws = rng.draws(SEED, SITE, 0, 0, index, bits, quantizer.rng)
    with np.errstate(invalid="ignore", over="ignore"):
        widened = x.astype(np.float64)
        y = round_array(widened, quantizer.fmt, quantizer.rounding, draws=draws, random_bits=bits)
        narrow = y.astype(np.float32)
    narrow.view(np.uint32)[np.isnan(narrow)] = 0x7FC00000
    return narrow


def float32_values(fmt: Format, count: int = 60) -> np.ndarray:
    """float32 values where rounding to fmt goes wrong first, shuffled, and random patterns."""
    generator = np.random.default_rng(7)
    with np.errstate(over="ignore", invalid="ignore"):
        hard = hard_values(fmt, count).astype(np.float32)
        near = [np.nextafter(hard, np.float32(end)) for end in (-np.inf, np.inf)]
    patterns = generator.integers(0, 2**32, 10 * count, dtype=np.uint32).view(np.float32)
    x = np.concatenate([hard, *near, patterns])
    return generator.permutation(x)


def codable(fmt: Format, count: int) -> Tensor:
    """Values that have codes in fmt: hard values rounded to it, if they have a code."""
    x = torch.from_numpy(expected(float32_values(fmt), Quantizer(fmt, "toward_zero")))
    every = isinstance(fmt, FloatFormat) and fmt.specials == "ieee" and fmt.man_bits > 0
    x = x if every else x[x.isfinite()]
    return x.repeat(-(-count // x.numel()))[:count]


def tensor_values(shape: tuple[int, ...], kind: str) -> Tensor:
    """Values over many binades, with inf and NaN, all equal, tiny, or none of them finite."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(shape, generator=generator)
    if kind == "wide":
        x *= torch.exp2(torch.randint(-30, 30, shape, generator=generator).float())
    elif kind == "special":
        choice = torch.rand(shape, generator=generator)
        x[choice < 0.1] = -0.0
        x[choice < 0.04] = float("inf")
        x[choice < 0.02] = float("nan")
    elif kind == "tiny":
        x *= 1e-42
    elif kind == "nothing finite":
        x[:] = float("nan")
        x[0] = float("-inf")
    return x


REFERENCE: Any = backend_of("reference")
WAYS = ((COUNTS + BINS, True), (COUNTS, False))


def quantized(
    x: Tensor, quantizer: Quantizer, backend: Any = REFERENCE, device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    out = torch.empty(x.shape, dtype=dtype, device=device)
    call = (quantizer.to_ints(), torch.tensor(SEED), 0, SITE, out)
    by_hand.quantize(backend, x.to(device), *call)
    return out


def assert_quantized(
    backend: Any, x: Tensor, quantizer: Quantizer, device: str = "cpu", name: str = "",
    *, on: Iterable[str] = ("",),
) -> None:  # fmt: skip
    """Values are the reference's. on: a loop over instruction sets, or over threads."""
    want = quantized(x, quantizer)
    for where in on:
        got = quantized(x, quantizer, backend, device)
        assert_bit_equal(got, want, f"{where} {name} {quantizer} {tuple(x.shape)} {x.dtype}")


def assert_counted(
    backend: Any, x: Tensor, quantizer: Quantizer, device: str = "cpu",
    limits: Tensor | None = None, name: str = "", ways: Iterable[tuple[int, bool]] = WAYS,
    *, on: Iterable[str] = ("",),
) -> None:  # fmt: skip
    """Values and counts are the reference's. ways: how many counts there are, with a histogram or
    without, and whether values are written. on: a loop over instruction sets, or over threads."""
    name = f"{name} {quantizer} {quantizer.random_bits} {tuple(x.shape)} {x.dtype}"
    call = (quantizer.to_ints(), torch.tensor(SEED), 0, SITE)
    want, want_counts = torch.empty(x.shape), torch.zeros(COUNTS + BINS, dtype=torch.int64)
    by_hand.quantize(REFERENCE, x, *call, want, want_counts, limits)
    x, limits = x.to(device), None if limits is None else limits.to(device)
    for where, (length, written) in ((where, way) for where in on for way in ways):
        out = torch.empty(x.shape, device=device) if written else None
        counts = torch.full((length,), 5, dtype=torch.int64, device=device)
        by_hand.quantize(backend, x, *call, out, counts, limits)
        assert (counts - 5).tolist() == want_counts[:length].tolist(), f"{where} {name}"
        if out is not None:
            assert_bit_equal(out, want, f"{where} {name}")


def ranges(x: Tensor, fmt: AffineFormat) -> Tensor:
    """Limits for every slice of x; the limits of the second slice are NaN."""
    slices = 1 if fmt.axis is None else x.shape[fmt.axis]
    limits = torch.sort(torch.randn(2, slices, dtype=torch.float64), dim=0)[0]
    limits[:, 1:2] = float("nan")
    return limits.contiguous()


def assert_codes_or_refused(
    backend: Any, x: Tensor, fmt: Format | BlockFormat, device: str = "cpu"
) -> None:
    """Codes of x and their values are the reference's; or the first value that has no code is
    refused by its place."""
    ints = fmt.to_ints()
    try:
        want = REFERENCE.pack(x, ints)
    except ValueError as error:
        (indices,) = re.findall(r"index (\(.*?\))", str(error))
        index = np.ravel_multi_index([int(i) for i in re.findall(r"\d+", indices)], x.shape)
        with pytest.raises(ValueError, match=rf"element {index} \(in row-major order\) is "):
            backend.pack(x.to(device), ints)
        return
    codes = backend.pack(x.to(device), ints)
    assert_bit_equal(codes, want, f"codes of {fmt}")
    values = backend.unpack(codes, ints, list(x.shape))
    assert_bit_equal(values, REFERENCE.unpack(want, ints, tuple(x.shape)), f"values of {fmt}")


def flushing(ways: Iterable[str]) -> Iterator[str]:
    """The ways, each while the processor flushes denormals."""
    for way in ways:
        with flushed():
            yield f"{way} flushing denormals"


Runs = NDArray[np.float32]


def floats(rng: np.random.Generator, shape: tuple[int, int], fields: tuple[int, int]) -> Runs:
    """Random signs and fractions, and exponent fields in a range."""
    field = rng.integers(*fields, shape).astype(np.uint32)
    sign, fraction = (rng.integers(0, n, shape).astype(np.uint32) for n in (2, 2**23))
    return (sign << np.uint32(31) | field << np.uint32(23) | fraction).view(np.float32)


def hard_runs(size: int, signs: Sequence[int]) -> Iterator[tuple[str, Runs]]:
    """Named arrays (runs, size)."""
    rng = np.random.default_rng(size)
    shape = (3, size)
    normal = rng.standard_normal(shape).astype(np.float32)
    yield "normal", normal
    yield "bfloat16", (normal.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    yield "integers", rng.integers(-9, 10, shape).astype(np.float32)
    yield "halves", (rng.integers(-1, 2, shape) * np.float32(2.0**-134)).astype(np.float32)
    for name, fields in {
        "every exponent": (0, 255), "some exponents": (100, 140), "subnormal": (0, 2),
        "near subnormal": (0, 20), "huge": (250, 255),
    }.items():  # fmt: skip
        yield name, floats(rng, shape, fields)
    powers = floats(rng, shape, (0, 255)).view(np.uint32) & np.uint32(0xFF800000)
    yield "powers of two", powers.view(np.float32)
    yield "cancelling", _cancelling(rng, size)
    yield "special", _special(normal)
    yield "middles", np.stack(list(_middles(size, signs)))


def _cancelling(rng: np.random.Generator, size: int) -> Runs:
    x = np.zeros((4, size), np.float32)
    x[:, 0] = rng.standard_normal(4)
    x[:, 5] = -x[:, 0]
    x[0, 7], x[1, 9], x[2, 3], x[2, 4] = 2.0**-140, -(2.0**-149), 2.0**-110, 2.0**-133
    return x


def _special(normal: Runs) -> Runs:
    x = np.concatenate((normal, normal))
    x[0, 3], x[1, 2], x[2, 1], x[2, 5] = np.inf, np.nan, np.inf, -np.inf
    x[3], x[4], x[5] = 0.0, -0.0, np.copysign(np.inf, normal[2])
    return x


def _middles(size: int, signs: Sequence[int]) -> Iterator[Runs]:
    """Runs whose first sum, in units of 2^-149, is beside or at the middle between two results."""
    steps = size.bit_length() - 1
    for odd in (257, 363, 511):
        for power in (31, 64, 150, 230):
            # The middle's square, times the size.
            square = odd**2 << 2 * power + steps % 2
            for total in (math.isqrt(square) + i for i in (-1, 0, 1)):
                x = np.zeros(size, np.float32)
                for i in range(-(-total.bit_length() // 24)):
                    part = total >> 24 * i & (2**24 - 1)
                    x[i] = math.ldexp(signs[i] * part, 24 * i - 149)
                yield x


def patterns(dtype: torch.dtype) -> Tensor:
    """All 65536 values of a 16-bit type."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def narrowed(x: np.ndarray, dtype: torch.dtype) -> Tensor:
    """The bits of values in a 16-bit type that holds them; every NaN has the same."""
    y = torch.from_numpy(x)
    canonical = {torch.float16: 0x7E00, torch.bfloat16: 0x7FC0}[dtype]
    return torch.where(y.isnan(), canonical, y.to(dtype).view(torch.int16)).to(torch.int16)

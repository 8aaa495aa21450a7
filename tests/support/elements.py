"""Elementwise kernels: the formats, quantizers and values on which every backend is tested."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from lpkernels import rng
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import cpu
from lpkernels.formats import FixedFormat, FloatFormat, TableFormat
from lpkernels.rounding import round_array
from tests.cases import DETERMINISTIC, formats_named, hard_values

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


def quantized(x: Tensor, quantizer: Quantizer, out: Tensor | None = None) -> Tensor:
    """x on the cpu backend, written into ``out`` or a float32 tensor."""
    out = torch.empty_like(x, dtype=torch.float32) if out is None else out
    cpu.BACKEND.quantize(x, quantizer.to_ints(), torch.tensor(SEED), 0, SITE, out)
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

"""Block formats, and products of codes by scale, at random: segments, scales and elements of every
kind."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpkernels.arithmetic import as_accumulator
from lpkernels.backends import How, Scales, matmul_of
from lpkernels.formats import BlockFormat
from tests.backends.cpu_products import ROLE, SEED
from tests.cases import formats_named

ACCUMULATORS = (
    "fp32_chunkscale",
    "fp32_chunkscale:scale_order=left",
    "fp32_chunkscale:scale_order=right",
    "e6m9_chunkscale:outer=fp32",
    "fp32_chunkscale:outer=e6m9:outer_rounding=stochastic",
    "fp32_chunkscale:outer=e5m10:outer_rounding=toward_negative",
    "e8m13_chunkscale:toward_zero:outer=fp32:outer_rounding=nearest_even:block=32:aligned_bits=13"
    ":operands=e4m3fn",
    "fp32_chunkscale:order=pairwise",
    "e6m12_chunkscale:order=compensated",
    "e5m9_chunkscale:toward_zero:block=3:aligned_bits=9",
    "fp32_chunkscale:product=e5m3",
    "e6m9_chunkscale:stochastic",
    "e5m4_chunkscale:stochastic:bits=20:philox:product=e5m3:product_rounding=stochastic",
    "e6m5_chunkscale:stochastic:order=pairwise",
    "e6m5_chunkscale:stochastic:block=4:aligned_bits=9",
)
#: Every element, geometry, scale, rule, target and program.
BLOCK_FORMATS = formats_named("""
    mxfp8 mxfp8_up mxfp8_ceil mxfp4_even mxfp6_e2m3_up mxint8_even nvfp4 nvfp4_2d nvfp4_one
    fp8_tensor row_e5m2 fp8_1x128 fp8_128x128 row_axis0_int8 int8_tensor int4_g32 block5_axis0_e2m1
    block1500_e5m2 tile3x5_e3m2 block9_axis1_e2m1_se4m3fn_t block16_e2m1_se4m3fn_t_to5.6470588
    block8_e4m3_sbf16_up block8_bf16_sfp32 tile4x4_e5m2_se5m3fn_up_t block32_e2m1_up_to4
    tile2x3000_e4m3 block32_int8_up_to127.5
    nvfp4_te nvfp4_2d_te nvfp4_torchao block16_e2m1_se4m3fn_torchao tensor_e4m3_te row_e5m2_te
    block32_e4m3_up_te tile128x128_e4m3_up_te row_e4m3_torchao block32_e2m1_even_torchao
    tile128x128_e4m3_up_torchao row_int8_torchao row_int8_to127.5_torchao
    block32_int4_sfp32_to7.5_torchao row_e4m3_deepgemm block32_e4m3_up_deepgemm
    block32_e2m1_sfp32_deepgemm
    tensor_e4m3fnuz block32_e5m2fnuz_sfp32 block32_p3109_k8p3se_up block64_nf4_sfp32
    tile2x64_nf4_sfp32
    nvfp4_46 nvfp4_46_mse_te nvfp4_46_2d_te nvfp4_row_te nvfp4_46_row nvfp4_46_row_mse_te
    block5_axis0_e2m1_se4m3fn_trow100_to4or6mae block1_e2m1_se8m7_trow_to4or6mse
    tile3x5_e2m1_se5m2_t_to4or6mse block16_axis0_e2m1_se4m3fn_trow_te
""")
BLOCK_FORMATS.append(BlockFormat("e4m3", "tensor", scale="e8m0"))
ELEMENTS = ("e2m1", "e2m3", "e3m2", "e4m3", "int4", "int8", "even", "special", "tiny")
SCALES = ("e4m3", "narrow", "powers", "fp32", "ones", "special")
SIZES = (0, 1, 3, 5, 16, 32, 37, 128, 300)
Case = tuple[Tensor, Tensor, Scales, Tensor | None]


def codes(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Values of one of `ELEMENTS`."""
    if kind == "special":
        x = rng.standard_normal(shape) * 2.0 ** rng.integers(-120, 120, shape)
        return np.where(rng.random(shape) < 0.01, np.inf, x).astype(np.float32)
    if kind == "tiny":
        return np.ldexp(rng.integers(-7, 8, shape), -80).astype(np.float32)
    if kind in ("int4", "int8", "even"):
        most = {"int4": 7, "int8": 127, "even": 60}[kind]
        return rng.integers(-most, most + 1, shape).astype(np.float32) * (1 + (kind == "even"))
    exponents, mantissa = int(kind[1]), int(kind[3])
    lowest = 2 - 2 ** (exponents - 1) - mantissa
    x = rng.integers(-(2 ** (mantissa + 1)) + 1, 2 ** (mantissa + 1), shape).astype(np.float64)
    x = x * 2.0 ** (lowest + rng.integers(0, 2**exponents - 1, shape))
    return np.where(x == 0, np.copysign(0.0, rng.standard_normal(shape)), x).astype(np.float32)


def scales(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Scales of one of `SCALES`."""
    if kind == "fp32":
        s = np.abs(rng.standard_normal(shape)) * 2.0 ** rng.integers(-60, 60, shape)
    elif kind == "special":
        s = rng.choice([0.0, 1.0, 2.0**-127, 2.0**127, 2.0**-149, np.nan, 3e38], shape)
    elif kind == "e4m3":
        s = rng.integers(0, 16, shape) * 2.0 ** rng.integers(-9, 5, shape)
    else:
        s = 2.0 ** rng.integers(
            *{"narrow": (-9, 9), "powers": (-127, 128), "ones": (0, 1)}[kind], shape
        )
    return s.astype(np.float32)


def case(seed: int, element: str, most: int = 301) -> Case:
    """Operands, their scales, and where the sums start; most: of the products of a sum."""
    rng = np.random.default_rng(seed)
    lead = ((), (), (2,), (2, 3))[seed % 4]
    rows, cols = (int(rng.choice([1, 3, 5, 13, 29])) for _ in range(2))
    length = min(most, int(rng.choice([1, 17, 64, 130, 301])))
    if seed % 3 == 0:
        cols += 32
    a = codes(rng, element, (*lead, rows, length))
    b = codes(rng, ELEMENTS[(seed + 1) % 7] if seed % 5 == 0 else element,
              (*lead[1:], length, cols))  # fmt: skip
    found, sizes, kind = [], [], SCALES[seed % len(SCALES)]
    for x, axis in ((a, -2), (b, -1)):
        size = SIZES[int(rng.integers(len(SIZES)))]
        segments = max(1, -(-length // size)) if size else 1
        s = scales(rng, kind, (*x.shape[:-2], x.shape[axis], segments))
        along = np.moveaxis(x, -1 if axis == -2 else -2, -1)
        for i in range(segments):
            # Blocks of zeros have the least scale.
            zero = rng.random(s.shape[:-1]) < 0.1
            s[..., i] = np.where(zero & (kind in ("narrow", "powers")), 2.0**-127, s[..., i])
            part = along[..., i * size : (i + 1) * size if size else None]
            part[...] = np.where(zero[..., None], 0, part)
        found.append(torch.from_numpy(s))
        sizes.append(size)
    given = Scales(found[0], found[1], sizes[0], sizes[1], kind in ("fp32", "special"))
    start = torch.randn(*lead, rows, cols) if seed % 2 else None
    left, right = torch.from_numpy(a), torch.from_numpy(b)
    if seed % 4 == 1:
        left, right = left.mT.contiguous().mT, right.mT.contiguous().mT
    return left, right, given, start


def on(of: Case, device: str) -> Case:
    """The case on a device."""
    left, right, given, start = of
    there = given._replace(left=given.left.to(device), right=given.right.to(device))
    return left.to(device), right.to(device), there, None if start is None else start.to(device)


def product(backend: Any, of: Case, text: str) -> Tensor:
    """The product of a case in an accumulator."""
    left, right, given, start = of
    how = How(as_accumulator(text).to_ints(), SEED, ROLE)
    return backend.multiply(matmul_of(left, right, initial=start), how, given)

"""Products of codes by scale on every instruction set: the reference's bits, whatever the segments,
the scales, the accumulator, the threads and the strides."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpkernels.arithmetic import as_accumulator
from lpkernels.backends import How, Scales, cpu, matmul_of
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.cpu_products import REFERENCE, ROLE, SEED
from tests.support.denormals import flushed
from tests.support.processor import Isas, Threads

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
)
ELEMENTS = ("e2m1", "e2m3", "e3m2", "e4m3", "int4", "int8", "even", "special", "tiny")
SCALES = ("e4m3", "narrow", "powers", "fp32", "ones", "special")
SIZES = (0, 1, 3, 5, 16, 32, 37, 128, 300)
Case = tuple[Tensor, Tensor, Scales, Tensor | None]


def codes(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
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


def case(seed: int, element: str) -> Case:
    rng = np.random.default_rng(seed)
    lead = ((), (), (2,), (2, 3))[seed % 4]
    rows, cols = (int(rng.choice([1, 3, 5, 13, 29])) for _ in range(2))
    length = int(rng.choice([1, 17, 64, 130, 301]))
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


def product(backend: Any, of: Case, text: str) -> Tensor:
    left, right, given, start = of
    how = How(as_accumulator(text).to_ints(), SEED, ROLE)
    return backend.multiply_scaled(matmul_of(left, right, initial=start), given, how)


def cases() -> Iterator[tuple[int, str]]:
    for seed in range(54):
        yield seed, ELEMENTS[seed // 6 % len(ELEMENTS)]


@each("seed,element", cases())
def test_mixtures_match_reference(seed: int, element: str, isas: Isas) -> None:
    of = case(seed, element)
    simple = ACCUMULATORS[seed % 3]
    for text in dict.fromkeys((simple, ACCUMULATORS[seed % len(ACCUMULATORS)])):
        with np.errstate(over="ignore", invalid="ignore"):
            want = product(REFERENCE, of, text)
        for isa in isas:
            assert_bit_equal(product(cpu.BACKEND, of, text), want, f"{isa} {text}")


def large(kind: str) -> Case:
    """Several blocks of k, of rows and of lanes, in which segments of 16 and of 24 cut each
    other."""
    rng = np.random.default_rng(4)
    a, b = codes(rng, kind, (400, 600)), codes(rng, kind, (600, 300))
    left, right = scales(rng, "e4m3", (400, 38)), scales(rng, "e4m3", (300, 25))
    parts = [torch.from_numpy(x) for x in (a, b, left, right)]
    return parts[0], parts[1], Scales(parts[2], parts[3], 16, 24, False), None


@each("kind", ["e2m1", "e4m3"])
def test_threads_strides_and_other_rows_do_not_show(kind: str, threads: Threads) -> None:
    of = large(kind)
    a, b, given, _ = of
    for text in (ACCUMULATORS[0], ACCUMULATORS[6], ACCUMULATORS[4]):
        want = product(cpu.BACKEND, of, text)
        some = given._replace(left=given.left[:7])
        assert_bit_equal(product(cpu.BACKEND, (a[:7], b, some, None), text), want[:7], text)
        few = given._replace(right=given.right[:5])
        assert_bit_equal(product(cpu.BACKEND, (a, b[:, :5], few, None), text), want[:, :5], text)
        strided = (a.T.contiguous().T, b.T.contiguous().T, given, None)
        for way in threads:
            assert_bit_equal(product(cpu.BACKEND, strided, text), want, f"{way} {text}")
        with flushed():
            assert_bit_equal(product(cpu.BACKEND, of, text), want, text)


def test_large_products(isas: Isas) -> None:
    """Blocks of rows share bytes of columns; sums longer than the places that hold these."""
    rng, of = np.random.default_rng(5), large("e2m1")
    part = of[2]._replace(left=of[2].left[:24], right=of[2].right[:40])
    want = product(REFERENCE, (of[0][:24], of[1][:, :40], part, None), ACCUMULATORS[0])
    a, b = (torch.from_numpy(codes(rng, "e2m1", size)) for size in ((400, 18000), (18000, 16)))
    left, right = (torch.from_numpy(scales(rng, "narrow", (n, 282))) for n in (400, 16))
    long = a, b, Scales(left, right, 64, 64, False), None
    first: list[Tensor] = []
    for isa in isas:
        got = [product(cpu.BACKEND, each, ACCUMULATORS[0]) for each in (of, long)]
        first = first or got
        assert_bit_equal(got[0][:24, :40], want, isa)
        for one, other in zip(got, first, strict=True):
            assert_bit_equal(one, other, isa)


@each("rest", ["", ":outer=e6m9", ":order=pairwise", ":order=compensated:outer=e5m10"])
def test_unit_scales_are_chunks(rest: str, isas: Isas) -> None:
    rng = np.random.default_rng(2)
    a, b = (torch.from_numpy(codes(rng, "e4m3", size)) for size in ((50, 700), (700, 70)))
    ones = Scales(torch.ones(50, 22), torch.ones(70, 1), 32, 0, False)
    chunks = as_accumulator(f"fp32_chunk32{rest}").to_ints()
    want = cpu.BACKEND.multiply(matmul_of(a, b), How(chunks, SEED, ROLE))
    for isa in isas:
        got = product(cpu.BACKEND, (a, b, ones, None), f"fp32_chunkscale{rest}")
        assert_bit_equal(got, want, f"{isa} {rest}")


def test_powers_of_two_shift_the_result(isas: Isas) -> None:
    rng = np.random.default_rng(3)
    a, b = (torch.from_numpy(codes(rng, "e2m1", size)) for size in ((20, 200), (200, 40)))
    left, right = (torch.from_numpy(scales(rng, "narrow", (n, 7))) for n in (20, 40))
    plain, moved = (Scales(left * 2.0**by, right, 32, 32, False) for by in (0, 11))
    for isa in isas:
        want = product(cpu.BACKEND, (a, b, plain, None), ACCUMULATORS[0]) * 2.0**11
        assert_bit_equal(product(cpu.BACKEND, (a, b, moved, None), ACCUMULATORS[0]), want, isa)


def test_one_kernel_makes_both_sums() -> None:
    """Where it serves, the tier of certified sums counts every product once, and no other does."""
    of = large("e4m3")
    cpu.BACKEND.take_tiers()
    product(cpu.BACKEND, of, "fp32_chunkscale")
    if cpu.BACKEND.isa() != "scalar":
        assert cpu.BACKEND.take_tiers()["certified"] == 1

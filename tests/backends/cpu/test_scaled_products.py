"""Products of codes by scale on every instruction set: the reference's bits, whatever the segments,
the scales, the accumulator, the threads and the strides."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from lpkernels.arithmetic import as_accumulator
from lpkernels.backends import How, Scales, cpu, matmul_of
from tests.backends.cpu_products import REFERENCE, ROLE, SEED
from tests.backends.scaled_cases import ACCUMULATORS, ELEMENTS, Case, case, codes, product, scales
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.processor import Isas, Threads, flushed


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

"""Products of codes by scale on every instruction set: the reference's bits, whatever the segments,
the scales, the accumulator, the threads and the strides."""

import numpy as np
import pytest
import torch

from lpkernels.arithmetic import as_accumulator
from lpkernels.backends import How, Scales, cpu, matmul_of
from tests.backends.cpu_products import REFERENCE, ROLE, SEED
from tests.backends.scaled_cases import ACCUMULATORS, Case, codes, product, scales
from tests.compare import assert_bit_equal
from tests.support.processor import Isas, Threads, flushed


def large(kind: str) -> Case:
    """Several blocks of k, of rows and of lanes, in which segments of 16 and of 24 cut each
    other."""
    rng = np.random.default_rng(4)
    a, b = codes(rng, kind, (400, 600)), codes(rng, kind, (600, 300))
    left, right = scales(rng, "e4m3", (400, 38)), scales(rng, "e4m3", (300, 25))
    parts = [torch.from_numpy(x) for x in (a, b, left, right)]
    return parts[0], parts[1], Scales(parts[2], parts[3], 16, 24, False), None


@pytest.mark.parametrize("text", [ACCUMULATORS[i] for i in (0, 6, 4)])
@pytest.mark.parametrize("kind", ["e2m1", "e4m3"])
def test_threads_strides_and_other_rows_do_not_show(kind: str, text: str, threads: Threads) -> None:
    of = large(kind)
    a, b, given, _ = of
    cpu.BACKEND.take_tiers()
    want = product(cpu.BACKEND, of, text)
    if text == "fp32_chunkscale" and cpu.BACKEND.isa() != "scalar":
        # One kernel makes both sums: it counts every product once.
        assert cpu.BACKEND.take_tiers()["certified"] == 1
    some = given._replace(left=given.left[:7])
    assert_bit_equal(product(cpu.BACKEND, (a[:7], b, some, None), text), want[:7], text)
    few = given._replace(right=given.right[:5])
    assert_bit_equal(product(cpu.BACKEND, (a, b[:, :5], few, None), text), want[:, :5], text)
    part = given._replace(left=given.left[:24], right=given.right[:40])
    corner = product(REFERENCE, (a[:24], b[:, :40], part, None), text)
    assert_bit_equal(corner, want[:24, :40], text)
    strided = (a.T.contiguous().T, b.T.contiguous().T, given, None)
    for way in threads:
        assert_bit_equal(product(cpu.BACKEND, strided, text), want, f"{way} {text}")
    with flushed():
        assert_bit_equal(product(cpu.BACKEND, of, text), want, text)


def test_sums_longer_than_the_places_that_hold_bytes_of_columns(isas: Isas) -> None:
    rng = np.random.default_rng(5)
    a, b = (torch.from_numpy(codes(rng, "e2m1", size)) for size in ((40, 18000), (18000, 16)))
    left, right = (torch.from_numpy(scales(rng, "narrow", (n, 282))) for n in (40, 16))
    long = a, b, Scales(left, right, 64, 64, False), None
    want = product(REFERENCE, long, ACCUMULATORS[0])
    for isa in isas:
        assert_bit_equal(product(cpu.BACKEND, long, ACCUMULATORS[0]), want, isa)


@pytest.mark.parametrize("rest", ["", ":outer=e6m9", ":order=pairwise"])
def test_unit_scales_are_chunks(rest: str, isas: Isas) -> None:
    rng = np.random.default_rng(2)
    a, b = (torch.from_numpy(codes(rng, "e4m3", size)) for size in ((50, 700), (700, 70)))
    ones = Scales(torch.ones(50, 22), torch.ones(70, 1), 32, 0, False)
    chunks = as_accumulator(f"fp32_chunk32{rest}").to_ints()
    want = cpu.BACKEND.multiply(matmul_of(a, b), How(chunks, SEED, ROLE))
    for isa in isas:
        got = product(cpu.BACKEND, (a, b, ones, None), f"fp32_chunkscale{rest}")
        assert_bit_equal(got, want, f"{isa} {rest}")

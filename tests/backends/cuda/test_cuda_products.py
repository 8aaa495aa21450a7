"""Products and convolutions of the cuda adapter, on the host and on a device. In a CUDA graph a
replay takes what its operands and its seed hold by then."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels import rng as draws
from lpkernels.backends.cuda import BACKEND
from tests import cases
from tests.backends import by_hand
from tests.cases import ConvCase, accumulators_named
from tests.compare import assert_bit_equal
from tests.support import products
from tests.support.cuda_host import needs_device
from tests.support.products import (
    ALL_CASES,
    KERNELS,
    PASSES,
    assert_pass,
    convolve,
    few_bits,
    special,
    tensors_of,
)

CPU: Any = lp.backends.get("cpu")
#: This backend sums in sequence and in chunks.
ACCUMULATORS = [acc for acc in cases.ACCUMULATORS if products.in_sequence(acc)]
ADDENDS = [((3, 4), shape) for shape in ((3, 4), (1, 4), (3, 1), (1, 1))] + [((70, 90), (90,))]


@pytest.mark.parametrize("addition", ADDENDS, ids=str)
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_accumulate_asks_for_every_element(addition: Any, rounding: str, device: str):
    total, addend = map(torch.randn, addition)
    acc = lp.accumulator(f"native_chunk4:{rounding}:outer=e5m4").to_ints()
    call = ((7, 2), acc, torch.tensor(5), 4, draws.SITE_OUTER, 3)
    got = total.to(device, copy=True)
    by_hand.accumulate(lp.backends.get("reference"), total, addend.expand_as(total), *call)
    by_hand.accumulate(BACKEND, got, addend.to(device), *call)
    assert_bit_equal(got, total)


@pytest.mark.parametrize("acc", ["e5m4:stochastic", "e6m9_chunk2:outer=e5m3"])
def test_matmul_says_where_sums_start(acc: str, device: str):
    a, b, initial = torch.randn(2, 3, 5), torch.randn(5, 4), torch.randn(4, 3, 2).permute(2, 1, 0)
    products.assert_product(BACKEND, a, b, lp.accumulator(acc), device, initial=initial)


@pytest.mark.parametrize("acc", ACCUMULATORS, ids=str)
def test_matmul_matches_the_reference(acc: lp.Accumulator, device: str):
    a, b, bias = torch.randn(2, 3, 37), torch.randn(37, 5), torch.randn(5)
    products.assert_product(BACKEND, a, b, acc, device, bias=bias)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_packing_sees_one_long_value_among_short_ones(alone: bool, side: str, device: str):
    """Its mantissa is the smaller number: a maximum would lose it, in a warp or between warps, and
    the sum of row 3 would be rounded twice, to 1536 or 1024 in place of 1538 or 1026."""
    a, b = torch.full((64, 2), 1.5), torch.tensor([[1024.0], [1.0]])
    if alone:
        # Of the 32 rows that a warp packs no other value has a mantissa.
        a[:32] = 1.0
    a[3, 1] = 1 + 2.0**-23
    pair = (a, b) if side == "left" else (b.mT, a.mT)
    products.assert_product(BACKEND, *pair, lp.accumulator("e6m9"), device)


@pytest.mark.parametrize(
    "acc", ["e5m4:order=pairwise", "e5m4:order=compensated", "native_chunk8", "hopper_fp8"]
)
def test_other_sums_are_refused_by_name(acc: str):
    x, ints = torch.ones(1, 1, 2, 2), lp.accumulator(acc).to_ints()
    for make in (
        lambda: by_hand.matmul(BACKEND, x, x, None, ints, None, 0),
        lambda: by_hand.conv_fprop(BACKEND, x, x, None, [1, 1], [0, 0], [1, 1], 1, ints, None, 0),
    ):
        with pytest.raises(NotImplementedError, match="backend='triton' has these"):
            make()


@needs_device
@pytest.mark.parametrize("acc", ACCUMULATORS, ids=str)
def test_matmul_matches_the_cpu(acc: lp.Accumulator):
    for m, k, n in cases.MATMUL_SHAPES:
        a, b, bias = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        products.assert_product(BACKEND, a, b, acc, "cuda", bias=bias, by="cpu")


@needs_device
@pytest.mark.parametrize("acc", ACCUMULATORS, ids=str)
def test_hard_values_match_the_cpu(acc: lp.Accumulator):
    values = torch.from_numpy(cases.hard_values(acc.fmt, 30).astype(np.float32)).flatten()
    a = values[torch.randint(len(values), (70, 41))]
    b = values[torch.randint(len(values), (41, 150))]
    torch.manual_seed(2)
    got = lp.matmul(a.cuda(), b.cuda(), acc, backend="cuda")
    torch.manual_seed(2)
    assert_bit_equal(got, lp.matmul(a, b, acc, backend="cpu"))


#: Exact and certified sums with draws; sums whose tier goes by the operands.
CAPTURED = accumulators_named("""
    e5m4:stochastic e6m9_chunk8:stochastic:outer_rounding=nearest_even e6m9_chunk8 e6m9
    e5m10:toward_zero
""")
CONVOLUTION = cases.CONV_CASES["conv2d_stride"]


def operands(op: str, make: products.Make) -> list[Tensor]:
    if op == "matmul":
        return [make(size).float() for size in ((70, 90), (90, 40), (40,))]
    return list(products.tensors_of(CONVOLUTION, make))


def made(backend: Any, op: str, tensors: list[Any], acc: lp.Accumulator, seed: Tensor) -> Tensor:
    if op == "matmul":
        return by_hand.matmul(backend, *tensors, acc.to_ints(), seed, products.ROLE)
    return products.convolve(backend, op, CONVOLUTION, tuple(tensors), acc, seed=seed)


@needs_device
@pytest.mark.parametrize("acc", CAPTURED, ids=str)
@pytest.mark.parametrize("op", ["matmul", *PASSES])
def test_a_captured_product_follows_its_operands_and_its_seed(op: str, acc: lp.Accumulator):
    there = [x.cuda() for x in operands(op, products.few_bits)]
    seed = torch.tensor(1, device="cuda")
    made(BACKEND, op, there, acc, seed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = made(BACKEND, op, there, acc, seed)
    # Other operands ask for other tiers.
    kinds: list[products.Make] = [products.few_bits, torch.randn, products.special]
    for value, make in enumerate(kinds, start=5):
        here = operands(op, make)
        for old, new in zip(there, here, strict=True):
            old.copy_(new)
        seed.fill_(value)
        graph.replay()
        want = made(CPU, op, here, acc, torch.tensor(value))
        assert_bit_equal(out, want, f"replay with {make.__name__} and seed {value}")


@pytest.mark.parametrize("make", [few_bits, torch.randn, special], ids=lambda m: m.__name__)
def test_all_geometries_match_the_cpu(device: str, make) -> None:
    """On the host the values take turns with the accumulators."""
    turn = (few_bits, torch.randn, special).index(make)
    for case in ALL_CASES.values():
        tensors = tensors_of(case, make)
        for i, acc in enumerate(KERNELS):
            for name in PASSES if device == "cuda" else (PASSES[(turn + i) % 3],):
                assert_pass(BACKEND, name, case, tensors, acc, device, by="cpu")


@pytest.mark.parametrize("acc", ACCUMULATORS, ids=str)
def test_all_accumulators_match_the_cpu(acc: lp.Accumulator, device: str) -> None:
    case = ConvCase((2, 4, 5, 6), (6, 2, 3, 3), (2, 1), (1, 2), (1, 2), 2)
    for name in PASSES:
        assert_pass(BACKEND, name, case, tensors_of(case, torch.randn), acc, device, by="cpu")


@pytest.mark.parametrize("name", PASSES)
def test_several_tiles(name: str, device: str) -> None:
    case = ConvCase((1, 6, 13, 12), (150, 6, 5, 5), (1, 1), (2, 2), (1, 1))
    tensors, acc = tensors_of(case, few_bits), lp.Accumulator("e6m9")
    assert_pass(BACKEND, name, case, tensors, acc, device, by="cpu")


def test_certified_kernels_keep_what_they_did(host) -> None:
    case = cases.CONV_CASES["conv2d"]
    x, w, dy, bias = tensors_of(case, few_bits)
    beside_padding = w.clone()
    beside_padding[1] = 0
    for weight in (w, beside_padding):
        for name in PASSES:
            for text in ("e6m9", "e5m10", "fp32", "fp32:toward_zero"):
                acc = lp.accumulator(text)
                convolve(BACKEND, name, case, (x, weight, dy, bias), acc)
                tier, redone = host.last_tier()
                assert tier > 0 and not redone, (name, acc)


@needs_device
@pytest.mark.parametrize("name", PASSES)
def test_channels_last_and_a_seed_on_the_device(name: str) -> None:
    case, acc = cases.CONV_CASES["conv2d_groups"], lp.Accumulator("e5m4", "stochastic")
    x, w, dy, bias = tensors_of(case, torch.randn)
    want = convolve("cpu", name, case, (x, w, dy, bias), acc)
    x, w, dy, bias = (t.cuda() for t in (x, w, dy, bias))
    x, dy = (t.to(memory_format=torch.channels_last) for t in (x, dy))
    seed = torch.tensor(-1234567890123456789, device="cuda")
    assert_bit_equal(convolve(BACKEND, name, case, (x, w, dy, bias), acc, seed=seed), want, name)

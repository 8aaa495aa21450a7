"""Products and convolutions of the cuda adapter, on the host and on a device. In a CUDA graph a
replay takes what its operands and its seed hold by then."""

from typing import Any

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.backends.cuda import BACKEND
from tests import cases
from tests.backends import by_hand
from tests.cases import ConvCase, accumulators_named
from tests.compare import assert_bit_equal
from tests.support import products
from tests.support.cuda_host import needs_device
from tests.support.products import PASSES, assert_pass, convolve, few_bits, tensors_of


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


#: Exact and certified sums with draws; sums whose tier goes by the operands.
CAPTURED = accumulators_named("""
    e5m4:stochastic e6m9_chunk8:stochastic:outer_rounding=nearest_even e6m9_chunk8 e6m9
    e5m10:toward_zero
""")
CONVOLUTION = cases.CONV_CASES["conv2d_stride"]


CPU: Any = lp.backends.get("cpu")


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

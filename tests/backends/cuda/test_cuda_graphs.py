"""Products of the cuda adapter in a CUDA graph: a replay takes what its operands and its seed hold
by then.

What a product needs of the host for that is shown without a device, in
tests/backends/test_capture.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Accumulator
from lpkernels.backends.cuda import BACKEND
from tests.cases import CONV_CASES
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.cuda_host import needs_device
from tests.support.products import (
    PASSES,
    ROLE,
    Make,
    convolve,
    few_bits,
    special,
    sums_in_float32,
    tensors_of,
)

#: Exact and certified sums with draws; sums whose tier goes by the operands, split at the ends of
#: chunks and not; chunks on tensor cores.
ACCUMULATORS = [
    lp.accumulator(text)
    for text in (
        "e5m4:stochastic",
        "e6m9_chunk8:stochastic:outer_rounding=nearest_even",
        "e6m9_chunk8",
        "e6m9",
        "e5m10:toward_zero",
        "e5m4:stochastic:order=pairwise",
        "native_chunk8:outer=e6m9",
    )
]
SIZES = ((70, 90), (90, 40))


def operands(op: str, make: Make) -> list[Tensor]:
    if op == "matmul":
        return [make(size).float() for size in (*SIZES, SIZES[1][1:])]
    return list(tensors_of(CONV_CASES["conv2d_stride"], make))


def made(backend: Any, op: str, tensors: Sequence[Tensor], acc: Accumulator, seed: Any) -> Tensor:
    if op == "matmul":
        return backend.matmul(*tensors, acc.to_ints(), seed, ROLE)
    x, w, dy, bias = tensors
    return convolve(backend, op, CONV_CASES["conv2d_stride"], (x, w, dy, bias), acc, seed=seed)


@needs_device
@each("op, acc", itertools.product(["matmul", *PASSES], ACCUMULATORS))
def test_a_captured_product_follows_its_operands_and_its_seed(op: str, acc: Accumulator):
    native = acc.order == "native"
    cpu, there = lp.backends.get("cpu"), [x.cuda() for x in operands(op, few_bits)]
    seed = torch.tensor(1, device="cuda")
    made(BACKEND, op, there, acc, seed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = made(BACKEND, op, there, acc, seed)
    # Only native chunks that are exact have bits. Other operands ask for other tiers.
    kinds: list[Make] = [few_bits, few_bits] if native else [few_bits, torch.randn, special]
    for value, make in enumerate(kinds, start=5):
        here = operands(op, make)
        for old, new in zip(there, here, strict=True):
            old.copy_(new)
        seed.fill_(value)
        graph.replay()
        in_sequence = sums_in_float32(acc) if native else acc
        want = made(cpu, op, here, in_sequence, torch.tensor(value))
        assert_bit_equal(out, want, f"replay with {make.__name__} and seed {value}")

"""Products and convolutions of the cuda adapter, on the host and on a device. In a CUDA graph a
replay takes what its operands and its seed hold by then."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels import rng as draws
from lpkernels.backends import Fused
from lpkernels.backends._conv_geometry import Frame
from lpkernels.backends.cuda import BACKEND, _conv, _products
from tests import cases
from tests.backends import by_hand
from tests.cases import ConvCase, accumulators_named
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support import products
from tests.support.cuda_host import needs_device
from tests.support.operands import ALL_CASES, in_frame
from tests.support.products import (
    KERNELS,
    PASSES,
    assert_pass,
    convolve,
    few_bits,
    output_shape,
    special,
    tensors_of,
)

CPU: Any = lp.backends.get("cpu")
#: This backend sums in sequence and in chunks.
ACCUMULATORS = [acc for acc in cases.ACCUMULATORS if products.in_sequence(acc)]
ADDENDS = [((3, 4), shape) for shape in ((3, 4), (1, 4), (3, 1), (1, 1))] + [((70, 90), (90,))]


@each("addition, rounding", ADDENDS, ["nearest_even", "stochastic"])
def test_accumulate_asks_for_every_element(addition: Any, rounding: str, device: str):
    total, addend = map(torch.randn, addition)
    acc = lp.accumulator(f"native_chunk4:{rounding}:outer=e5m4").to_ints()
    call = ((7, 2), acc, torch.tensor(5), 4, draws.SITE_OUTER, 3)
    got = total.to(device, copy=True)
    lp.backends.get("reference").accumulate(total, addend.expand_as(total), *call)
    by_hand.accumulate(BACKEND, got, addend.to(device), *call)
    assert_bit_equal(got, total)


@each("acc", ["e5m4:stochastic", "e6m9_chunk2:outer=e5m3"])
def test_matmul_says_where_sums_start(acc: str, device: str):
    a, b, initial = torch.randn(2, 3, 5), torch.randn(5, 4), torch.randn(4, 3, 2).permute(2, 1, 0)
    products.assert_product(BACKEND, a, b, lp.accumulator(acc), device, initial=initial)


@each("acc", ACCUMULATORS)
def test_matmul_matches_the_reference(acc: lp.Accumulator, device: str):
    a, b, bias = torch.randn(2, 3, 37), torch.randn(37, 5), torch.randn(5)
    products.assert_product(BACKEND, a, b, acc, device, bias=bias)


@each("alone, side", [False, True], ["left", "right"])
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


@each("acc", ["e5m4:order=pairwise", "e5m4:order=compensated", "native_chunk8", "hopper_fp8"])
def test_other_sums_are_refused_by_name(acc: str):
    x, ints = torch.ones(1, 1, 2, 2), lp.accumulator(acc).to_ints()
    for make in (
        lambda: by_hand.matmul(BACKEND, x, x, None, ints, None, 0),
        lambda: by_hand.conv_fprop(BACKEND, x, x, None, [1, 1], [0, 0], [1, 1], 1, ints, None, 0),
    ):
        with pytest.raises(NotImplementedError, match="backend='triton' has these"):
            make()


def run_random_case(number: int, device: str) -> torch.Tensor:
    """One of the 500 cases (shape, strides, recipe) that a GPU is checked on, on one device."""
    source = np.random.default_rng(number)
    torch.manual_seed(3)
    m, n = (int(x) for x in source.integers(1, 300, 2))
    k = int(source.integers(0, 400))
    batch = [(), (1,), (3,), (2, 2)][source.integers(4)]
    acc = ACCUMULATORS[source.integers(len(ACCUMULATORS))]
    fmt = [None, "e5m2", "e4m3", "bf16", "e5m10", "fixed8_f4"][source.integers(6)]
    a = torch.randn(*batch, m, k) * 2.0 ** source.integers(-12, 12)
    b = torch.randn((k, n) if source.integers(2) else (*batch, k, n))
    if fmt:
        a, b = lp.quantize(a, fmt), lp.quantize(b, fmt)
    if source.integers(2):
        a, b = (x.mT.contiguous().mT for x in (a, b))
    bias = torch.randn(n) if source.integers(2) else None
    output = [None, "e5m2"][source.integers(2)]
    fused = Fused(result=lp.Quantizer(output).to_ints() if output else ())
    backend = BACKEND if device == "cuda" else CPU
    seed = torch.tensor(11, device=device)
    tensors = [None if x is None else x.to(device) for x in (a, b, bias)]
    return by_hand.matmul(backend, *tensors, acc.to_ints(), seed, 4, fused)


@needs_device
@each("acc, shape", ACCUMULATORS, cases.MATMUL_SHAPES)
def test_matmul_matches_the_cpu(acc: lp.Accumulator, shape: tuple[int, int, int]):
    m, k, n = shape
    a, b, bias = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
    torch.manual_seed(2)
    got = lp.matmul(a.cuda(), b.cuda(), acc, backend="cuda")
    torch.manual_seed(2)
    assert_bit_equal(got, lp.matmul(a, b, acc, backend="cpu"))
    products.assert_product(BACKEND, a, b, acc, "cuda", bias=bias, by="cpu")


@needs_device
@each("acc", ACCUMULATORS)
def test_hard_values_match_the_cpu(acc: lp.Accumulator):
    values = torch.from_numpy(cases.hard_values(acc.fmt, 30).astype(np.float32)).flatten()
    a = values[torch.randint(len(values), (70, 41))]
    b = values[torch.randint(len(values), (41, 150))]
    torch.manual_seed(2)
    got = lp.matmul(a.cuda(), b.cuda(), acc, backend="cuda")
    torch.manual_seed(2)
    assert_bit_equal(got, lp.matmul(a, b, acc, backend="cpu"))


@needs_device
@each("number", range(500))
def test_random_cases_match_the_cpu(number: int):
    want = run_random_case(number, "cpu")
    assert_bit_equal(run_random_case(number, "cuda"), want, f"case {number}")


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
@each("op, acc", ["matmul", *products.PASSES], CAPTURED)
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


@each("acc", ACCUMULATORS)
def test_all_accumulators_match_the_cpu(acc: lp.Accumulator, device: str) -> None:
    case = ConvCase((2, 4, 5, 6), (6, 2, 3, 3), (2, 1), (1, 2), (1, 2), 2)
    for name in PASSES:
        assert_pass(BACKEND, name, case, tensors_of(case, torch.randn), acc, device, by="cpu")


@each("name", PASSES)
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


@pytest.mark.parametrize("channels_last", [False, True], ids=["channels first", "last"])
def test_frames(channels_last: bool, host) -> None:
    image = torch.randn(2, 5, 3, 4, 7)
    for fold in (1, 2, 3):
        frame = Frame((4, 6, 9), (1, -1, 2), fold, channels_last, 1, 5)
        facts = _products.new_facts(image.device)
        got = _conv.framed(image, frame, facts[0], ())
        assert got.absent
        assert_bit_equal(got.values.view(torch.int32), in_frame(image.numpy(), frame))


def random_case(number: int) -> tuple[str, ConvCase, lp.Accumulator, float]:
    """One of the cases (pass, convolution, accumulator, scale) that a GPU is checked on."""
    source = np.random.default_rng(number)

    def some(low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(int(i) for i in source.integers(low, high, count))

    dims, groups = some(1, 4, 1)[0], some(1, 4, 1)[0]
    kernel, stride, dilation = (some(1, high, dims) for high in (4, 4, 3))
    padding, spare = some(0, 4, dims), some(0, 12 // dims + 4, dims)
    size = [d * (k - 1) + 1 + more for d, k, more in zip(dilation, kernel, spare, strict=True)]
    channels, out_channels = (groups * i for i in some(1, 40, 2))
    case = ConvCase(
        (some(1, 4, 1)[0], channels, *size), (out_channels, channels // groups, *kernel),
        stride, padding, dilation, groups,
    )  # fmt: skip
    acc = ACCUMULATORS[source.integers(len(ACCUMULATORS))]
    return PASSES[source.integers(3)], case, acc, float(2.0 ** source.integers(-12, 12))


def test_random_cases_have_outputs() -> None:
    for number in range(200):
        _, case, _, _ = random_case(number)
        assert math.prod(output_shape(case)) > 0


@needs_device
@each("number", range(200))
def test_random_convolutions_match_the_cpu(number: int) -> None:
    name, case, acc, scale = random_case(number)
    x, w, dy, bias = (scale * t for t in tensors_of(case, torch.randn))
    assert_pass(BACKEND, name, case, (x, w, dy, bias), acc, "cuda", by="cpu")


@needs_device
@each("name", PASSES)
def test_channels_last_and_a_seed_on_the_device(name: str) -> None:
    case, acc = cases.CONV_CASES["conv2d_groups"], lp.Accumulator("e5m4", "stochastic")
    x, w, dy, bias = tensors_of(case, torch.randn)
    want = convolve("cpu", name, case, (x, w, dy, bias), acc)
    x, w, dy, bias = (t.cuda() for t in (x, w, dy, bias))
    x, dy = (t.to(memory_format=torch.channels_last) for t in (x, dy))
    seed = torch.tensor(-1234567890123456789, device="cuda")
    assert_bit_equal(convolve(BACKEND, name, case, (x, w, dy, bias), acc, seed=seed), want, name)

"""Products and convolutions that every backend makes. A module in the folder of each imports these
tests, and takes that folder's fixtures: adapter, the backend; device, of its tensors; and ways, a
loop over the instruction sets that a test goes through on this device."""

import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, seed, settings

import lpkernels as lp
from lpkernels.arithmetic import Accumulator
from lpkernels.ops._descriptions import sums
from lpkernels.rng import SITE_BIAS, SITE_OUTER
from tests.backends import by_hand, scaled_cases
from tests.backends.crossed import ConvCall, ProductCall, assert_call, conv_calls, product_calls
from tests.backends.scaled_cases import ACCUMULATORS, ELEMENTS
from tests.backends.zero_sums import few_zero_sums, has_table, zero_sums
from tests.cases import EVERY_ACCUMULATOR, ConvCase, hard_values
from tests.compare import assert_bit_equal
from tests.support import products as cases
from tests.support.elements import REFERENCE, quantized
from tests.support.products import (
    NAN_BITS,
    PASSES,
    ROLE,
    SEED,
    assert_pass,
    assert_product,
    convolve,
    in_sequence,
    lanes_of_all_kinds,
    tensors_of,
)

# Some operands hold values that no tensor core has.
pytestmark = pytest.mark.filterwarnings("ignore:.* operand holds")
#: Triton's interpreter is slow, and takes smaller and fewer products.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
#: Each way to sum, with every format kind, rounding, chunk, outer format and generator.
STRATA = list(dict.fromkeys([
    *EVERY_ACCUMULATOR, *cases.UNIT_ACCUMULATORS.values(), *cases.BLOCKS, *cases.POSITIONED,
    *cases.CORES,
]))  # fmt: skip


def lacks(adapter: Any, acc: Accumulator) -> bool:
    """Whether the adapter has no such sums; if another has them, the refusal names it."""
    on_gpu = adapter.name in ("cuda", "triton")
    core = on_gpu and acc.has_core
    if not core and (adapter.name != "cuda" or (in_sequence(acc) and not has_table(acc))):
        return False
    if not has_table(acc):
        a = torch.ones(1, 1)
        others = "cpu and reference" if core else "backend='triton' has these"
        with pytest.raises(NotImplementedError, match=others):
            by_hand.matmul(adapter, a, a, None, acc.to_ints(), None, 0)
    return True


def check_calls(
    calls: Any, count: int, adapter: Any, device: str, ways: Any, number: int = 0
) -> None:
    """So many drawn calls have the reference's bits; number: of the stratum, which draws anew."""

    @seed(number)
    @settings(max_examples=count, suppress_health_check=list(HealthCheck))
    @given(call=calls)
    def check(call: ProductCall | ConvCall) -> None:
        assume(not lacks(adapter, call.acc))
        assert_call(adapter, call, device, ways)

    check()


def largest(device: str) -> int:
    """The most rows, columns, products of a sum, and channels of a group."""
    return 5 if INTERPRETED else 200 if device == "cuda" else 40


@pytest.mark.parametrize("times", [1, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "calls, share", [(product_calls, 1.0), (conv_calls, 0.5)], ids=["products", "convolutions"]
)
def test_any_call(calls: Any, share: float, times: int, adapter: Any, device: str, ways: Any):
    """Whatever can be called, small and few in the interpreter; a device takes more of them."""
    count = 40 if INTERPRETED else 500 if device == "cuda" else 250
    most = largest(device) if share == 1 else min(largest(device), 6)
    check_calls(calls(most=most), int(times * share * count), adapter, device, ways)


@pytest.mark.parametrize("acc", STRATA, ids=str)
def test_every_way_to_sum(acc: Accumulator, adapter: Any, device: str, ways: Any) -> None:
    """A few calls of each accumulator, whose shapes, layouts, values, biases and quantizers are
    drawn."""
    if lacks(adapter, acc):
        return
    count, number = 2 if INTERPRETED else 10, STRATA.index(acc)
    most = largest(device)
    check_calls(product_calls(most, [acc]), count, adapter, device, ways, number)
    if number % 4 == 0 or not INTERPRETED:
        check_calls(conv_calls(min(most, 6), [acc]), count, adapter, device, ways, number)


def test_zeros_have_the_sign_that_their_format_gives_them(adapter: Any, device: str, ways: Any):
    for case in few_zero_sums() if INTERPRETED else zero_sums():
        name, acc, a, b, bias, initial = case
        if adapter.name == "cuda" and (has_table(acc) or not in_sequence(acc)):
            continue
        sums = assert_product(
            adapter, a, b, acc, device, bias=bias, initial=initial, name=name, ways=ways
        )
        negative = sums.signbit() & (sums == 0)
        assert not (case.has_one_zero and negative.any()), f"{name} {acc}"


@pytest.mark.parametrize("bits", NAN_BITS, ids=hex)
def test_no_nan_is_an_absent_tap(bits: int, adapter: Any, device: str, ways: Any) -> None:
    """Every NaN of an operand makes the one NaN, beside padding too."""
    acc = lp.accumulator("e5m4_chunk3:outer=e5m3")
    a = torch.tensor([bits], dtype=torch.int32).view(torch.float32).expand(2, 3)
    assert_product(adapter, a, torch.ones(3, 4), acc, device, ways=ways)
    case = ConvCase((1, 2, 3, 5), (3, 2, 2, 3), (2, 2), (1, 1), (1, 1))
    tensors = tensors_of(case)
    for t in tensors[:3]:
        t.view(-1).view(torch.int32)[1::7] = bits
    for name in PASSES:
        assert_pass(adapter, name, case, tensors, acc, device, ways=ways)


@pytest.mark.parametrize("number", range(15 if INTERPRETED else 54))
def test_products_of_codes_by_scale(number: int, adapter: Any, device: str, ways: Any) -> None:
    """Segments of all lengths, scales and elements of every kind, every order of scales."""
    if adapter.name == "cuda":
        return
    turn = number if INTERPRETED else number // 6
    case = scaled_cases.case(number, ELEMENTS[turn % len(ELEMENTS)], 24 if INTERPRETED else 301)
    texts = [ACCUMULATORS[number % 3]] * (not INTERPRETED) + [ACCUMULATORS[number % 15]]
    for text in dict.fromkeys(texts):
        if adapter.unsupported(sums(lp.accumulator(text).to_ints()).scaled, torch.device(device)):
            continue
        with np.errstate(all="ignore"):
            want = scaled_cases.product(REFERENCE, case, text)
        there = scaled_cases.on(case, device)
        for way in ways:
            got = scaled_cases.product(adapter, there, text)
            assert_bit_equal(got, want, f"{way} {text}")


@pytest.mark.parametrize("role, draws", [(1, 0), (0, -1), (11, 2**63 - 1)])
def test_draws_follow_the_seed_and_the_role(
    role: int, draws: int, adapter: Any, device: str, ways: Any
) -> None:
    generator = torch.Generator().manual_seed(1)
    more = {"seed": torch.tensor(draws), "role": role, "ways": ways}
    # Certified kernels take the second operands.
    for make in (lanes_of_all_kinds, lambda size, generator: torch.randn(size)):
        a, b, bias = (make(size, generator) for size in ((9, 7), (7, 33), (33,)))
        for acc in (cases.DRAWN, lp.accumulator("e5m3:stochastic")):
            assert_product(adapter, a, b, acc, device, bias=bias, **more)


def test_convolutions_without_channels_or_outputs(adapter: Any, device: str, ways: Any) -> None:
    acc = lp.accumulator("e5m4_chunk3:outer=e5m3")
    empty = ConvCase((2, 0, 3), (3, 0, 2), (1,), (0,), (1,))
    tensors = tuple(t.to(device) for t in tensors_of(empty))
    biases = lp.quantize(tensors[3].cpu(), "e5m3").view(1, 3, 1).expand(2, 3, 2)
    case = ConvCase((2, 2, 3, 3), (3, 2, 4, 2), (1, 1), (0, 0), (1, 1))
    none = [torch.ones(s, device=device) for s in (*case[:2], (2, 3, 0, 2), (3,))]
    shapes = ((2, 3, 0, 2), case.input_shape, case.weight_shape)
    for _ in ways:
        assert_bit_equal(convolve(adapter, "fprop", empty, tensors, acc), biases)
        for name, shape in zip(PASSES, shapes, strict=True):
            got = convolve(adapter, name, case, tuple(none), acc)
            assert_bit_equal(got, torch.zeros(shape), name)


# Additions of sums of chunks and of biases, each rounding once: accumulators with equal ones would
# repeat it.
ADDITIONS = {
    (a.outermost, a.outermost_rounding, a.random_bits, a.rng): a for a in EVERY_ACCUMULATOR
}


@pytest.mark.parametrize("acc", ADDITIONS.values(), ids=str)
def test_additions(acc: Accumulator, adapter: Any, device: str, ways: Any) -> None:
    """Values of the format, with hard ones beside them, as matrices of 9 columns; the addend has
    strides, or one row for all."""
    if lacks(adapter, Accumulator(acc.outermost)) or (adapter.name == "cuda" and has_table(acc)):
        return
    hard = torch.from_numpy(hard_values(acc.outermost, 5)).float()
    total = quantized(hard.flip(0).roll(37), lp.Quantizer(acc.outermost))
    total, addend = (x[: hard.numel() // 9 * 9].view(-1, 9) for x in (total, hard))
    for site, k, x in ((SITE_OUTER, 2**33, addend.t().contiguous().t()), (SITE_BIAS, 0, addend[1])):
        want = total.clone()
        rest = ((5, 2**33 + 7), acc.to_ints(), SEED, ROLE, site, k)
        by_hand.accumulate(REFERENCE, want, x.expand_as(total), *rest)
        for way in ways:
            got = total.to(device, copy=True)
            by_hand.accumulate(adapter, got, x.to(device), *rest)
            assert_bit_equal(got, want, f"{way} site {site}")

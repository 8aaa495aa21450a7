"""Tests that the adapters of GPUs share. A module in the folder of each imports them all, and takes
that folder's fixtures: adapter, the backend, and device, of its tensors."""

import os
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings

import lpkernels as lp
from lpkernels.arithmetic import Accumulator, as_quantizer
from lpkernels.backends import Fused
from tests.backends import by_hand
from tests.backends.crossed import ConvCall, ProductCall, assert_call, conv_calls, product_calls
from tests.backends.zero_sums import few_zero_sums, has_table, zero_sums
from tests.cases import ConvCase
from tests.support import products as cases
from tests.support.products import (
    PASSES,
    assert_pass,
    assert_product,
    in_sequence,
    lanes_of_all_kinds,
    rows,
    tensor,
)
from tests.support.products import tensors_of as tensors_of_pass

# Some operands hold values that no tensor core has.
pytestmark = pytest.mark.filterwarnings("ignore:.* operand holds")
#: Triton's interpreter is slow, and takes smaller products.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# Products whose operands lie anywhere and are rounded.

OPERANDS = {
    "matrices": ((3, 5), (5, 4)), "batch": ((2, 3, 4), (2, 4, 2)),
    "one left": ((1, 2, 4), (3, 4, 2)), "left matrix": ((4, 5), (3, 5, 6)),
    "right matrix": ((2, 2, 3, 4), (4, 2)), "both broadcast": ((2, 1, 2, 3), (1, 3, 3, 2)),
    "table": ((3, 2, 2, 3), (3, 1, 3, 2)), "no matrices": ((0, 3, 5), (5, 4)),
    "no products": ((2, 0), (0, 3)),
}  # fmt: skip
DRAWN = lp.accumulator("e5m4_chunk3:stochastic")


def lanes(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [lanes_of_all_kinds(shape, generator) for shape in shapes]


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("transposed", [False, True])
def test_matmul_asks_for_every_element(name: str, transposed: bool, adapter: Any, device: str):
    a, b = lanes(*OPERANDS[name])
    (bias,) = lanes(b.shape[-1:])
    if transposed:
        a, b = (x.mT.contiguous().mT for x in (a, b))
    assert_product(adapter, a, b, DRAWN, device, bias=bias, name=name)


def test_matmul_takes_any_strides(adapter: Any, device: str) -> None:
    a, b = lanes((2, 8, 5), (2, 5, 9))
    for x, y in (
        (a[:, ::2], b[..., ::3]),
        (a.flip(0).permute(1, 0, 2)[:2, :, 1:], b[:, 1:]),
        (a[:1].expand_as(a), b[1]),
    ):
        assert_product(adapter, x, y, DRAWN, device)


def test_operands_and_results_are_rounded(adapter: Any, device: str) -> None:
    texts = ("e5m2", "e4m3fn:to_odd", "fixed8_f4_wrap", "e3m4:toward_negative")
    one, two, three, four = (as_quantizer(text).to_ints() for text in texts)
    a, b, bias = lanes((6, 5), (5, 4), (4,))
    for fused in (
        Fused(one, two, three), Fused(three, four, one), Fused(left=four), Fused(right=one),
        Fused(result=two),
    ):  # fmt: skip
        assert_product(adapter, a, b, lp.accumulator("e5m4"), device, bias=bias, fused=fused)
    case = ConvCase((1, 2, 3, 5), (3, 2, 2, 3), (2, 2), (1, 1), (1, 1))
    for name, tensors in ((name, tensors_of_pass(case)) for name in PASSES):
        for acc, fused in (("e5m10", Fused(two, three, four)), ("e5m4_chunk3", Fused((), three))):
            assert_pass(adapter, name, case, tensors, lp.accumulator(acc), device, fused=fused)


@pytest.mark.parametrize("name", PASSES)
def test_convolutions_take_any_strides(name: str, adapter: Any, device: str) -> None:
    case = ConvCase((2, 3, 4, 3), (4, 3, 2, 2), (2, 1), (1, 0), (1, 1))
    x, w, dy, bias = tensors_of_pass(case)
    last = {"memory_format": torch.channels_last}
    spread = torch.zeros(2, 6, 4, 6)
    spread[:, ::2, :, 1::2] = x
    turned = w.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    few = bias.repeat(2, 1).T[:, 0]
    for views in (
        (x.to(**last), w.mT.contiguous().mT, dy.to(**last), bias),
        (spread[:, ::2, :, 1::2], turned, dy[:1].expand_as(dy), few),
    ):
        assert_pass(adapter, name, case, views, lp.accumulator("e5m4_chunk3:outer=e5m3"), device)


def test_zeros_have_the_sign_that_their_format_gives_them(adapter: Any, device: str) -> None:
    for case in few_zero_sums() if INTERPRETED else zero_sums():
        name, acc, a, b, bias, initial = case
        if adapter.name == "cuda" and (has_table(acc) or not in_sequence(acc)):
            continue
        assert_product(adapter, a, b, acc, device, bias=bias, initial=initial, name=name)


# Sums in any order, and sums that start elsewhere than at zero.


def refused(adapter: Any, acc: Accumulator) -> bool:
    """Whether the adapter has no such sums; then it says which one has them."""
    if adapter.name != "cuda" or in_sequence(acc):
        return False
    a = torch.ones(1, 1)
    with pytest.raises(NotImplementedError, match="backend='triton' has these"):
        by_hand.matmul(adapter, a, a, None, acc.to_ints(), None, 0)
    return True


@pytest.mark.parametrize("times", [1, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "calls, few", [(product_calls, 100), (conv_calls, 15)], ids=["products", "convolutions"]
)
def test_any_call(calls: Any, few: int, times: int, adapter: Any, device: str) -> None:
    """Whatever can be called, small and few in the interpreter; a device takes more of them."""
    most = 5 if INTERPRETED else 200 if device == "cuda" else 20
    count = few if INTERPRETED else 500 if device == "cuda" else 100

    @settings(max_examples=times * count)
    @given(call=calls(most=most))
    def check(call: ProductCall | ConvCall) -> None:
        assume(adapter.name != "cuda" or not has_table(call.acc))
        if not refused(adapter, call.acc):
            assert_call(adapter, call, device)

    check()


@pytest.mark.parametrize("acc", cases.STARTED, ids=str)
@pytest.mark.parametrize("length", [0, 21])
def test_sums_start_at_initial(acc: Accumulator, length: int, adapter: Any, device: str) -> None:
    if refused(adapter, acc):
        return
    initial = rows(1, 5, 7)
    initial[0] = torch.tensor([1e30, -1e30, 1e-30, 0.3, -0.0])
    a, b = rows(1, length, 5), tensor((length, 5), "short", torch.Generator().manual_seed(6))
    assert_product(adapter, a, b, acc, device, initial=initial)

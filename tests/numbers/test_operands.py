"""Accumulators with operands: the sides of products, of their gradients and of layers."""

from dataclasses import replace

import pytest
import torch

import lpkernels as lp
from lpkernels import ops
from lpkernels.arithmetic import Accumulator
from lpkernels.arithmetic.integers import exchanged
from lpkernels.rng import Role
from lpkernels.techniques.accumulation import measure
from tests.support.autograd import compiled as as_one_graph
from tests.support.autograd import fresh_compiler  # noqa: F401

MIXED = Accumulator("e8m13", "toward_zero", block=4, aligned_bits=6, operands=("e5m2", "e4m3fn"))


def test_exchanged_swaps_the_sides() -> None:
    swapped = MIXED.exchanged()
    assert swapped.operands == MIXED.operands[::-1] and swapped.exchanged() == MIXED
    assert exchanged(MIXED.to_ints()) == swapped.to_ints()
    plain = lp.accumulator("e6m9_chunk64")
    assert plain.exchanged() is plain and exchanged(plain.to_ints()) == plain.to_ints()


def test_measure_refuses_them_by_name() -> None:
    a, b = torch.randn(3, 40), torch.randn(40, 5)
    with pytest.raises(NotImplementedError, match=r"measure: .* and no kernel counts .* counted=0"):
        measure(a, b, MIXED)
    assert measure(a, b, MIXED, counted=0).swamped is None


# The products below pair these two values with ones; 2^-8 keeps its exponent in e5m2 alone.
TINY, TINIER = 2.0**-8, 2.0**-14


def pair(first: float, second: float) -> torch.Tensor:
    return torch.tensor([[first, second]])


# Sums of (TINY, TINIER) with ones. With the pair on the left the sum keeps both values. On the
# right, where 2^-8 counts as 2^-6 and the cut lies at 2^-12, it keeps the first alone.
LEFT, RIGHT = TINY + TINIER, TINY
PAIRS = replace(MIXED, block=2, aligned_bits=6)


def test_matmul_has_the_gradient_on_the_left_in_backward() -> None:
    ones = torch.ones(2, 1)
    assert lp.matmul(pair(TINY, TINIER), ones, PAIRS).item() == LEFT
    assert lp.matmul(ones.T, pair(TINY, TINIER).T, PAIRS).item() == RIGHT
    a, b = torch.ones(1, 1, requires_grad=True), torch.ones(1, 2, requires_grad=True)
    lp.matmul(a, b, PAIRS).backward(pair(TINY, TINIER))
    assert a.grad.item() == LEFT
    a, b = torch.ones(2, 1, requires_grad=True), torch.ones(1, 1, requires_grad=True)
    lp.matmul(a, b, PAIRS).backward(pair(TINY, TINIER).T)
    assert b.grad.item() == LEFT


def recipe_of(acc: Accumulator) -> lp.Recipe:
    return lp.Recipe(fprop=acc, dgrad=acc, wgrad=acc)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind", ["Linear", "Conv1d", "ConvTranspose1d"])
def test_layers_have_the_gradient_on_the_left(kind: str, compiled: bool) -> None:
    sizes = (1, 1) if kind == "Linear" else (1, 1, 1)
    layer = getattr(lp.nn, kind)(*sizes, recipe=recipe_of(PAIRS))
    torch.nn.init.ones_(layer.weight)
    shape = (2, 1) if kind == "Linear" else (2, 1, 1)
    call = as_one_graph(layer) if compiled else layer
    call(torch.ones(shape)).backward(pair(TINY, TINIER).reshape(shape))
    assert layer.weight.grad.item() == LEFT
    # The gradient of the bias is grad_output * 1 in wgrad's accumulator.
    assert layer.bias.grad.item() == LEFT


def test_a_bias_is_an_ordinary_addition() -> None:
    acc = replace(PAIRS, fmt=lp.parse_format("fp16"))
    layer = lp.nn.Linear(1, 1, recipe=recipe_of(acc))
    torch.nn.init.constant_(layer.weight, 65504.0)
    torch.nn.init.constant_(layer.bias, 65504.0)
    # Toward zero the addition stops at max, where a block would overflow.
    assert layer(torch.ones(1, 1)).item() == 65504
    total = ops.add_bias(torch.ones(1, 2), torch.ones(2), 1, acc, None, Role.FPROP)
    assert total.tolist() == [[2, 2]]

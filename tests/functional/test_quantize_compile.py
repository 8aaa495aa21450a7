"""lp.quantize in torch.compile and in activation checkpoints."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.support.autograd import alike, compiled, gradients


@pytest.mark.parametrize(
    "fmt",
    ["e5m2", "e5m2:stochastic", lp.FloatFormat(4, 3), lp.Quantizer("e4m3", "stochastic")],
    ids=str,
)
def test_quantize_compiles(fmt):
    def function(x):
        return lp.quantize(x, fmt) * lp.quantize(x, fmt)

    x = torch.rand(31, requires_grad=True)
    alike((function, compiled(function)), lambda run: gradients(run(x), x))


def test_quantize_compiles_with_mode_bits_and_out():
    def function(x):
        out = torch.empty_like(x)
        lp.quantize(x, "e5m2", "stochastic", random_bits=5, generator=torch.tensor(3), out=out)
        return out + 1

    x = torch.rand(9)
    assert_bit_equal(compiled(function)(x), function(x))


def test_quantize_draws_differ_inside_one_graph():
    x = torch.rand(200)
    run = compiled(lambda x: (lp.quantize(x, "e5m2:stochastic"), lp.quantize(x, "e5m2:stochastic")))
    first, second = run(x)
    assert not torch.equal(first, second)


def test_quantize_draws_again_the_same_in_a_checkpoint():
    def block(x):
        return lp.quantize(x * x, "e5m2:stochastic").square()

    def recomputed(x):
        return checkpoint(block, x, use_reentrant=False)

    x = torch.rand(64, requires_grad=True)
    functions = (block, recomputed, compiled(recomputed))
    alike(functions, lambda run: gradients(run(x), x))

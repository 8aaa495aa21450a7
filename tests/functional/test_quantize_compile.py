"""lp.quantize in torch.compile and in activation checkpoints."""

import pytest
import torch

import lpkernels as lp
from tests.compare import assert_bit_equal


def compiled(function):
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize(
    "fmt",
    ["e5m2", "e5m2:stochastic", lp.FloatFormat(4, 3), lp.Quantizer("e4m3", "stochastic")],
    ids=str,
)
def test_quantize_compiles(fmt):
    def function(x):
        return lp.quantize(x, fmt) * lp.quantize(x, fmt)

    results = []
    for run in (function, compiled(function)):
        torch.manual_seed(7)
        x = torch.rand(31, requires_grad=True)
        y = run(x)
        y.sum().backward()
        results.append((y.detach(), x.grad))
    for eager, graph in zip(*results, strict=True):
        assert_bit_equal(graph, eager)


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


@pytest.mark.parametrize("use_compile", [False, True], ids=["eager", "compiled"])
def test_quantize_draws_again_the_same_in_a_checkpoint(use_compile):
    from torch.utils.checkpoint import checkpoint

    def block(x):
        return lp.quantize(x * x, "e5m2:stochastic").square()

    def outer(x):
        return checkpoint(block, x, use_reentrant=False)

    grads = []
    for function in (block, compiled(outer) if use_compile else outer):
        torch.manual_seed(5)
        x = torch.rand(64, requires_grad=True)
        function(x).sum().backward()
        grads.append(x.grad)
    assert_bit_equal(grads[1], grads[0])

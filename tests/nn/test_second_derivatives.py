"""Second derivatives of converted models: gradient penalties, physics, checkpoints, refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from bench.studies import second_order
from lpkernels import functional as LF
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC

FP8, NARROW = second_order.RECIPES["fp8"], second_order.RECIPES["narrow sums"]
AGAIN: Any = {"create_graph": True}


def perceptron(*sizes: int) -> nn.Sequential:
    torch.manual_seed(0)
    return second_order.perceptron(*sizes)


def penalty(model: Any, x: Tensor) -> Tensor:
    return second_order.penalty(model, x)[0]


def penalty_gradients(model: nn.Module, call: Any = None, seed: int = 5) -> list[Tensor]:
    torch.manual_seed(seed)
    x = torch.randn(6, 8, requires_grad=True)
    return list(torch.autograd.grad(penalty(call or model, x), [x, *model.parameters()][:-1]))


@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC], ids="ds")
def test_a_checkpoint_changes_no_bit(recipe: lp.Recipe) -> None:
    model = lp.convert(perceptron(8, 16, 16, 1), recipe)
    want = penalty_gradients(model)
    again = penalty_gradients(model)
    inside = penalty_gradients(model, lambda x: checkpoint(model, x, use_reentrant=False))
    for a, b, c in zip(inside, want, again, strict=True):
        assert_bit_equal(a, b)
        assert_bit_equal(c, b)


def test_first_and_second_derivatives_add_up() -> None:
    """A loss of the result and of its gradients: both reach a hidden layer's input."""
    model = lp.convert(perceptron(8, 16, 16, 1), NARROW)
    torch.manual_seed(5)
    x = torch.randn(6, 8, requires_grad=True)
    both = [x, *model.parameters()]

    def gradients(*terms: Any) -> list[Tensor]:
        total = torch.stack([term(model, x) for term in terms]).sum()
        return list(torch.autograd.grad(total, both, allow_unused=True, materialize_grads=True))

    value: Any = lambda model, x: model(x).square().mean()  # noqa: E731
    parts = zip(gradients(penalty), gradients(value), strict=True)
    for got, (a, b) in zip(gradients(penalty, value), parts, strict=True):
        torch.testing.assert_close(got, a + b, rtol=1e-5, atol=1e-6)


def test_a_layer_that_nobody_differentiates_twice_keeps_codes_alone() -> None:
    """For its gradients' gradients a hidden layer keeps a place in the graph, without memory."""
    layer = lp.nn.Linear(64, 32, recipe=FP8)
    leaf = torch.randn(16, 64, requires_grad=True)
    hidden = leaf * 2
    storage = StorageWeakRef(hidden.untyped_storage())
    nodes: list[Any] = [layer(leaf).grad_fn, layer(hidden).grad_fn]
    assert [list(node.places) for node in nodes] == [[], [0]]
    for node in nodes:
        kept = [x for x in (*node.saved_tensors, *node.places.values()) if x is not None]
        assert sum(x.untyped_storage().nbytes() for x in kept) == 16 * 64 + 4 * 64 * 32
    del hidden
    assert storage.expired()


def test_histories_note_the_tensors_of_the_first_order_alone() -> None:
    def buffers(twice: bool) -> list[Tensor]:
        torch.manual_seed(5)
        layer = lp.nn.Linear(16, 8, recipe="te_delayed")
        x, g = (torch.randn(16, n, requires_grad=True) for n in (16, 8))
        first = torch.autograd.grad(layer(x), [x, layer.weight], g, create_graph=twice)
        if twice:
            incoming = [100 * torch.randn_like(t) for t in first]
            second = torch.autograd.grad(first, [x, layer.weight, g], incoming)
            assert all(t.norm() > 100 for t in second)
        return [b.clone() for b in layer.buffers()]

    for a, b in zip(buffers(True), buffers(False), strict=True):
        assert_bit_equal(a, b)


def test_a_batch_of_gradients_has_second_derivatives() -> None:
    model = lp.convert(perceptron(8, 16, 3), FP8)
    x = torch.randn(4, 8, requires_grad=True)
    basis, asked = torch.randn(5, 4, 3), [x, model[0].weight, model[2].weight]

    def gradients(of_gradients: Any) -> tuple[Tensor, ...]:
        (dx,) = of_gradients(model(x))
        return (dx.detach(), *torch.autograd.grad(dx.square().sum(), asked))

    got = gradients(lambda y: torch.autograd.grad(y, x, basis, is_grads_batched=True, **AGAIN))
    want = gradients(
        lambda y: [torch.stack([torch.autograd.grad(y, x, g, **AGAIN)[0] for g in basis])]
    )
    for a, b in zip(got, want, strict=True):
        assert_bit_equal(a, b)
    drawn = lp.convert(model, STOCHASTIC)(x)
    with pytest.raises(NotImplementedError, match="would share the random bits"):
        torch.autograd.grad(drawn, x, basis, is_grads_batched=True, **AGAIN)


def test_a_running_range_rounds_straight_through_in_every_order() -> None:
    sums = {"fprop": "e6m9", "dgrad": "e6m8", "wgrad": "e6m7"}
    ranged = lp.Recipe(input="affine8", input_range="running:0.9", **sums)
    layer = lp.nn.Linear(8, 4, recipe=ranged)
    layer(torch.randn(4, 8))
    layer.eval()
    x = torch.randn(4, 8, requires_grad=True)

    def gradients(y: Tensor) -> tuple[Tensor, ...]:
        (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(dx.square().sum(), (x, layer.weight))

    got = gradients(layer(x))
    rounded = lp.quantize(x, "affine8", range=layer.input_range)
    want = gradients(LF.linear(rounded, layer.weight, layer.bias, recipe=lp.Recipe(**sums)))
    for a, b in zip(got, want, strict=True):
        assert_bit_equal(a, b)


def twice(y: Tensor, *tensors: Tensor) -> None:
    torch.autograd.grad(y.square().sum(), tensors, create_graph=True)

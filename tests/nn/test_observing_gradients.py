"""observe: the gradients of calls, and the tensors that are kept until they come."""

import gc
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from lpkernels.nn.observing import Call, Visitor, observe
from tests.compare import assert_bit_equal
from tests.nn.observed import Calls, cnn, mean_square, of_weight, watched
from tests.support.autograd import Computes

X = torch.randn(2, 4)


def test_results_and_gradients_are_those_of_autograd():
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    x = torch.randn(2, 4, requires_grad=True)
    seen = Calls()
    with observe(nn.Sequential(first, nn.Tanh(), second), seen):
        y = first(x)
        z = second(y.tanh())
        found = torch.autograd.grad(z.square().sum(), [x, first.weight, first.bias, y, z])
    assert_bit_equal(seen.results[0].detach(), y.detach())
    names = ["input", "weight", "bias", "result"]
    for name, gradient in zip(names, found, strict=False):
        assert_bit_equal(seen.gradients[0][name], gradient)
    assert_bit_equal(seen.gradients[1]["result"], found[4])
    # Nobody asked autograd for the gradients of the second layer's parameters.
    assert "weight" not in seen.gradients[1]


def test_a_shared_module_is_called_anew_and_its_weight_has_one_gradient():
    layer = nn.Linear(4, 4)
    seen = watched(nn.Sequential(layer, nn.Tanh(), layer), X)
    assert seen.names == [("0", "linear")] * 2
    assert seen.calls[0].run is not seen.calls[1].run
    for gradients in seen.gradients:
        assert_bit_equal(gradients["weight"], layer.weight.grad)


def test_gradients_go_to_the_step_they_belong_to():
    """One observation covers several steps, one of which has no backward pass."""
    layer, seen = nn.Linear(4, 2), Calls()
    with observe(layer, seen):
        for step in range(3):
            y = layer(X * (step + 1)).square().sum()
            if step != 1:
                layer.zero_grad()
                y.backward()
                assert_bit_equal(seen.gradients[step]["weight"], layer.weight.grad)
    assert seen.gradients[1] == {}
    assert not layer.weight._backward_hooks


def test_an_operand_changed_in_place_is_told_as_it_entered():
    seen = Calls()
    x = torch.randn(2, 4, requires_grad=True)
    model = of_weight(lambda x, w: (x * 1).relu_())
    with observe(model, seen, operations={"relu_"}):
        (model(x) * 3).sum().backward()
    assert_bit_equal(seen.arguments[0]["0"], x.detach())
    assert_bit_equal(seen.results[0].detach(), x.detach().relu())
    assert_bit_equal(seen.gradients[0]["result"], torch.full_like(x, 3))
    assert_bit_equal(seen.gradients[0]["0"], x.grad)


@pytest.mark.parametrize("recipe", [None, "e4m3"])
def test_a_recomputation_of_a_checkpoint_is_told_once(recipe):
    part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    net = Computes(lambda m, x: checkpoint(m.part, x, use_reentrant=False), part=part)
    if recipe is not None:
        lp.convert(net, lp.Recipe(input=recipe))
    seen = watched(net, X)
    assert seen.names == [("part.0", "linear")]
    assert "weight" in seen.gradients[0]


def test_nothing_is_kept_for_a_visitor():
    alive: list[weakref.ref[Tensor]] = []

    class Counts(Visitor):
        def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
            alive.append(weakref.ref(arguments["input"]))

        def after(self, call: Call, result: Any) -> None:
            alive.append(weakref.ref(result))

        def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
            alive.append(weakref.ref(gradient))

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    with observe(model, Counts()):
        with torch.no_grad():
            model(torch.randn(2, 4))
        gc.collect()
        assert len(alive) == 4 and not any(ref() is not None for ref in alive)
        mean_square(model(torch.randn(2, 4))).backward()
        gc.collect()
        assert len(alive) > 8 and not any(ref() is not None for ref in alive)


def test_hooks_are_gone_afterwards():
    model, seen = cnn(), Calls()
    x = torch.randn(2, 3, 5, 5, requires_grad=True) * 1
    with pytest.raises(ZeroDivisionError), observe(model, seen):
        y = model(x)
        raise ZeroDivisionError
    y.sum().backward()
    assert not any(seen.gradients)
    held = [t._backward_hooks for t in (x, y, *model.parameters())]
    assert not any(held)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    model(x)
    assert len(seen.calls) == 3

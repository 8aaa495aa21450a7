"""torch.func and higher derivatives: what works, and the errors of what does not."""

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.loops import each
from tests.nn.layer_cases import LAYERS, converted, first, inputs, leaves

every_layer = each("name", LAYERS)
# torch calls an operator once for each sample.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


@every_layer
def test_a_second_derivative_is_refused(name: str) -> None:
    layer, args = converted(name, DETERMINISTIC), leaves(inputs(name))
    asked = [t for t in (*args, *layer.parameters()) if t.requires_grad]
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first(layer(*args)).square().sum(), asked, create_graph=True)


@every_layer
def test_functional_call_takes_other_parameters(name: str) -> None:
    layer, args = converted(name, DETERMINISTIC), inputs(name)
    parameters = {k: 2 * p.detach() for k, p in layer.named_parameters()}
    got = first(functional_call(layer, parameters, args))
    layer.load_state_dict(parameters, strict=False)
    assert_bit_equal(got, first(layer(*args)))


@every_layer
def test_vmap_maps_a_layer_without_gradients(name: str) -> None:
    layer, args = converted(name, DETERMINISTIC).eval(), inputs(name)
    more = [torch.stack([x, x.flip(0)]) for x in args]
    with torch.no_grad():
        got = vmap(lambda *xs: first(layer(*xs)))(*more)
        want = torch.stack([first(layer(*xs)) for xs in zip(*more, strict=True)])
    if name.startswith("GRU"):
        # torch's own tanh of another shape may differ in the last bit.
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    else:
        assert_bit_equal(got, want)


@every_layer
def test_gradients_in_transforms_are_refused(name: str) -> None:
    layer, args = converted(name, DETERMINISTIC).eval(), inputs(name)
    match = r"no gradient inside torch.func's transforms.*torch.no_grad"
    parameters = dict(layer.named_parameters())

    def loss(tensors: dict[str, torch.Tensor], *xs: torch.Tensor) -> Any:
        return first(functional_call(layer, tensors, xs)).sum()

    if not parameters:
        with pytest.raises(NotImplementedError, match=match):
            grad(lambda x: first(layer(x)).sum())(*args)
        return
    with pytest.raises(NotImplementedError, match=match):
        grad(loss)(parameters, *args)
    with pytest.raises(NotImplementedError, match=match):
        vmap(grad(loss), (None, *[0] * len(args)))(parameters, *(x[:, None] for x in args))


@each("name", [name for name in LAYERS if name != "Embedding"])
def test_forward_mode_is_refused(name: str) -> None:
    layer, (x, *rest) = converted(name, DETERMINISTIC).eval(), inputs(name)
    match = "no derivative in forward mode"
    with pytest.raises(NotImplementedError, match=match):
        jvp(lambda x: first(layer(x, *rest)), (x,), (x,))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=match):
        layer(forward_ad.make_dual(x, x), *rest)


def test_rounding_and_products_refuse_too() -> None:
    x = torch.randn(3, 3)
    for call in (lambda x: lp.quantize(x, "e5m2"), lambda x: lp.matmul(x, x, "e6m9")):
        with pytest.raises(NotImplementedError, match=r"inside torch.func's transforms"):
            grad(lambda x, call=call: call(x).sum())(x)
        with pytest.raises(NotImplementedError, match="forward mode"):
            jvp(call, (x,), (x,))


@each("randomness", ["same", "different"])
def test_vmap_decides_whether_samples_share_draws(randomness: str) -> None:
    x = torch.full((3, 4, 5), 1.1)
    got = vmap(lambda x: lp.quantize(x, STOCHASTIC.input), randomness=randomness)(x)
    assert torch.equal(got[0], got[1]) is (randomness == "same")


def test_vmap_refuses_draws_unless_told() -> None:
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda x: lp.quantize(x, STOCHASTIC.input))(torch.ones(3, 4))


WRITING: dict[str, Any] = {
    "count": lambda x, counts, out: lp.count(x, "e5m2"),
    "count into": lambda x, counts, out: lp.count(x, "e5m2", counts=counts),
    "quantize": lambda x, counts, out: lp.quantize(x, "e5m2", counts=counts),
    "quantize in a range": lambda x, counts, out: lp.quantize(
        x, "affine4", range=(0, 1), counts=counts
    ),
    "out": lambda x, counts, out: lp.quantize(x, "e5m2", out=out),
}


@each("mapped", [True, False])
@each("name", WRITING)
def test_vmap_refuses_calls_that_write(name: str, mapped: bool) -> None:
    x = torch.randn(3, 4, 5)
    shape = (3,) if mapped else ()
    counts, out = torch.zeros(*shape, 4, dtype=torch.int64), torch.zeros(*shape, 4, 5)
    places = 0 if mapped else None
    match = "outside of vmap, on the whole batch or in a loop"
    with pytest.raises(NotImplementedError, match=match):
        vmap(WRITING[name], (0, places, places))(x, counts, out)
    assert not counts.any() and not out.any()


def test_vmap_refuses_a_running_range_in_training() -> None:
    recipe = lp.Recipe(input="affine4", input_range=lp.RunningRange(0.9))
    layer = lp.nn.Linear(5, 2, recipe=recipe).requires_grad_(False)
    x = torch.randn(3, 4, 5)
    with pytest.raises(NotImplementedError, match="a running range in training"):
        vmap(layer)(x)
    assert not layer.input_range.any()
    assert_bit_equal(vmap(layer.eval())(x), torch.stack([layer(each) for each in x]))

"""Scales of layers: exact where nothing rounds, seen by the quantizers where something does."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.techniques.loss_scaling import layer_scales
from tests.compare import assert_bit_equal
from tests.nn.layer_cases import LAYERS

FP8 = lp.Recipe(input="e4m3fn", weight="e4m3fn", grad_output="e5m2", grad_weight="e5m2")


def inputs(name: str) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    found = LAYERS[name][1](3)
    return tuple(x.requires_grad_() if x.is_floating_point() else x for x in found)


def gradients(model: nn.Module, given: tuple[Tensor, ...]) -> list[Tensor]:
    """The gradients of inputs and parameters, for a loss that is no sum."""
    leaves = [x for x in given if x.requires_grad] + list(model.parameters())
    for leaf in leaves:
        leaf.grad = None
    output = model(*given)
    output = output[0] if isinstance(output, tuple) else output
    output.square().sum().backward()
    return [leaf.grad.clone() for leaf in leaves if leaf.grad is not None]


class Only(nn.Module):
    """A model of one layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *given: Any) -> Any:
        return self.layer(*given)


def only(name: str) -> Only:
    torch.manual_seed(0)
    return Only(LAYERS[name][0]())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("converted", [False, True])
def test_scale_without_rounding_changes_no_bit(name: str, converted: bool) -> None:
    model = only(name)
    if converted:
        model = lp.convert(model, lp.Recipe(input="e5m2", weight="e4m3"))
    plain = gradients(model, inputs(name))
    with layer_scales(model, {"layer": 9}) as scales:
        assert scales.exponents == {"layer": 9}
        scaled = gradients(model, inputs(name))
        assert all(isinstance(p, nn.Parameter) for p in model.parameters())
    for a, b in zip(scaled, plain, strict=True):
        assert_bit_equal(a, b)
    for a, b in zip(gradients(model, inputs(name)), plain, strict=True):
        assert_bit_equal(a, b)


def by_hand(model: nn.Linear, x: Tensor, dy: Tensor, exponent: int) -> list[Tensor]:
    """Gradients of input, weight and bias of a layer under FP8, sums in float64."""
    up, down = 2.0**exponent, 2.0**-exponent
    g = lp.quantize(dy * up, "e5m2").double()
    xq, wq = (lp.quantize(t, "e4m3fn").double() for t in (x, model.weight.detach()))
    dw = lp.quantize((g.T @ xq).float(), "e5m2")
    return [(g @ wq).float() * down, dw * down, g.sum(0).float() * down]


@pytest.mark.parametrize("order", ["convert first", "scale first"])
@pytest.mark.parametrize("exponent", [0, 12, 20, 40, -3])
def test_fp8_gradients_are_those_by_hand(order: str, exponent: int) -> None:
    """With exponent 0 the small gradients vanish in e5m2; with exponent 40 they overflow."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))
    # The values have few significant bits, so that the sums are exact in any order.
    x = torch.randint(-4, 5, (2, 4)).float().requires_grad_()
    with torch.no_grad():
        model[0].weight.copy_(torch.randint(-4, 5, (3, 4)).float())
    dy = torch.tensor([[1.0, -3.0, 2.0], [0.0, 5.0, -1.0]]) * 2.0**-20
    if order == "convert first":
        lp.convert(model, FP8)
    layer_scales(model, {"0": exponent})
    if order == "scale first":
        lp.convert(model, FP8)
    model(x).backward(dy)
    found = [x.grad, model[0].weight.grad, model[0].bias.grad]
    for got, want in zip(found, by_hand(model[0], x.detach(), dy, exponent), strict=True):
        assert_bit_equal(got, want)
    bias = model[0].bias.grad
    assert bool(bias.isfinite().all()) == (exponent < 40)
    assert bool(bias.any()) == (exponent > 0)


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), inner, nn.Linear(4, 2))


def seen(model: nn.Module, exponents: dict[str, int]) -> dict[str, float]:
    """The factor by which each linear layer's output gradient is multiplied inside the layer."""
    ratios: dict[str, float] = {}
    plain: dict[str, Tensor] = {}

    def noting(name: str, into: dict[str, Any]) -> Callable[..., Tensor]:
        def linear(x: Tensor) -> Tensor:
            y = nn.functional.linear(x, layers[name].weight, layers[name].bias)
            y.register_hook(lambda gradient: into.__setitem__(name, gradient))
            # This is the gradient that the layer's products get, not the gradient of what the layer
            # returns.
            return y.clone()

        return linear

    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    found: dict[str, Tensor] = {}
    for into, scales in ((plain, {}), (found, exponents)):
        for name, layer in layers.items():
            layer.forward = noting(name, into)
        with layer_scales(model, scales):
            model(torch.ones(3, 4)).sum().backward()
    for name in layers:
        ratios[name] = float((found[name] / plain[name]).nan_to_num(0).max())
    return ratios


@pytest.mark.parametrize(
    ("exponents", "want"),
    [
        ({"0": 3}, (8.0, 1.0, 1.0, 1.0)),
        ({"2": 3}, (1.0, 8.0, 8.0, 1.0)),
        ({"2.0": 5, "2*": 3}, (1.0, 32.0, 8.0, 1.0)),
        ({"2*": 3, "2.0": 5}, (1.0, 8.0, 8.0, 1.0)),
        ({"2": 4, "2.2": 0}, (1.0, 16.0, 1.0, 1.0)),
        ({"*": -2}, (0.25, 0.25, 0.25, 0.25)),
    ],
)
def test_exponents_are_those_of_the_first_glob(
    exponents: dict[str, int], want: tuple[float, ...]
) -> None:
    model = blocks()
    assert tuple(seen(model, exponents).values()) == want
    model = blocks()
    plain = gradients(model, (torch.ones(3, 4),))
    with layer_scales(model, exponents):
        for a, b in zip(gradients(model, (torch.ones(3, 4),)), plain, strict=True):
            assert_bit_equal(a, b)


def test_tied_weight_gets_both_gradients_unscaled() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    plain = gradients(model, (torch.ones(3, 4),))
    layer_scales(model, {"1": 7})
    for a, b in zip(gradients(model, (torch.ones(3, 4),)), plain, strict=True):
        assert_bit_equal(a, b)


def test_copies_and_packed_sequences() -> None:
    model = only("LSTM")
    x = torch.randn(4, 2, 5, requires_grad=True)

    def derivative(of: nn.Module) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, [2, 2, 1, 1], batch_first=True)
        output, (h, c) = of(packed)
        loss = output.data.square().sum() + h.sum() * c.square().sum()
        return torch.autograd.grad(loss, x)[0]

    plain = derivative(model)
    layer_scales(model, {"layer": 11})
    assert_bit_equal(derivative(model), plain)
    assert_bit_equal(derivative(copy.deepcopy(model)), plain)


def test_second_derivatives_are_refused() -> None:
    model = only("Linear")
    layer_scales(model, {"layer": 11})
    (x,) = inputs("Linear")
    (first,) = torch.autograd.grad(model(x).pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


def test_failed_forward_leaves_the_parameters() -> None:
    model = blocks()
    layer_scales(model, {"2": 3, "2.0": 1})
    before = dict(model.named_parameters())
    with pytest.raises(RuntimeError):
        model(torch.ones(3, 5))
    with pytest.raises(RuntimeError):
        model[2](torch.ones(3, 5))
    assert dict(model.named_parameters()).keys() == before.keys()
    assert all(p is before[name] for name, p in model.named_parameters())
    with torch.no_grad():
        assert not model(torch.ones(3, 4)).requires_grad
    assert len(gradients(model, (torch.ones(3, 4),))) == 8


@pytest.mark.parametrize(
    ("exponents", "error", "says"),
    [
        ({"0": 1.5}, TypeError, "'0': expected the exponent of 2 as an int, got float 1.5"),
        ({"0": True}, TypeError, "expected the exponent of 2 as an int, got bool"),
        ({"0": 127}, ValueError, "expected an exponent from -126 to 126, got 127"),
        ({"head": 1}, ValueError, "'head' matches no module; the model has 0, 1, 2, 2.0"),
    ],
)
def test_wrong_input_is_refused(
    exponents: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        layer_scales(blocks(), exponents)

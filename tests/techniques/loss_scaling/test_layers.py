"""Scales of layers: exact where nothing rounds, seen by the quantizers where something does."""

import copy

import pytest
import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.techniques.loss_scaling import layer_scales
from tests.compare import assert_bit_equal
from tests.loops import each, rows
from tests.nn import layer_cases
from tests.nn.layer_cases import same, step
from tests.support.refusals import refuses

FP8 = lp.Recipe(input="e4m3fn", weight="e4m3fn", grad_output="e5m2", grad_weight="e5m2")


@each("name, converted", layer_cases.LAYERS, [False, True])
def test_scale_without_rounding_changes_no_bit(name: str, converted: bool) -> None:
    recipe = lp.Recipe(input="e5m2", weight="e4m3")
    layer = layer_cases.converted(name, recipe) if converted else layer_cases.plain(name)
    model, inputs = nn.ModuleDict({"layer": layer}), layer_cases.inputs(name, 3)
    plain = step(layer, layer, *inputs)
    with layer_scales(model, {"layer": 9}) as scales:
        assert scales.exponents == {"layer": 9}
        same(step(layer, layer, *inputs), plain)
        assert all(isinstance(p, nn.Parameter) for p in model.parameters())
    same(step(layer, layer, *inputs), plain)


def by_hand(model: nn.Linear, x: Tensor, dy: Tensor, exponent: int) -> list[Tensor]:
    """Gradients of input, weight and bias of a layer under FP8, sums in float64."""
    up, down = 2.0**exponent, 2.0**-exponent
    g = lp.quantize(dy * up, "e5m2").double()
    xq, wq = (lp.quantize(t, "e4m3fn").double() for t in (x, model.weight.detach()))
    dw = lp.quantize((g.T @ xq).float(), "e5m2")
    return [(g @ wq).float() * down, dw * down, g.sum(0).float() * down]


@each("order, exponent", ["convert", "scale"], [0, 12, 20, 40, -3])
def test_fp8_gradients_are_those_by_hand(order: str, exponent: int) -> None:
    """With exponent 0 the small gradients vanish in e5m2; with exponent 40 they overflow."""
    model = nn.Sequential(nn.Linear(4, 3))
    # The values have few significant bits, so that the sums are exact in any order.
    x = torch.randint(-4, 5, (2, 4)).float().requires_grad_()
    with torch.no_grad():
        model[0].weight.copy_(torch.randint(-4, 5, (3, 4)).float())
    dy = torch.tensor([[1.0, -3.0, 2.0], [0.0, 5.0, -1.0]]) * 2.0**-20
    if order == "convert":
        lp.convert(model, FP8)
    layer_scales(model, {"0": exponent})
    if order == "scale":
        lp.convert(model, FP8)
    model(x).backward(dy)
    found = [x.grad, model[0].weight.grad, model[0].bias.grad]
    for got, want in zip(found, by_hand(model[0], x.detach(), dy, exponent), strict=True):
        assert_bit_equal(got, want)
    bias = model[0].bias.grad
    assert bool(bias.isfinite().all()) == (exponent < 40)
    assert bool(bias.any()) == (exponent > 0)


X = torch.ones(3, 4)


class Noting(nn.Linear):
    """A layer that notes the gradients of its product, not the gradients of its result."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(self.seen.append)
        return y.clone()


def blocks() -> nn.Sequential:
    inner = nn.Sequential(Noting(4, 4), nn.ReLU(inplace=True), Noting(4, 4))
    return nn.Sequential(Noting(4, 4), nn.ReLU(inplace=True), inner, Noting(4, 2))


@rows(
    "exponents, want",
    ({"0": 3}, (8.0, 1.0, 1.0, 1.0)), ({"2": 3}, (1.0, 8.0, 8.0, 1.0)),
    ({"2.0": 5, "2*": 3}, (1.0, 32.0, 8.0, 1.0)), ({"2*": 3, "2.0": 5}, (1.0, 8.0, 8.0, 1.0)),
    ({"2": 4, "2.2": 0}, (1.0, 16.0, 1.0, 1.0)), ({"*": -2}, (0.25, 0.25, 0.25, 0.25)),
)  # fmt: skip
def test_exponents_are_those_of_the_first_glob(exponents: dict[str, int], want: tuple) -> None:
    model = blocks()
    plain = step(model, model, X)
    with layer_scales(model, exponents):
        same(step(model, model, X), plain)
    seen = [layer.seen for layer in model.modules() if isinstance(layer, Noting)]
    assert [(scaled / g).nan_to_num(0).max() for g, scaled in seen] == [*want]


def test_tied_weight_gets_both_gradients_unscaled() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    plain = step(model, model, X)
    layer_scales(model, {"1": 7})
    same(step(model, model, X), plain)


def test_copies_and_packed_sequences() -> None:
    model = nn.ModuleDict({"layer": layer_cases.plain("LSTM")})
    x = torch.randn(4, 2, 5, requires_grad=True)

    def derivative(of: nn.ModuleDict) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, [2, 2, 1, 1], batch_first=True)
        output, (h, c) = of["layer"](packed)
        loss = output.data.square().sum() + h.sum() * c.square().sum()
        return torch.autograd.grad(loss, x)[0]

    plain = derivative(model)
    layer_scales(model, {"layer": 11})
    assert_bit_equal(derivative(model), plain)
    assert_bit_equal(derivative(copy.deepcopy(model)), plain)


def test_second_derivatives_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    layer_scales(model, {"0": 11})
    x = X.clone().requires_grad_()
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
        assert not model(X).requires_grad
    model(X).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


WRONG = [
    ({"0": 1.5}, TypeError, "exponent of '0': expected an int, got float 1.5"),
    ({"0": True}, TypeError, "expected an int, got bool"),
    ({"0": 127}, ValueError, "expected -126 to 126, got 127"),
    ({"head": 1}, ValueError, "'head' matches no module; the model has 0, 1, 2, 2.0"),
]
test_wrong_input_is_refused = refuses(
    layer_scales, [((blocks(), exponents), {}, *row) for exponents, *row in WRONG]
)

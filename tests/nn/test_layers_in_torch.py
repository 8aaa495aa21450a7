"""Attention, recurrent layers, norms and softmax under autocast, checkpoints, the compiler."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC

NATIVE = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2")
X = torch.randn(3, 4, 8)
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "MultiheadAttention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "LSTM": lambda: nn.LSTM(8, 6, 2, proj_size=3, batch_first=True),
    "GRU": lambda: nn.GRU(8, 6, bidirectional=True),
    "RNN": lambda: nn.RNN(8, 6, nonlinearity="relu"),
    "LayerNorm": lambda: nn.LayerNorm(8),
    "BatchNorm1d": lambda: nn.BatchNorm1d(4),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "RMSNorm": lambda: nn.RMSNorm(8),
    "Softmax": lambda: nn.Softmax(-1),
    "GELU": lambda: nn.GELU(),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def converted(name: str, recipe: lp.Recipe) -> nn.Module:
    torch.manual_seed(7)
    layer = LAYERS[name]()
    return lp.convert(layer, {type(layer): recipe})


def call(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x, x, x) if isinstance(layer, nn.MultiheadAttention) else layer(x)
    return y if isinstance(y, torch.Tensor) else y[0]


def gradients(layer: nn.Module, does: Callable[..., Any] = call) -> list[torch.Tensor]:
    x = X.clone().requires_grad_()
    torch.manual_seed(5)
    y = does(layer, x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]


def same(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for a, c in zip(got, want, strict=True):
        assert_bit_equal(a, c)


@every_layer
@pytest.mark.parametrize("recipe", [DETERMINISTIC, NATIVE], ids=["emulated", "native sums"])
def test_autocast_changes_nothing(name: str, recipe: lp.Recipe) -> None:
    layer = converted(name, recipe)

    def cast(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return call(layer, x)

    same(gradients(layer, cast), gradients(layer))


@every_layer
def test_checkpoints_draw_the_same(name: str) -> None:
    layer = converted(name, STOCHASTIC)

    def recomputed(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(call, layer, x, use_reentrant=False)

    same(gradients(layer, recomputed), gradients(layer))


@every_layer
def test_a_second_derivative_is_refused(name: str) -> None:
    x = X.clone().requires_grad_()
    y = call(converted(name, DETERMINISTIC), x)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@every_layer
def test_converts_on_the_meta_device(name: str) -> None:
    layer = converted(name, DETERMINISTIC).to("meta")
    assert call(layer, X.to("meta")).shape == call(LAYERS[name](), X).shape


@every_layer
def test_seed_from_makes_a_layer_repeat_itself(name: str) -> None:
    layer = converted(name, STOCHASTIC).eval()
    runs = []
    for _ in range(2):
        with lp.seed_from(torch.tensor(3)):
            runs.append(call(layer, X))
    assert_bit_equal(*runs)
    if name != "GELU":
        assert not torch.equal(runs[0], call(layer, X))


@every_layer
def test_zero_rows(name: str) -> None:
    if name in ("GRU", "RNN", "BatchNorm1d"):
        pytest.skip("its first dimension is the sequence, or what it sums over")
    layer = converted(name, DETERMINISTIC)
    x = torch.randn(0, 4, 8, requires_grad=True)
    call(layer, x).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape


def test_layers_inside_a_model_with_functions_take_one_recipe() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.norm = nn.LSTM(8, 6), nn.LayerNorm(6)
            self.attention = nn.MultiheadAttention(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.lstm(x)[0])
            return self.attention(y, y, y)[0] @ self.attention.out_proj.weight

    torch.manual_seed(1)
    model = Tagger()
    plain = model(X)
    lp.convert(model, {"*": DETERMINISTIC, nn.LayerNorm: NATIVE})
    assert model.norm.recipe == DETERMINISTIC
    assert lp.nn.summary(model, X).share == 1
    assert not torch.allclose(model(X), plain)
    lp.revert(model)
    assert_bit_equal(model(X), plain)


def test_packed_sequences_go_through_a_converted_layer() -> None:
    layer = converted("GRU", DETERMINISTIC)
    packed = pack_sequence([X[0], X[1, :2]])
    y, last = layer(packed)
    apart = layer(X[0])
    assert_bit_equal(last[:, 0], apart[1])
    assert type(y) is type(packed)

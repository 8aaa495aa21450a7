"""The tensors that layers keep for backward: codes that give the same bits back."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import lpkernels as lp
from lpkernels.functional import layer
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES, STOCHASTIC
from tests.support.autograd import compiled, kept_bytes, same

F = lp.functional
SUMS = {"fprop": "e6m9", "dgrad": "e6m9", "wgrad": "e6m9"}
X = torch.randn(4, 6, 5, 5)


LAYERS: dict[str, Callable[[Any], tuple[nn.Module, list[torch.Tensor]]]] = {
    "linear": lambda r: (lp.nn.Linear(5, 3, recipe=r), [X]),
    "conv": lambda r: (lp.nn.Conv2d(6, 4, 3, padding=1, recipe=r), [X]),
    "conv_transpose": lambda r: (lp.nn.ConvTranspose2d(6, 4, 3, stride=2, recipe=r), [X]),
    "bilinear": lambda r: (lp.nn.Bilinear(5, 5, 3, recipe=r), [X, X + 1]),
    "attention": lambda r: (
        lp.nn.MultiheadAttention(6, 2, recipe=r),
        [X[0].mT.reshape(5, 5, 6)] * 3,
    ),
    "lstm": lambda r: (lp.nn.LSTM(5, 3, 2, proj_size=2, recipe=r), [X[0]]),
    "gru": lambda r: (lp.nn.GRU(5, 3, bidirectional=True, recipe=r), [X[0]]),
}
FORMATS = {
    "e5m2": lp.Recipe(input="e5m2", weight="e4m3", **SUMS),
    "native": lp.Recipe(input="e5m2", weight="e4m3", fprop="e6m9"),
    "block": lp.Recipe(input="block4_e2m1", weight="block4_e4m3", **SUMS),
    "fixed": lp.Recipe(input="fixed6_f3", weight="fixed8_f6", **SUMS),
    "fp4": lp.Recipe(input="fp4_e2m1:stochastic", weight="fp4_e2m1", **SUMS),
    "affine": lp.Recipe(input="affine4", weight="affine8", **SUMS),
    **RECIPES,
}


def gradients(layer: nn.Module, inputs: list[torch.Tensor], packs: bool) -> list[torch.Tensor]:
    torch.manual_seed(7)
    leaves = [x.clone().requires_grad_() for x in inputs[:1]] * len(inputs)
    leaves = leaves if inputs[0] is inputs[-1] else [x.clone().requires_grad_() for x in inputs]
    with F.packed_activations(packs):
        y = layer(*leaves)
    y = y if isinstance(y, torch.Tensor) else y[0]
    wanted = list({id(t): t for t in (*leaves, *layer.parameters())}.values())
    return [y.detach(), *torch.autograd.grad(y.square().sum(), wanted)]


@pytest.mark.parametrize("recipe", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("kind", LAYERS)
def test_bits_are_the_same_packed_or_not(kind: str, recipe: lp.Recipe) -> None:
    layer, inputs = LAYERS[kind](recipe)
    same(gradients(layer, inputs, True), gradients(layer, inputs, False))


@pytest.mark.parametrize("text, bits", [
    ("e5m2", 8), ("e4m3fn", 8), ("fp4_e2m1", 4), ("e5m2:stochastic", 8),
    ("fixed6_f3", 6), ("bf16", 16),
])  # fmt: skip
@pytest.mark.parametrize("acc", ["e6m9", "native"])
def test_an_activation_is_kept_in_the_bits_of_its_format(text: str, bits: int, acc: str) -> None:
    recipe = lp.Recipe(input=text, fprop=acc, dgrad=acc, wgrad=acc)
    layer = lp.nn.Conv2d(6, 4, 3, recipe=recipe)
    with kept_bytes(*layer.parameters()) as found:
        layer(X.clone().requires_grad_())
    seed = 8 if recipe.is_stochastic else 0
    assert sum(found.values()) == X.numel() * bits // 8 + seed


def test_a_tensor_that_a_recipe_does_not_round_is_kept_whole() -> None:
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    for recipe in (lp.Recipe(**SUMS), lp.Recipe(input="fp32", **SUMS), FORMATS["affine"]):
        kept = F.linear(x, w, recipe=recipe).grad_fn.saved_tensors
        assert kept[0].dtype == torch.float32 and kept[0].shape == x.shape


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.0, 2.0**-140])
@pytest.mark.parametrize("text", [
    "e5m2", "e4m3fn", "e5m0", "fixed8_f4", "fp4_e2m1", "block4_e2m1", "int8_training",
    "block32_k_e2m1_up_deepgemm", "block4_e2m1_se4m3none", "block32_k_e4m3_up", "block2_k_e5m2",
    "block16_k_e2m1_se4m3fn_t", "tile4x2_k_e4m3_up",
])  # fmt: skip
def test_values_are_kept_with_a_code_or_without(text: str, value: float) -> None:
    """wgrad reads blocks along k in columns, which are kept apart from their scales."""
    named = text in lp.recipes()
    layer = lp.nn.Linear(5, 3, recipe=text if named else lp.Recipe(input=text, fprop="e6m9"))
    x = X[0] * torch.exp2(torch.arange(-60, 60, 20).float())[:, None, None]
    x[0, :4] = value
    same(gradients(layer, [x], True), gradients(layer, [x], False))


class Branches(nn.Module):
    """Three layers that read one tensor."""

    def __init__(self, recipe: lp.Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.layers = nn.ModuleList(lp.nn.Linear(5, 5, recipe=recipe) for _ in range(3))

    def results(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = x * 1
        return [layer(x) for layer in self.layers]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(self.results(x))


def test_layers_that_round_a_tensor_alike_share_its_codes() -> None:
    x = X[0].clone().requires_grad_()
    sizes = []
    for recipe in (DETERMINISTIC, STOCHASTIC):
        model = Branches(recipe)
        with kept_bytes(*model.parameters()) as found:
            model(x)
        # A seed and a rounded weight are kept too; this leaves them out.
        sizes.append(sorted(n for n in found.values() if n > 25))
    assert sizes == [[x.numel()], [x.numel()] * 3]


def _in_place(x: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        x.copy_(values)


def _through_data(x: torch.Tensor, values: torch.Tensor) -> None:
    x.data.copy_(values)


def _with_new_data(x: torch.Tensor, values: torch.Tensor) -> None:
    x.data = values.clone()


def _through_numpy(x: torch.Tensor, values: torch.Tensor) -> None:
    x.detach().numpy()[...] = values.numpy()


# Only the first changes the version of a tensor, too.
CHANGES = (_in_place, _through_data, _with_new_data, _through_numpy)


def weight_gradients(layer: nn.Module, x: torch.Tensor, inputs: int) -> list[torch.Tensor]:
    y = layer(*[x] * inputs)
    y = y if isinstance(y, torch.Tensor) else y[0]
    return list(torch.autograd.grad(y.square().sum(), list(layer.parameters())))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", LAYERS)
def test_codes_are_of_the_tensor_as_it_is(kind: str, change: Callable[..., None]) -> None:
    (first, inputs), (second, _) = (LAYERS[kind](DETERMINISTIC) for _ in range(2))
    x = inputs[0].clone().requires_grad_() * 1
    first(*[x] * len(inputs))
    changed = inputs[0] * 3
    change(x, changed)
    got = weight_gradients(second, x, len(inputs))
    same(got, weight_gradients(second, changed, len(inputs)))


@pytest.mark.parametrize("change", CHANGES[1:])
def test_a_layer_keeps_what_it_read(change: Callable[..., None]) -> None:
    """The first layer does not see that its input changes later."""
    first, second = (lp.nn.Linear(5, 5, recipe=DETERMINISTIC) for _ in range(2))
    x = X[0].clone().requires_grad_() * 1
    y = first(x)
    change(x, X[0] * 3)
    second(x)
    (got,) = torch.autograd.grad(y.square().sum(), first.weight)
    assert_bit_equal(got, weight_gradients(first, X[0], 1)[0])


def test_codes_that_the_host_cannot_read_are_not_shared() -> None:
    """A fake tensor has no bytes, and a device would have to be waited for."""
    with FakeTensorMode():
        model = Branches(DETERMINISTIC)
        x = torch.empty(6, 5, 5, requires_grad=True)
        codes = [y.grad_fn.saved_tensors[0] for y in model.results(x)]
    assert len({id(each) for each in codes}) == 3


def test_packing_compiles() -> None:
    layer = lp.nn.Linear(5, 3, recipe=DETERMINISTIC)
    want = gradients(layer, [X], True)
    for packs in (True, False):
        same(gradients(compiled(layer), [X], packs), want)


def test_blocks_nest_and_end() -> None:
    x, w = X[0].clone().requires_grad_(), torch.randn(3, 5)

    def packs() -> bool:
        y = F.linear(x, w.requires_grad_(), recipe=DETERMINISTIC)
        return y.grad_fn.saved_tensors[0].dtype == torch.uint8

    with F.packed_activations(False):
        with F.packed_activations(True):
            assert packs()
        assert not packs()
    with pytest.raises(RuntimeError, match="stop"), F.packed_activations(False):
        raise RuntimeError("stop")
    assert packs()


def test_nothing_is_packed_while_a_graph_is_captured(monkeypatch):
    """Packing waits for the device, which a capture forbids."""
    x = SimpleNamespace(
        device=torch.device("cuda"), is_cpu=False, is_cuda=True, is_meta=False, numel=lambda: 1
    )
    monkeypatch.setattr(layer.ops, "packs_at_once", lambda device: True)
    for captures in (False, True):
        monkeypatch.setattr(
            torch.cuda, "is_current_stream_capturing", lambda answer=captures: answer
        )
        assert layer.packs(x) is not captures

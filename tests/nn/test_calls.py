"""convert(functions=True): the emulated calls, the recipe of each, and life with torch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.nn.layer_cases import assert_steps_alike, same, step
from tests.nn.policy_models import converted
from tests.support.autograd import Computes

lpf = lp.functional
FP8 = lp.recipe("fp8_wang2018")
OTHER = lp.Recipe(fprop="e5m3")


class Block(nn.Module):
    """A layer and a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mixing = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) @ self.mixing


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()
        self.head = nn.Linear(4, 3)
        self.checkpointed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = partial(checkpoint, self.first, use_reentrant=False)
        x = first(x) if self.checkpointed else self.first(x)
        x = torch.relu(self.second(x))
        return torch.matmul(self.head(x), self.head.weight)


def block(x: torch.Tensor, module: Block, layer: Any, own: Any) -> torch.Tensor:
    y = lpf.linear(x, module.layer.weight, module.layer.bias, recipe=layer)
    return lpf.matmul(y, module.mixing, recipe=own)


def network(x: torch.Tensor, net: Net, recipes: dict[str, Any]) -> torch.Tensor:
    """Net's function with these recipes of its layers and of the modules that call."""
    x = block(x, net.first, recipes["first.layer"], recipes["first"])
    x = torch.relu(block(x, net.second, recipes["second.layer"], recipes["second"]))
    y = lpf.linear(x, net.head.weight, net.head.bias, recipe=recipes["head"])
    return lpf.matmul(y, net.head.weight, recipe=recipes[""])


NAMES = ["", "first", "first.layer", "second", "second.layer", "head"]
X = torch.randn(2, 4)


def by_mapping(net: Net) -> None:
    lp.convert(net, {"first*": OTHER, "head": FP8, "": DETERMINISTIC})


def twice(net: Net) -> None:
    lp.convert(net, DETERMINISTIC, include="second*")
    lp.convert(net, OTHER, include=["first*", "head"])


def set_afterwards(net: Net) -> None:
    lp.set_recipe(lp.convert(net, DETERMINISTIC), {Block: OTHER})


def with_options(**options: Any) -> Callable[[Net], Any]:
    return lambda net: lp.convert(net, DETERMINISTIC, **options)


LAYERS = ["first.layer", "second.layer", "head"]


@pytest.mark.parametrize("change, recipes", [
    (with_options(), dict.fromkeys(NAMES, DETERMINISTIC)),
    (with_options(functions=False), dict.fromkeys(LAYERS, DETERMINISTIC)),
    (with_options(include=nn.Linear), dict.fromkeys(LAYERS, DETERMINISTIC)),
    (with_options(exclude="first*"),
     dict.fromkeys(["", "second", "second.layer", "head"], DETERMINISTIC)),
    (with_options(exclude=Block), dict.fromkeys(["", *LAYERS], DETERMINISTIC)),
    (with_options(include=Net), {"": DETERMINISTIC}),
    (by_mapping, {"first": OTHER, "first.layer": OTHER, "head": FP8, "": DETERMINISTIC}),
    (twice, {"first": OTHER, "first.layer": OTHER, "head": OTHER, "second": DETERMINISTIC,
             "second.layer": DETERMINISTIC}),
    (set_afterwards,
     dict.fromkeys(NAMES, DETERMINISTIC) | dict.fromkeys(["first", "second"], OTHER)),
], ids="all layers linear not_first no_blocks net mapping twice set_after".split())  # fmt: skip
def test_a_call_has_the_recipe_of_the_innermost_module(change: Any, recipes: Any) -> None:
    net = Net()
    before, plain = [type(m) for m in net.modules()], net(X)
    for _ in range(2):
        change(net)
        assert converted(net) == recipes
        assert_bit_equal(net(X), network(X, net, dict.fromkeys(NAMES, "fp32") | recipes))
    assert [type(m) for m in lp.revert(net).modules()] == before
    assert not converted(net)
    assert_bit_equal(net(X), plain)


@pytest.mark.parametrize(
    ("exclude", "dynamic"), [(None, True), (["first.layer", "second"], False)], ids=["all", "some"]
)
def test_calls_compile_into_one_graph(exclude: Any, dynamic: bool) -> None:
    net = lp.convert(Net(), STOCHASTIC, exclude=exclude)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    assert_steps_alike(net, compiled, X)


def test_calls_are_exported_and_checkpointed_modules_compute_the_same_again() -> None:
    net = lp.convert(Net(), DETERMINISTIC, exclude="second")
    program = torch.export.export(net, (X,))
    assert_bit_equal(program.module()(X), net(X))
    net = lp.convert(Net(), STOCHASTIC)
    want = step(net, net, X)
    net.checkpointed = True
    same(step(net, net, X), want)


def test_a_parametrization_of_the_users_is_emulated() -> None:
    net = nn.Sequential(nn.Linear(4, 3))
    factor = nn.Parameter(torch.randn(3, 3))
    scaled = Computes(lambda m, w: m.factor @ w, factor=factor)
    parametrize.register_parametrization(net[0], "weight", scaled)
    weight = net[0].parametrizations.weight.original
    lp.convert(net, DETERMINISTIC)
    product = lpf.matmul(factor, weight, recipe=DETERMINISTIC)
    assert_bit_equal(net(X), lpf.linear(X, product, net[0].bias, recipe=DETERMINISTIC))


def around(layer: nn.Module) -> Any:
    """A module that computes what its layer does."""
    return Computes(lambda m, x: m.layer(x), layer=layer)


def test_a_parametrization_of_torch_stays_torchs() -> None:
    net = around(orthogonal(nn.Linear(4, 3), orthogonal_map="householder"))
    weight = net.layer.weight.detach()
    before = [type(m) for m in net.modules()]
    lp.convert(net, DETERMINISTIC)
    assert_bit_equal(net(X), lpf.linear(X, weight, net.layer.bias, recipe=DETERMINISTIC))
    names = [cls.__name__ for cls in before]
    assert [type(m).__name__ for m in lp.revert(net).modules()] == names


A, B, W = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(5, 4)


def inside(does: Callable[..., Any], recipe: Any = DETERMINISTIC) -> Any:
    return lp.convert(Computes(lambda m: does()), recipe)()


@pytest.mark.parametrize(
    "call", [lambda: A.double() @ B.double(), lambda: F.linear(A, W.double())], ids=["@", "linear"]
)
def test_float64_operands_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="an operand is float64"):
        inside(call)
    assert torch._C._len_torch_function_stack() == 0


def test_an_error_in_forward_leaves_no_mode_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        inside(lambda: 1 / 0)
    assert torch._C._len_torch_function_stack() == 0


def test_an_excluded_lazy_layer_stays_torchs() -> None:
    net = lp.convert(around(nn.LazyLinear(3)), DETERMINISTIC, exclude="layer")
    for _ in range(2):
        assert_bit_equal(net(X), F.linear(X, net.layer.weight, net.layer.bias))
    assert type(lp.revert(net).layer) is nn.Linear


def test_a_convolution_with_its_own_conv_forward_is_followed() -> None:
    class Halved(nn.Conv1d):
        def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
            return super()._conv_forward(input, weight / 2, bias)

    layer = lp.convert(Halved(4, 3, 2), DETERMINISTIC)
    image = torch.randn(2, 4, 6)
    want = lpf.conv1d(image, layer.weight / 2, layer.bias, recipe=DETERMINISTIC)
    assert_bit_equal(layer(image), want)

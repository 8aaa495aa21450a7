"""The backward pass of a user's torch.autograd.Function in a converted model."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.nn.layer_cases import same
from tests.support.autograd import Computes

OTHER = lp.Recipe(input="e4m3", fprop="e5m3", dgrad="e5m4", wgrad="e5m5")
X, W, G = torch.randn(6, 4), torch.randn(5, 4), torch.randn(6, 5)


class Product(torch.autograd.Function):
    """x @ w.T with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


class Boxed(Product):
    """Its gradients come in a list, where torch knows that (2.13)."""

    boxed_grads_call = True

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return Product.backward(ctx, g[0] if isinstance(g, list) else g)


class Halves(torch.autograd.Function):
    """Two results, and a forward that does not know the context."""

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x @ w[:2].t(), x @ w[2:].t()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Any:
        g = torch.cat([first, second], 1)
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise ZeroDivisionError


def apply(module: Any, x: Tensor) -> Tensor:
    return Product.apply(x, module.w)


def weighted(function: Callable[..., Any] = apply, **parts: nn.Module) -> Computes:
    return Computes(function, w=nn.Parameter(W.clone()), **parts)


def around(net: nn.Module, function: Callable[..., Any] = lambda m, x: m.net(x)) -> Computes:
    """A module around net."""
    return Computes(function, net=net)


def gradients(net: Any, x: Tensor = X, *, of: tuple[Tensor, ...] = ()) -> list[Tensor]:
    """The gradients of x, and of the model's weights or other tensors."""
    leaf = x.clone().requires_grad_()
    wanted = of or tuple(net.parameters())
    for tensor in wanted:
        tensor.grad = None
    torch.manual_seed(3)
    net(leaf).backward(G)
    return [tensor.grad for tensor in (leaf, *wanted)]


def products(recipe: Any) -> list[Tensor]:
    """The gradients of x and w in `Product`."""
    return [lp.matmul(G, W, recipe=recipe), lp.matmul(G.t(), X, recipe=recipe)]


@dataclass
class Output:
    value: Any


# What a forward returns, and where the products are in it.
RESULTS: dict[str, tuple[Callable[..., Any], Callable[[Any], Tensor]]] = {
    "tensor": (apply, lambda y: y),
    "changed in place": (lambda m, x: apply(m, x).mul_(1.0), lambda y: y),
    "list": (lambda m, x: [None, (apply(m, x),)], lambda y: y[1][0]),
    "dict": (lambda m, x: {"logits": apply(m, x)}, lambda y: y["logits"]),
    "dataclass": (lambda m, x: Output([apply(m, x)]), lambda y: y.value[0]),
    "gradients in a list": (lambda m, x: Boxed.apply(x, m.w), lambda y: y),
    "two results": (lambda m, x: Halves.apply(x, m.w), lambda y: torch.cat(y, 1)),
    "through a layer": (lambda m, x: m.same(apply(m, x)), lambda y: y),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC])
def test_products_in_backward_are_emulated(name: str, recipe: lp.Recipe) -> None:
    function, read = RESULTS[name]
    net = lp.convert(weighted(function, same=nn.Identity()), recipe)
    got = gradients(around(net, lambda m, x: read(m.net(x))))
    # The draws of the forward pass come first.
    torch.manual_seed(3)
    for w in (W[:2], W[2:]) if name == "two results" else (W,):
        lp.matmul(X, w.t(), recipe=recipe)
    same(got, products(recipe))


@pytest.mark.parametrize(
    "arguments, recipe",
    [
        ({}, DETERMINISTIC), ({"include": "net"}, DETERMINISTIC),
        ({"functions": False}, "fp32"), ({"exclude": "net"}, "fp32"),
    ],
)  # fmt: skip
def test_a_function_has_the_recipe_of_the_module_that_calls_it(arguments: Any, recipe: Any) -> None:
    net = Computes(lambda m, x: m.net(x), net=weighted(), layer=nn.Linear(2, 2))
    lp.convert(net, DETERMINISTIC, **arguments)
    same(gradients(net, of=(net.net.w,)), products(recipe))


def test_modules_within_one_another_keep_their_recipes() -> None:
    v = nn.Parameter(torch.randn(5, 5))
    net = Computes(lambda m, x: Product.apply(m.net(x), m.v), net=weighted(), v=v)
    lp.convert(net, {"net": OTHER, "": DETERMINISTIC})
    y = lp.matmul(X, W.t(), recipe=OTHER)
    g = lp.matmul(G, v, recipe=DETERMINISTIC)
    want = [lp.matmul(g, W, recipe=OTHER), lp.matmul(g.t(), X, recipe=OTHER)]
    want.append(lp.matmul(G.t(), y, recipe=DETERMINISTIC))
    same(gradients(net, of=(net.net.w, v)), want)


def test_backward_may_run_again_and_the_graph_goes_when_its_result_goes() -> None:
    net = lp.convert(weighted(), DETERMINISTIC)
    leaf = X.clone().requires_grad_()
    result = net(leaf)
    for _ in range(2):
        found = torch.autograd.grad(result, [leaf, net.w], G, retain_graph=True)
        same(found, products(DETERMINISTIC))
    node = weakref.ref(result.grad_fn)
    gc.disable()
    try:
        del result
        assert node() is None
    finally:
        gc.enable()


def test_an_error_in_backward_leaves_no_mode_behind() -> None:
    net = lp.convert(weighted(lambda m, x: Fails.apply(apply(m, x))), DETERMINISTIC)
    with pytest.raises(ZeroDivisionError):
        gradients(net)
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_module_has_the_same_gradients(recipe: Any, reentrant: bool) -> None:
    def checkpointed(module: Any, x: Tensor) -> Tensor:
        return checkpoint(module.net, x, use_reentrant=reentrant)

    want = gradients(lp.convert(around(weighted()), recipe))
    same(gradients(lp.convert(around(weighted(), checkpointed), recipe)), want)


def test_compiled_backward_is_the_same() -> None:
    net = lp.convert(weighted(lambda m, x: m.head(apply(m, x)), head=nn.Linear(5, 5)), OTHER)
    want = gradients(net)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    same(gradients(compiled, of=tuple(net.parameters())), want)


def test_random_bits_in_a_compiled_backward_are_refused() -> None:
    compiled = torch.compile(lp.convert(weighted(), STOCHASTIC), backend="aot_eager")
    with pytest.raises(Exception, match=r"autograd\.Function of yours draws; leave the module"):
        gradients(compiled, of=(X,))

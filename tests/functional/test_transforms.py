"""torch.func's transforms of emulated arithmetic: gradients have the bits of autograd's, from the
same seeds, and derivatives that do not exist are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves

import lpkernels as lp
from tests.functional.calls import CALLS
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.support.autograd import Computes, flat, gradients, how, output_gradients, same

RECIPES = pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC], ids="ds")
# An operator is called once for each sample; torch.compile looks through caches.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def network(recipe: Any = DETERMINISTIC) -> tuple[nn.Module, dict[str, Tensor], Tensor]:
    """A converted model with a call of its own, its parameters, and a batch."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))
    model = Computes(lambda m, x: m.layers(x) @ m.layers[2].weight, layers=layers)
    lp.convert(model, recipe)
    return model, {name: p.detach() for name, p in model.named_parameters()}, torch.randn(3, 5)


def sums(model: nn.Module, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    return functional_call(model, tensors, (x,)).sum()


def seeded(function: Callable[..., Any], *args: Any) -> list[Tensor]:
    torch.manual_seed(4)
    return tree_leaves(function(*args))


@pytest.mark.parametrize("name", CALLS)
@RECIPES
def test_the_gradients_of_vjp_are_those_of_autograd(name: str, recipe: lp.Recipe) -> None:
    call = CALLS[name]
    tensors = [x.detach() for x in call.tensors()]

    def results(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat(call(*tensors, recipe=recipe, **how())))

    y, backward = vjp(results, *tensors)
    got = [*y, *backward(tuple(output_gradients(*(t.shape for t in y))))]
    leaves = [x.requires_grad_() for x in tensors]
    same(got, gradients(results(*leaves), leaves))


@RECIPES
def test_the_gradients_of_a_model_are_those_of_autograd(recipe: lp.Recipe) -> None:
    model, parameters, x = network(recipe)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, parameters, (x,)).square().sum()

    asked = [*model.parameters(), x.clone().requires_grad_()]
    want = seeded(lambda: torch.autograd.grad(loss({}, asked[-1]), asked))
    same(seeded(grad(loss, (0, 1)), parameters, x), want)
    same(seeded(grad(loss), parameters, x), want[:-1])


@RECIPES
def test_a_jacobian_has_the_rows_of_one_pass_after_another(recipe: lp.Recipe) -> None:
    model, parameters, x = network(recipe)

    def results(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(model, parameters, (x,))

    def rows() -> list[Tensor]:
        y = model(x)
        basis = torch.eye(y.numel()).unflatten(1, y.shape)
        passes = [torch.autograd.grad(y, model.parameters(), g, retain_graph=True) for g in basis]
        columns = zip(*passes, strict=True)
        return [torch.stack(column).unflatten(0, y.shape) for column in columns]

    want = seeded(rows)
    same(seeded(jacrev(results), parameters), want)
    same(seeded(jacrev(results, chunk_size=5), parameters), want)


def test_what_has_no_further_derivative_says_so_where_it_is_asked_for() -> None:
    x = torch.randn(3, 5)
    for layer, times, message in (
        (nn.Linear(5, 4), 3, "no third derivative of a linear layer"),
        (nn.GRU(5, 4), 2, "no second derivative of a recurrent layer"),
        (nn.LayerNorm(5), 3, "no third derivative of a norm"),
    ):
        lp.convert(layer, {type(layer): DETERMINISTIC})

        def differentiated(x: Tensor, layer: Any = layer) -> Tensor:
            return tree_leaves(layer(x))[0].square().sum()

        for _ in range(times - 1):
            differentiated = lambda x, f=differentiated: grad(f)(x).square().sum()  # noqa: E731
        assert differentiated(x) > 0
        with pytest.raises(NotImplementedError, match=message):
            grad(differentiated)(x)


def test_a_product_of_constants_is_mapped_inside_a_gradient() -> None:
    model, parameters, x = network()

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            teacher = vmap(model)(x[:, None])[:, 0]
        return (functional_call(model, parameters, (x,)) - teacher).sum()

    same(
        tree_leaves(grad(loss)(parameters)), torch.autograd.grad(model(x).sum(), model.parameters())
    )


FORWARD = r"no derivative in forward mode .*jvp, jacfwd, hessian.*jacrev\(jacrev\(f\)\)"
MAPPED = "no gradient of what torch.func.vmap maps"
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "jvp": (lambda f, p, x: jvp(lambda x: f(p, x), (x,), (x,)), FORWARD),
    "jacfwd": (lambda f, p, x: jacfwd(f, 1)(p, x), FORWARD),
    "hessian": (lambda f, p, x: hessian(f, 1)(p, x), FORWARD),
    "jacrev of jacfwd": (lambda f, p, x: jacrev(jacfwd(f, 1), 1)(p, x), FORWARD),
    "vmap of grad": (lambda f, p, x: vmap(grad(f), (None, 0))(p, x), MAPPED),
    "grad of vmap": (lambda f, p, x: grad(lambda p: vmap(lambda x: f(p, x))(x).sum())(p), MAPPED),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_derivatives_are_refused(case: str) -> None:
    transformed, message = REFUSED[case]
    lone = lp.convert(nn.Linear(5, 4, bias=False), DETERMINISTIC)
    weight = {"weight": lone.weight.detach().clone()}
    model, parameters, x = network()
    for module, tensors in ((lone, weight), (model, parameters)):
        with pytest.raises(NotImplementedError, match=message):
            transformed(lambda p, x, module=module: sums(module, p, x), tensors, x)


class Product(torch.autograd.Function):
    """A user's Function, in the form that torch.func takes."""

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return g @ w.mT, x.mT @ g

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor) -> tuple[Tensor, int]:
        return Product.apply(x, w), 0


def test_a_users_function_is_refused_because_its_products_are_hidden() -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 2)
    model = Computes(lambda m, x, w: Product.apply(x, w))
    want = grad(lambda x: model(x, w).sum())(x)
    lp.convert(model, DETERMINISTIC)
    for transformed in (grad(lambda x: model(x, w).sum()), vmap(lambda x: model(x, w).sum())):
        with pytest.raises(
            NotImplementedError, match=r"products of Product, .*not emulated inside"
        ):
            transformed(x[None])
    lp.convert(model, "fp32")
    same([grad(lambda x: model(x, w).sum())(x)], [want])


@pytest.mark.filterwarnings("ignore:.*Dynamo", "ignore:.*lru_cache")
def test_a_compiled_gradient_runs_uncompiled() -> None:
    """The compiler would take the gradient of an operator for zeros."""
    layer = lp.convert(nn.Linear(5, 4), DETERMINISTIC)
    w, x = layer.weight.detach(), torch.randn(3, 5)

    def loss(w: Tensor) -> Tensor:
        return functional_call(layer, {"weight": w}, (x,)).sum()

    want = grad(loss)(w)
    assert want.any()
    for compiled in (torch.compile(grad(loss), backend="eager"),
                     grad(torch.compile(loss, backend="eager"))):  # fmt: skip
        torch.compiler.reset()
        same([compiled(w)], [want])

"""linear: values and gradients against a composition of the reference, and torch's conventions."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from lpkernels.reference import twin
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role, derive_seed
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES, STOCHASTIC

SEED = -123456789

SHAPES = [((7, 5), 3), ((2, 3, 5), 4), ((5,), 3), ((0, 5), 3), ((3, 0), 2), ((1, 1, 1), 1)]


def operands(shape: tuple[int, ...], out_features: int) -> tuple[torch.Tensor, ...]:
    """x, weight and bias that require gradients, and an output gradient."""
    x = torch.randn(shape, requires_grad=True)
    w = torch.randn(out_features, shape[-1], requires_grad=True)
    b = torch.randn(out_features, requires_grad=True)
    return x, w, b, torch.randn(*shape[:-1], out_features)


def expected(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, g: torch.Tensor, recipe: lp.Recipe
) -> list[np.ndarray]:
    """y, dx, dw, db composed of the reference's own quantize and matmul."""

    def rounded(a: np.ndarray, quantizer: Any, role: Role, site: int = SITE_QUANTIZE) -> Any:
        seed = derive_seed(SEED, role)
        return a if quantizer is None else twin.quantize(a, quantizer, seed=seed, site=site)

    def product(a: np.ndarray, c: np.ndarray, bias: Any, acc: Any, role: Role) -> np.ndarray:
        contiguous = np.ascontiguousarray
        return twin.matmul(contiguous(a), contiguous(c), bias, acc, seed=derive_seed(SEED, role))

    rows = x.shape[:-1].numel()
    x2 = x.detach().numpy().reshape(rows, x.shape[-1])
    g2 = g.numpy().reshape(rows, w.shape[0])
    xq = rounded(x2, recipe.input, Role.INPUT)
    wq = rounded(w.detach().numpy(), recipe.weight, Role.WEIGHT)
    bq = rounded(b.detach().numpy(), recipe.bias, Role.BIAS)
    y = product(xq, wq.T, bq, recipe.fprop, Role.FPROP)
    y = rounded(y, recipe.output, Role.OUTPUT, SITE_OUTPUT)
    gq = rounded(g2, recipe.grad_output, Role.GRAD_OUTPUT)
    dx = rounded(
        product(gq, wq, None, recipe.dgrad, Role.DGRAD), recipe.grad_input, Role.GRAD_INPUT
    )
    dw = product(gq.T, xq, None, recipe.wgrad, Role.WGRAD)
    dw = rounded(dw, recipe.grad_weight, Role.GRAD_WEIGHT)
    ones = np.ones((1, rows), np.float32)
    db = product(ones, gq, None, recipe.wgrad, Role.GRAD_BIAS)
    return [y.reshape(*x.shape[:-1], w.shape[0]), dx.reshape(x.shape), dw, db.reshape(-1)]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("shape, out_features", SHAPES, ids=str)
def test_linear_equals_the_composition_of_the_reference(
    recipe: lp.Recipe, shape: tuple[int, ...], out_features: int, backend: str
) -> None:
    x, w, b, g = operands(shape, out_features)
    seed = torch.tensor(SEED)
    y = lp.functional.linear(x, w, b, recipe=recipe, generator=seed, backend=backend)
    got = [y, *torch.autograd.grad(y, (x, w, b), g)]
    for name, a, want in zip(
        ("y", "dx", "dw", "db"), got, expected(x, w, b, g, recipe), strict=True
    ):
        assert_bit_equal(a, want, name)


@pytest.mark.parametrize("shape, out_features", SHAPES, ids=str)
def test_linear_without_rounding_is_torch_within_fp32(
    shape: tuple[int, ...], out_features: int, backend: str
) -> None:
    sums = lp.Recipe(input="fp32", fprop="fp32", dgrad="fp32", wgrad="fp32")
    x, w, b, g = operands(shape, out_features)
    want = F.linear(x, w, b)
    got = lp.functional.linear(x, w, b, recipe=sums, backend=backend)
    torch.testing.assert_close(got, want)
    for a, c in zip(
        torch.autograd.grad(got, (x, w, b), g), torch.autograd.grad(want, (x, w, b), g), strict=True
    ):
        torch.testing.assert_close(a, c)


@pytest.mark.parametrize("native", ["fprop", "dgrad", "wgrad"])
def test_linear_each_product_has_its_own_accumulator(native: str) -> None:
    fields = {"fprop": "e5m7", "dgrad": "e5m6", "wgrad": "e5m5", native: lp.NATIVE}
    mixed, emulated = lp.Recipe(**fields), lp.Recipe(fprop="e5m7", dgrad="e5m6", wgrad="e5m5")
    x, w, b, g = operands((2, 3, 5), 4)

    def run(recipe: lp.Recipe) -> list[torch.Tensor]:
        y = lp.functional.linear(x, w, b, recipe=recipe)
        return [y, *torch.autograd.grad(y, (x, w, b), g)]

    torch_y = F.linear(x, w, b)
    plain = [torch_y, *torch.autograd.grad(torch_y, (x, w, b), g)]
    of = {"fprop": (0,), "dgrad": (1,), "wgrad": (2, 3)}[native]
    for i, (got, rounded, exact) in enumerate(zip(run(mixed), run(emulated), plain, strict=True)):
        if i in of:
            torch.testing.assert_close(got, exact)
        else:
            assert_bit_equal(got, rounded)


def test_linear_with_quantizers_only_is_torch_on_quantised_operands() -> None:
    recipe = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2", output="bf16")
    x, w, b, g = operands((4, 5), 3)
    y = lp.functional.linear(x, w, b, recipe=recipe)
    dx, dw, db = torch.autograd.grad(y, (x, w, b), g)
    xq, wq, gq = lp.quantize(x, "e4m3"), lp.quantize(w, "e5m2"), lp.quantize(g, "e5m2")
    torch.testing.assert_close(y, lp.quantize(F.linear(xq, wq, b), "bf16"))
    torch.testing.assert_close(dx, gq @ wq)
    torch.testing.assert_close(dw, gq.t() @ xq)
    torch.testing.assert_close(db, gq.sum(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_linear_fp32_recipe_is_torchs_own_function(dtype: torch.dtype) -> None:
    x, w, b = torch.randn(4, 5), torch.randn(3, 5), torch.randn(3)
    x, w, b = x.to(dtype), w.to(dtype), b.to(dtype)
    assert_bit_equal(lp.functional.linear(x, w, b, recipe="fp32"), F.linear(x, w, b))
    assert_bit_equal(lp.functional.linear(x, w), F.linear(x, w))


def test_linear_takes_a_recipe_by_name() -> None:
    x, w, b, _ = operands((4, 70), 3)
    by_name = lp.functional.linear(x, w, b, recipe="fp8_wang2018")
    assert_bit_equal(by_name, lp.functional.linear(x, w, b, recipe=lp.recipe("fp8_wang2018")))


@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3)), ids=str)
def test_linear_computes_the_gradients_asked_for(needs: tuple[bool, ...]) -> None:
    x, w, b, g = operands((4, 5), 3)
    seed = torch.tensor(SEED)
    y = lp.functional.linear(x, w, b, recipe=STOCHASTIC, generator=seed)
    every = torch.autograd.grad(y, (x, w, b), g)
    some = [t.detach().requires_grad_(n) for t, n in zip((x, w, b), needs, strict=True)]
    y = lp.functional.linear(*some, recipe=STOCHASTIC, generator=seed)
    assert y.requires_grad == any(needs)
    if any(needs):
        saved_x, saved_w, _ = y.grad_fn.saved_tensors
        assert (saved_x is not None, saved_w is not None) == (needs[1], needs[0])
        y.backward(g)
    for tensor, need, want in zip(some, needs, every, strict=True):
        assert (tensor.grad is not None) == need
        if need:
            assert_bit_equal(tensor.grad, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_linear_widens_narrow_operands_exactly(dtype: torch.dtype) -> None:
    x, w, b, g = operands((4, 5), 3)
    narrow = [t.detach().to(dtype).requires_grad_() for t in (x, w, b)]
    wide = [t.detach().float().requires_grad_() for t in narrow]
    y = lp.functional.linear(*narrow, recipe=DETERMINISTIC)
    assert_bit_equal(y, lp.functional.linear(*wide, recipe=DETERMINISTIC))
    y.backward(g)
    lp.functional.linear(*wide, recipe=DETERMINISTIC).backward(g)
    for a, c in zip(narrow, wide, strict=True):
        assert_bit_equal(a.grad, c.grad.to(dtype))


def test_linear_does_not_depend_on_strides() -> None:
    x, w, b, g = operands((4, 6), 3)
    strided_x = x.detach().t().contiguous().t().requires_grad_()
    strided_w = torch.stack([w.detach(), w.detach()], -1)[..., 0].requires_grad_()
    want = lp.functional.linear(x, w, b, recipe=DETERMINISTIC)
    got = lp.functional.linear(strided_x, strided_w, b, recipe=DETERMINISTIC)
    assert_bit_equal(got, want)
    expanded = g[:1].expand(4, 3)
    dense = expanded.contiguous()
    for a, c in zip(
        torch.autograd.grad(got, (strided_x, strided_w, b), expanded),
        torch.autograd.grad(want, (x, w, b), dense),
        strict=True,
    ):
        assert_bit_equal(a, c)


def test_linear_keeps_the_axis_of_a_format() -> None:
    x, w, _, _ = operands((2, 3, 5), 4)
    fmt = lp.AffineFormat(4, axis=0)
    got = lp.functional.linear(x, w, recipe=lp.Recipe(input=fmt))
    torch.testing.assert_close(got, F.linear(lp.quantize(x, fmt), w))


def test_linear_result_can_be_changed_in_place() -> None:
    x, w, b, _ = operands((2, 3, 5), 4)
    y = lp.functional.linear(x, w, b, recipe=lp.Recipe(input="e4m3"))
    y.relu_().sum().backward()
    assert x.grad is not None


def test_linear_stochastic_repeats_under_manual_seed() -> None:
    x, w, b, g = operands((4, 5), 3)

    def run() -> list[torch.Tensor]:
        y = lp.functional.linear(x, w, b, recipe=STOCHASTIC)
        return [y, *torch.autograd.grad(y, (x, w, b), g)]

    torch.manual_seed(1)
    first, second = run(), run()
    torch.manual_seed(1)
    for a, c in zip(first, run(), strict=True):
        assert_bit_equal(a, c)
    assert not torch.equal(first[0], second[0])


def test_linear_stochastic_takes_one_draw_of_the_generator() -> None:
    x, w, b, g = operands((4, 5), 3)
    generator = torch.Generator().manual_seed(5)
    seed = torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(5))
    y = lp.functional.linear(x, w, b, recipe=STOCHASTIC, generator=generator)
    y.backward(g)
    assert_bit_equal(y, lp.functional.linear(x, w, b, recipe=STOCHASTIC, generator=seed))
    after = torch.Generator().manual_seed(5)
    torch.empty((), dtype=torch.int64).random_(generator=after)
    assert torch.equal(generator.get_state(), after.get_state())


def test_linear_without_stochastic_rounding_draws_nothing() -> None:
    x, w, b, g = operands((4, 5), 3)
    before = torch.get_rng_state()
    lp.functional.linear(x, w, b, recipe=DETERMINISTIC).backward(g)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("reentrant", [False, True])
def test_linear_under_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    x, w, b, g = operands((4, 5), 3)

    def layer(x: torch.Tensor) -> torch.Tensor:
        return lp.functional.linear(x, w, b, recipe=STOCHASTIC)

    torch.manual_seed(1)
    want = torch.autograd.grad(layer(x), (x, w, b), g)
    torch.manual_seed(1)
    checkpoint(layer, x, use_reentrant=reentrant).backward(g)
    for tensor, c in zip((x, w, b), want, strict=True):
        assert_bit_equal(tensor.grad, c)


def test_linear_compiles_into_one_graph() -> None:
    x, w, b, g = operands((4, 5), 3)

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return lp.functional.linear(x, w, b, recipe=STOCHASTIC)

    torch.manual_seed(1)
    want = layer(x, w, b)
    torch.manual_seed(1)
    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, w, b)
    assert_bit_equal(got, want)
    for a, c in zip(
        torch.autograd.grad(got, (x, w, b), g), torch.autograd.grad(want, (x, w, b), g), strict=True
    ):
        assert_bit_equal(a, c)


@pytest.mark.parametrize(
    "recipe", [DETERMINISTIC, lp.Recipe(input="e4m3")], ids=["emulated", "native products"]
)
def test_linear_emulation_ignores_autocast(recipe: lp.Recipe) -> None:
    x, w, b, g = operands((4, 5), 3)
    want = lp.functional.linear(x, w, b, recipe=recipe)
    gradients = torch.autograd.grad(want, (x, w, b), g)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = lp.functional.linear(x, w, b, recipe=recipe)
        assert_bit_equal(got, want)
        for a, c in zip(torch.autograd.grad(got, (x, w, b), g), gradients, strict=True):
            assert_bit_equal(a, c)


def test_linear_fp32_recipe_leaves_autocast_alone() -> None:
    x, w, b, _ = operands((4, 5), 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert lp.functional.linear(x, w, b, recipe="fp32").dtype == torch.bfloat16


def test_linear_refuses_a_second_derivative() -> None:
    x, w, b, _ = operands((4, 5), 3)
    y = lp.functional.linear(x, w, b, recipe=DETERMINISTIC)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(y.square().sum(), x, create_graph=True)


X, W, B = torch.ones(4, 5), torch.ones(3, 5), torch.ones(3)


@pytest.mark.parametrize(
    "arguments, keywords, error, match",
    [
        ((X.double(), W, B), {}, TypeError, r"x is float64.*lp.quantize\(x, fmt\).float\(\)"),
        ((X, W.int(), B), {}, TypeError, r"weight must be float.*int32"),
        ((X.numpy(), W, B), {}, TypeError, r"x must be a torch.Tensor, got ndarray"),
        ((X[:, :4], W, B), {}, ValueError, r"x has shape \(4, 4\).*in_features=5"),
        ((X[0, 0], W, B), {}, ValueError, r"x has shape \(\).*must be \(\.\.\., 5\)"),
        ((X, W[0], B), {}, ValueError, r"weight has shape \(5,\); expected \(out_features, in"),
        ((X, W, B[:2]), {}, ValueError, r"bias has shape \(2,\).*bias must be \(3,\)"),
        ((X, W.to("meta"), B), {}, ValueError, r"one device.*weight on meta"),
        ((X, W, B), {"recipe": "fp9"}, ValueError, r"unknown name 'fp9'"),
        ((X, W, B), {"recipe": 8}, TypeError, r"expected a Recipe or its name, got 8"),
        ((X, W, B), {"backend": "gpu"}, ValueError, r"unknown backend 'gpu'"),
        ((X, W, B), {"generator": 3}, TypeError, r"generator must be a torch.Generator.*got int"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_linear_refuses_wrong_arguments(
    arguments: tuple[Any, ...], keywords: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        lp.functional.linear(*arguments, **{"recipe": DETERMINISTIC, **keywords})

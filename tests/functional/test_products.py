"""Products of two activations: matmul under a recipe, bmm, baddbmm, bilinear."""

from typing import Any

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.reference import twin
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role, derive_seed
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import ACCUMULATORS_ONLY, DETERMINISTIC, RECIPES, STOCHASTIC

SEED = 987654321
SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
NATIVE_SUMS = lp.Recipe(input="fp32", weight="fp32")
recipes = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
F = lp.functional


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def gradients(y: torch.Tensor, tensors: Any) -> list[torch.Tensor]:
    """y and the gradients of tensors, for one fixed output gradient."""
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    return [y.detach(), *torch.autograd.grad(y, tensors, g)]


def same(got: list[torch.Tensor], want: Any) -> None:
    for a, c in zip(got, want, strict=True):
        assert_bit_equal(a, c)


def close(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for a, c in zip(got, want, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-5)


class Reference:
    """The steps of one product of a call, as the reference makes them."""

    def __init__(self, recipe: lp.Recipe, seed: int = SEED) -> None:
        self.recipe, self.seed = recipe, seed

    def rounded(self, a: np.ndarray, field: str, site: int = SITE_QUANTIZE) -> np.ndarray:
        quantizer = getattr(self.recipe, field)
        role = Role[field.upper()]
        a = np.ascontiguousarray(a)
        if quantizer is None:
            return a
        return twin.quantize(a, quantizer, seed=derive_seed(self.seed, role), site=site)

    def matmul(self, a: Any, b: Any, product: str, role: Role | None = None) -> np.ndarray:
        seed = derive_seed(self.seed, Role[product.upper()] if role is None else role)
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        return twin.matmul(a, b, None, getattr(self.recipe, product), seed=seed)


def transposed(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.swapaxes(a, -1, -2))


def expected_bmm(recipe: lp.Recipe, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """y, da, db of bmm composed of the reference's own quantize and matmul."""
    ref = Reference(recipe)
    aq, wq = ref.rounded(a, "input"), ref.rounded(transposed(b), "weight")
    y = ref.rounded(ref.matmul(aq, transposed(wq), "fprop"), "output", SITE_OUTPUT)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).numpy()
    gq = ref.rounded(g, "grad_output")
    da = ref.rounded(ref.matmul(gq, wq, "dgrad"), "grad_input")
    dw = ref.rounded(ref.matmul(transposed(gq), aq, "wgrad"), "grad_weight")
    return [y, da, transposed(dw)]


@recipes
def test_bmm_equals_the_composition_of_the_reference(recipe: lp.Recipe, backend: str) -> None:
    a, b = leaves((2, 3, 7), (2, 7, 4))
    y = F.bmm(a, b, recipe=recipe, generator=torch.tensor(SEED), backend=backend)
    same(gradients(y, (a, b)), expected_bmm(recipe, a.detach().numpy(), b.detach().numpy()))


@recipes
def test_matmul_by_a_recipe_is_the_linear_layer(recipe: lp.Recipe, backend: str) -> None:
    x, w = leaves((2, 3, 7), (4, 7))
    call: dict[str, Any] = {"generator": torch.tensor(SEED), "backend": backend}
    got = F.matmul(x, w.t(), recipe=recipe, **call)
    want = F.linear(x, w, recipe=recipe, **call)
    same(gradients(got, (x, w)), gradients(want, (x, w)))


@pytest.mark.parametrize("recipe", [SUMS, NATIVE_SUMS], ids=["emulated", "native"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((3, 0), (0, 2)),
    ],
    ids=str,
)
def test_matmul_by_a_recipe_has_torchs_shapes(recipe: lp.Recipe, shapes: Any) -> None:
    tensors = leaves(*shapes)
    got, want = F.matmul(*tensors, recipe=recipe), torch.matmul(*tensors)
    assert got.shape == want.shape
    close(gradients(got, tensors), gradients(want, tensors))


def test_matmul_sums_the_gradient_of_a_broadcast_operand_at_once(backend: str) -> None:
    a, b = leaves((3, 7), (2, 7, 4))
    y = F.matmul(a, b, recipe=ACCUMULATORS_ONLY, backend=backend)
    g = torch.randn(y.shape)
    (got,) = torch.autograd.grad(y, a, g)
    rows = g.transpose(0, 1).reshape(3, -1)
    terms = b.detach().transpose(1, 2).reshape(-1, 7)
    assert_bit_equal(got, lp.matmul(rows, terms, ACCUMULATORS_ONLY.dgrad, backend=backend))


def test_matmul_by_the_fp32_recipe_is_torchs_own() -> None:
    a, b = torch.randint(5, (3, 4)), torch.randint(5, (4, 5))
    assert torch.equal(F.matmul(a, b, recipe="fp32"), a @ b)
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    assert_bit_equal(F.bmm(x, x, recipe="fp32"), torch.bmm(x, x))
    assert_bit_equal(
        F.baddbmm(x, x, x, beta=2, alpha=0.5), torch.baddbmm(x, x, x, beta=2, alpha=0.5)
    )


@pytest.mark.parametrize("recipe", [SUMS, NATIVE_SUMS], ids=["emulated", "native"])
@pytest.mark.parametrize("beta, alpha", [(1, 1), (0.5, 1), (1, -0.3), (0, 2)])
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (4,), (2, 1, 4), (3, 1), ()], ids=str)
def test_baddbmm_without_rounding_is_torch_within_fp32(
    recipe: lp.Recipe, beta: float, alpha: float, shape: tuple[int, ...]
) -> None:
    tensors = leaves(shape, (2, 3, 7), (2, 7, 4))
    got = F.baddbmm(*tensors, beta=beta, alpha=alpha, recipe=recipe)
    want = torch.baddbmm(*tensors, beta=beta, alpha=alpha)
    wanted = tensors if beta else tensors[1:]
    close(gradients(got, wanted), gradients(want, wanted))


def test_baddbmm_of_a_bias_is_the_linear_layer(backend: str) -> None:
    bias, x, w = leaves((4,), (1, 3, 7), (4, 7))
    call: dict[str, Any] = {"generator": torch.tensor(SEED), "backend": backend}
    got = F.baddbmm(bias, x, w.t().unsqueeze(0), recipe=STOCHASTIC, **call)
    want = F.linear(x, w, bias, recipe=STOCHASTIC, **call)
    same(gradients(got, (bias, x)), gradients(want, (bias, x)))


@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC], ids=["deterministic", "stochastic"])
def test_baddbmm_backends_agree(recipe: lp.Recipe) -> None:
    tensors = leaves((2, 1, 4), (2, 3, 7), (2, 7, 4))

    def run(backend: str) -> list[torch.Tensor]:
        call: dict[str, Any] = {"generator": torch.tensor(SEED), "backend": backend}
        y = F.baddbmm(*tensors, beta=0.7, alpha=0.3, recipe=recipe, **call)
        return gradients(y, tensors)

    same(run("auto"), run("reference"))


def test_baddbmm_scales_the_sums_before_it_adds(backend: str) -> None:
    input, a, b = (t.detach() for t in leaves((2, 3, 4), (2, 3, 7), (2, 7, 4)))
    acc = lp.Accumulator("e5m4")
    got = F.baddbmm(input, a, b, alpha=0.3, recipe=lp.Recipe(fprop=acc), backend=backend)
    scaled = lp.matmul(a, b, acc, backend=backend) * 0.3
    assert_bit_equal(got, lp.quantize((scaled.double() + input), "e5m4").float())


def expected_bilinear(recipe: lp.Recipe, tensors: list[np.ndarray]) -> list[np.ndarray]:
    """y and all gradients: t = x1 W is a linear layer without output quantizer, t x2 a product."""
    x1, x2, w, b = tensors
    (n, i), j, o = x1.shape, x2.shape[1], w.shape[0]
    first, second = Reference(recipe), Reference(recipe, derive_seed(SEED, 16))
    matrix = first.rounded(transposed(w).reshape(o * j, i), "weight")
    x1q = first.rounded(x1, "input")
    t = first.matmul(x1q, matrix.T, "fprop").reshape(n, o, j)
    tq = second.rounded(t, "input")
    x2q = second.rounded(x2.reshape(n, 1, j), "weight")
    y = second.matmul(tq, transposed(x2q), "fprop")
    bias = torch.from_numpy(second.rounded(b.reshape(o, 1), "bias"))
    from lpkernels import ops

    seed = torch.tensor(second.seed - (second.seed >> 63 << 64))
    y = ops.add_bias(torch.from_numpy(y), bias, -1, recipe.fprop, seed, Role.FPROP, "reference")
    y = second.rounded(y.numpy(), "output", SITE_OUTPUT)
    g = torch.randn((n, o), generator=torch.Generator().manual_seed(3)).numpy()
    gq = second.rounded(g.reshape(n, o, 1), "grad_output")
    dt = second.rounded(second.matmul(gq, x2q, "dgrad"), "grad_input")
    dx2 = second.rounded(second.matmul(transposed(gq), tq, "wgrad"), "grad_weight")
    ones = np.ones((1, n), np.float32)
    db = second.matmul(ones, gq.reshape(n, o), "wgrad", Role.GRAD_BIAS)
    dtq = first.rounded(dt.reshape(n, o * j), "grad_output")
    dx1 = first.rounded(first.matmul(dtq, matrix, "dgrad"), "grad_input")
    dw = first.rounded(first.matmul(dtq.T, x1q, "wgrad"), "grad_weight")
    return [y.reshape(n, o), dx1, dx2.reshape(n, j), transposed(dw.reshape(o, j, i)), db.reshape(o)]


@recipes
def test_bilinear_equals_the_composition_of_the_reference(recipe: lp.Recipe, backend: str) -> None:
    tensors = leaves((5, 3), (5, 4), (2, 3, 4), (2,))
    y = F.bilinear(*tensors, recipe=recipe, generator=torch.tensor(SEED), backend=backend)
    same(gradients(y, tensors), expected_bilinear(recipe, [t.detach().numpy() for t in tensors]))


@pytest.mark.parametrize("recipe", [SUMS, NATIVE_SUMS], ids=["emulated", "native"])
@pytest.mark.parametrize("leading", [(), (5,), (2, 3), (0,)], ids=str)
def test_bilinear_without_rounding_is_torch_within_fp32(recipe: lp.Recipe, leading: Any) -> None:
    tensors = leaves((*leading, 3), (*leading, 4), (2, 3, 4), (2,))
    got = F.bilinear(*tensors, recipe=recipe)
    want = torch.nn.functional.bilinear(*tensors)
    assert got.shape == want.shape
    close(gradients(got, tensors), gradients(want, tensors))


def test_products_compile_into_one_graph() -> None:
    tensors = leaves((2, 1, 4), (2, 3, 7), (2, 7, 4), (2, 3, 4), (5, 4, 4))

    def products(*given: torch.Tensor) -> torch.Tensor:
        addend, a, b, c, w = given
        y = F.baddbmm(addend, a, b, alpha=0.3, recipe=STOCHASTIC)
        y = F.bilinear(y, c, w, recipe=STOCHASTIC)
        z = F.einsum("bij,bik->bjk", y, F.bmm(a, b, recipe=STOCHASTIC), recipe=STOCHASTIC)
        return F.matmul(z, c.mT, recipe=STOCHASTIC)

    torch.manual_seed(1)
    want = gradients(products(*tensors), tensors)
    torch.manual_seed(1)
    compiled = torch.compile(products, fullgraph=True, backend="aot_eager")
    same(gradients(compiled(*tensors), tensors), want)


A, B, W = torch.ones(2, 3, 4), torch.ones(2, 4, 5), torch.ones(2, 3, 4)


@pytest.mark.parametrize(
    "call, error, match",
    [
        (lambda r: F.bmm(A, B[0], recipe=r), ValueError, r"bmm: a has shape .*matmul broadcasts"),
        (lambda r: F.bmm(A, B.double(), recipe=r), TypeError, "bmm: b is float64"),
        (lambda r: F.bmm(A, B, recipe=r, backend="gpu"), ValueError, "bmm: unknown backend"),
        (lambda r: F.bmm(A, B, recipe=r, generator=3), TypeError, "bmm: generator must be"),
        (lambda r: F.baddbmm(A, A, B, recipe=r), ValueError, "baddbmm: input has shape .*broad"),
        (lambda r: F.baddbmm(3, A, B, recipe=r), TypeError, "baddbmm: input must be a torch.T"),
        (lambda r: F.matmul(A, B, "bf16", recipe=r), ValueError, "recipe brings its own.*got acc"),
        (lambda r: F.matmul(A, A, recipe=r), ValueError, "matmul: a has K=4 but b has K=3"),
        (lambda r: F.bilinear(A, B, W[0], recipe=r), ValueError, "bilinear: weight has shape"),
        (lambda r: F.bilinear(A, B, W, recipe=r), ValueError, "x1 has shape .* same leading"),
        (
            lambda r: F.bilinear(A[..., :3], A, W, torch.ones(3), recipe=r),
            ValueError,
            r"bias must be \(2,\)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_products_refuse_wrong_arguments(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(DETERMINISTIC)

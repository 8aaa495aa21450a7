"""Products of two activations: matmul under a recipe, bmm, baddbmm, bilinear, einsum."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels import ops
from lpkernels.rng import Role, derive_seed
from tests.compare import assert_bit_equal
from tests.functional.calls import Call
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES, STOCHASTIC
from tests.support.autograd import (
    SEED,
    Steps,
    assert_composed,
    close,
    gradients,
    how,
    leaves,
    output_gradients,
    same,
    signed,
    transposed,
)

SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
F = lp.functional
Shape = tuple[int, ...]


def composed_bmm(recipe: lp.Recipe, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """y, da, db of bmm: every rounding and every product is the reference's."""
    step = Steps(recipe)
    y = step.product(a, transposed(b))
    da, dw, _ = step.gradients(output_gradients(y.shape)[0].numpy())
    return [y, da, transposed(dw)]


@every_recipe
def test_bmm_is_its_steps_by_the_reference(recipe: lp.Recipe, backends: list[str]) -> None:
    a, b = leaves((2, 3, 7), (2, 7, 4))
    want = composed_bmm(recipe, a.detach().numpy(), b.detach().numpy())
    assert_composed(partial(F.bmm, a, b, recipe=recipe), (a, b), want, backends)


@every_recipe
def test_matmul_by_a_recipe_is_the_linear_layer(recipe: lp.Recipe, backend: str) -> None:
    x, w = leaves((2, 3, 7), (4, 7))
    got = F.matmul(x, w.t(), recipe=recipe, **how(backend))
    want = F.linear(x, w, recipe=recipe, **how(backend))
    same(gradients(got, (x, w)), gradients(want, (x, w)))


EQUATIONS: list[tuple[str, Shape, Shape]] = [
    ("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk", (3, 4), (4, 5)), ("ba,cb", (3, 4), (5, 3)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)), ("ij,kj->ki", (3, 4), (5, 4)),
    ("i,j->ij", (3,), (4,)), ("i,i", (3,), (3,)), ("ij,jk->", (3, 4), (4, 5)),
    ("ijl,jk->ik", (3, 4, 2), (4, 5)), ("ij,jkl->ik", (3, 4), (4, 5, 2)),
    ("ij,j->ij", (3, 4), (1,)), ("ij,j->i", (3, 4), (4,)), (" i j , j k -> i k ", (3, 4), (4, 5)),
    ("ii,ij->j", (3, 3), (3, 4)), ("iij,jk->ik", (3, 3, 4), (4, 5)),
    ("...ij,jk->...ik", (2, 3, 4), (4, 5)), ("...a,...b->...ab", (2, 1, 3), (5, 4)),
    ("...ij,...j->i...", (2, 3, 4), (4,)), ("b...,b...->...", (2, 3), (2, 3)),
    ("...ij,...jk", (2, 3, 4), (4, 5)), ("ij,jk->ik", (3, 0), (0, 5)),
]  # fmt: skip
SHAPES: list[tuple[Shape, Shape]] = [
    ((3, 4), (4, 5)), ((4,), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)),
    ((2, 1, 3, 4), (5, 4, 2)), ((3, 0), (0, 2)),
]  # fmt: skip
AS_IN_TORCH = [
    *(Call("matmul", shapes) for shapes in SHAPES),
    *(Call("baddbmm", (shape, (2, 3, 7), (2, 7, 4)), options={"beta": beta, "alpha": alpha})
      for shape in ((2, 3, 4), (3, 4), (4,), (2, 1, 4), (3, 1), ())
      for beta, alpha in ((1, 1), (0.5, 1), (1, -0.3), (0, 2))),
    *(Call("bilinear", ((*lead, 3), (*lead, 4), (2, 3, 4), (2,))) for lead in ((), (2, 3), (0,))),
    *(Call("einsum", shapes, arguments=partial(lambda *call: call, equation))
      for equation, *shapes in EQUATIONS),
]  # fmt: skip


def label(call: Call) -> str:
    """The function, its equation or factors, and the shapes."""
    equation = getattr(call.arguments, "args", ())
    return " ".join(map(str, [call.name, *equation, *call.shapes, *call.options.items()]))


@pytest.mark.parametrize("recipe", [SUMS, lp.Recipe(input="fp32", weight="fp32")])
@pytest.mark.parametrize("call", AS_IN_TORCH, ids=label)
def test_products_without_rounding_are_torchs_within_fp32(call: Call, recipe: lp.Recipe) -> None:
    wanted = tensors = call.tensors()
    if call.options.get("beta") == 0:
        # The matrix is not read, and has no gradient.
        tensors[0].data.fill_(torch.nan)
        wanted = tensors[1:]
    got, want = call(*tensors, recipe=recipe), call.torchs(*tensors)
    assert got.shape == want.shape
    close(gradients(got, wanted), gradients(want, wanted))


def test_baddbmm_of_a_bias_is_the_linear_layer(backend: str) -> None:
    bias, x, w = leaves((4,), (1, 3, 7), (4, 7))
    got = F.baddbmm(bias, x, w.t().unsqueeze(0), recipe=STOCHASTIC, **how(backend))
    want = F.linear(x, w, bias, recipe=STOCHASTIC, **how(backend))
    same(gradients(got, (bias, x)), gradients(want, (bias, x)))


def test_baddbmm_scales_the_sums_before_it_adds(backend: str) -> None:
    input, a, b = (t.detach() for t in leaves((2, 3, 4), (2, 3, 7), (2, 7, 4)))
    acc = lp.Accumulator("e5m4")
    got = F.baddbmm(input, a, b, alpha=0.3, recipe=lp.Recipe(fprop=acc), backend=backend)
    scaled = lp.matmul(a, b, acc, backend=backend) * 0.3
    assert_bit_equal(got, lp.quantize((scaled.double() + input), "e5m4").float())


def composed_bilinear(recipe: lp.Recipe, tensors: list[torch.Tensor]) -> list[np.ndarray]:
    """y and all gradients: t = x1 W is a linear layer without output quantizer, t x2 a product."""
    x1, x2, w, b = (t.detach().numpy() for t in tensors)
    (n, i), j, o = x1.shape, x2.shape[1], w.shape[0]
    first, second = Steps(recipe), Steps(recipe, derive_seed(SEED, 16))
    matrix = first.rounded(transposed(w).reshape(o * j, i), "weight")
    x1q = first.rounded(x1, "input")
    t = first.matmul(x1q, matrix.T, "fprop").reshape(n, o, j)
    tq = second.rounded(t, "input")
    x2q = second.rounded(x2.reshape(n, 1, j), "weight")
    y = torch.from_numpy(second.matmul(tq, transposed(x2q), "fprop"))
    bias = torch.from_numpy(second.rounded(b.reshape(o, 1), "bias"))
    seed = signed(second.seed)
    y = ops.add_bias(y, bias, -1, recipe.fprop, seed, Role.FPROP, "reference")
    y = second.rounded(y.numpy(), "output")
    gq = second.rounded(output_gradients((n, o))[0].numpy().reshape(n, o, 1), "grad_output")
    dt = second.rounded(second.matmul(gq, x2q, "dgrad"), "grad_input")
    dx2 = second.rounded(second.matmul(transposed(gq), tq, "wgrad"), "grad_weight")
    db = second.bias_gradient(gq.reshape(n, o))
    dtq = first.rounded(dt.reshape(n, o * j), "grad_output")
    dx1 = first.rounded(first.matmul(dtq, matrix, "dgrad"), "grad_input")
    dw = first.rounded(first.matmul(dtq.T, x1q, "wgrad"), "grad_weight")
    return [y.reshape(n, o), dx1, dx2.reshape(n, j), transposed(dw.reshape(o, j, i)), db]


@every_recipe
def test_bilinear_is_its_steps_by_the_reference(recipe: lp.Recipe, backends: list[str]) -> None:
    tensors = leaves((5, 3), (5, 4), (2, 3, 4), (2,))
    call = partial(F.bilinear, *tensors, recipe=recipe)
    assert_composed(call, tensors, composed_bilinear(recipe, tensors), backends)


def test_einsum_is_the_product_of_its_groups(backend: str) -> None:
    q, k = leaves((2, 4, 3, 5), (2, 6, 3, 5))
    call: dict[str, Any] = {"recipe": STOCHASTIC, "backend": backend}
    call["generator"] = torch.tensor(7)
    got = F.einsum("bqhd,bkhd->bhqk", q, k, **call)
    left = q.permute(0, 2, 1, 3).reshape(6, 4, 5)
    right = k.permute(0, 2, 3, 1).reshape(6, 5, 6)
    want = F.bmm(left, right, **call).reshape(2, 3, 4, 6)
    same(gradients(got, (q, k)), gradients(want, (q, k)))


def test_einsum_sums_in_the_order_of_the_equation(backend: str) -> None:
    a, b = torch.randn(3, 4, 5), torch.randn(5, 4, 2)
    got = F.einsum("ijk,kjl->il", a, b, recipe=DETERMINISTIC, backend=backend)
    right = b.permute(1, 0, 2).reshape(20, 2)
    want = F.matmul(a.reshape(3, 20), right, recipe=DETERMINISTIC, backend=backend)
    assert_bit_equal(got, want)


def test_einsum_of_three_operands_by_the_fp32_recipe_is_torchs_own() -> None:
    operands = torch.randn(3, 3, 3).double()
    equation = "ij,jk,kl->il"
    assert_bit_equal(F.einsum(equation, *operands), torch.einsum(equation, *operands))

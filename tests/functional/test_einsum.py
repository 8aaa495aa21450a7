"""einsum of two operands: torch's notation, and the product it becomes."""

from typing import Any

import torch

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.loops import each
from tests.support.autograd import close, gradients, leaves, same
from tests.support.refusals import Row, refuses

SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
einsum = lp.functional.einsum
EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    ("ba,cb", (3, 4), (5, 3)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("ij,kj->ki", (3, 4), (5, 4)),
    ("i,j->ij", (3,), (4,)),
    ("i,i", (3,), (3,)),
    ("ij,jk->", (3, 4), (4, 5)),
    ("ijl,jk->ik", (3, 4, 2), (4, 5)),
    ("ij,jkl->ik", (3, 4), (4, 5, 2)),
    ("ij,j->ij", (3, 4), (1,)),
    ("ij,j->i", (3, 4), (4,)),
    (" i j , j k -> i k ", (3, 4), (4, 5)),
    ("ii,ij->j", (3, 3), (3, 4)),
    ("iij,jk->ik", (3, 3, 4), (4, 5)),
    ("...ij,jk->...ik", (2, 3, 4), (4, 5)),
    ("...a,...b->...ab", (2, 1, 3), (5, 4)),
    ("...ij,...j->i...", (2, 3, 4), (4,)),
    ("b...,b...->...", (2, 3), (2, 3)),
    ("...ij,...jk", (2, 3, 4), (4, 5)),
    ("ij,jk->ik", (3, 0), (0, 5)),
]


@each("equation, left, right", EQUATIONS)
def test_einsum_without_rounding_is_torch_within_fp32(equation: str, left: Any, right: Any) -> None:
    tensors = leaves(left, right)
    got, want = einsum(equation, *tensors, recipe=SUMS), torch.einsum(equation, *tensors)
    assert got.shape == want.shape
    close(gradients(got, tensors), gradients(want, tensors))


def test_einsum_is_the_product_of_its_groups(backend: str) -> None:
    q, k = leaves((2, 4, 3, 5), (2, 6, 3, 5))
    call: dict[str, Any] = {"recipe": STOCHASTIC, "backend": backend}
    call["generator"] = torch.tensor(7)
    got = einsum("bqhd,bkhd->bhqk", q, k, **call)
    left = q.permute(0, 2, 1, 3).reshape(6, 4, 5)
    right = k.permute(0, 2, 3, 1).reshape(6, 5, 6)
    want = lp.functional.bmm(left, right, **call).reshape(2, 3, 4, 6)
    same(gradients(got, (q, k)), gradients(want, (q, k)))


def test_einsum_sums_in_the_order_of_the_equation(backend: str) -> None:
    a, b = torch.randn(3, 4, 5), torch.randn(5, 4, 2)
    got = einsum("ijk,kjl->il", a, b, recipe=DETERMINISTIC, backend=backend)
    right = b.permute(1, 0, 2).reshape(20, 2)
    want = lp.functional.matmul(a.reshape(3, 20), right, recipe=DETERMINISTIC, backend=backend)
    assert_bit_equal(got, want)


def test_einsum_by_the_fp32_recipe_is_torchs_own() -> None:
    a, b, c = torch.randn(3, 3, 3).double()
    assert_bit_equal(einsum("ij,jk,kl->il", a, b, c), torch.einsum("ij,jk,kl->il", a, b, c))


A, B = torch.ones(3, 4), torch.ones(4, 5)


REFUSED: list[Row] = [
    (("ij->ji", A), {}, ValueError, "expected two operands, got 1"),
    (("ij,jk,kl->il", A, B, B), {}, ValueError, "expected two operands, got 3"),
    ((3, A, B), {}, TypeError, "equation must be a str .* got int"),
    (("ij->ik", A, B), {}, ValueError, "expected two operands of letters"),
    (("i1,1k->ik", A, B), {}, ValueError, "two operands of letters"),
    (("ijl,jk->ik", A, B), {}, ValueError, r"'ijl' .* names 3 dimensions, but .* \(3, 4\)"),
    (("i,jk->ik", A, B), {}, ValueError, "'i' .* names 1 dimensions"),
    (("ij,jk->il", A, B), {}, ValueError, "must name labels of the operands"),
    (("ij,jk->ii", A, B), {}, ValueError, "each once"),
    (("ij,ik->jk", A, B), {}, ValueError, "label 'i' .* size 3 in one operand and 4"),
    (("ii,ij->j", A, B), {}, ValueError, "repeated over sizes 3 and 4"),
    (("ij,jk->ik", A.double(), B), {}, TypeError, "einsum: a is float64"),
]
test_einsum_refuses_wrong_arguments = refuses(einsum, REFUSED, recipe=DETERMINISTIC)

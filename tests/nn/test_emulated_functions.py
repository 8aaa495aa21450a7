"""torch's functions that multiply, emulated as the products of lp.matmul that they equal."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, MIXED, STOCHASTIC
from tests.nn.layer_cases import same
from tests.support.autograd import Computes

lpf = lp.functional


def product(a: Tensor, b: Tensor, recipe: Any) -> Tensor:
    return lp.matmul(a, b, recipe=recipe)


def named(name: str, **options: Any) -> Callable[..., Tensor]:
    """The function of lpkernels of this name, which takes torch's arguments."""
    return partial(getattr(lpf, name), **options)


def last_with_last(a: Tensor, b: Tensor, recipe: Any) -> Tensor:
    return product(a.flatten(0, -2), b.t(), recipe).unflatten(0, a.shape[:-1])


def two_dimensions(a: Tensor, b: Tensor, recipe: Any) -> Tensor:
    return product(a.transpose(0, 1).flatten(1), b.transpose(0, 1).flatten(0, 1), recipe)


def with_column(c: Tensor, a: Tensor, b: Tensor, **options: Any) -> Tensor:
    return lpf.addmm(c[..., None], a, b[:, None], **options)[:, 0]


ENDS = torch.tensor([3, 3, 6], dtype=torch.int32)


def pairs(a: Tensor, b: Tensor, recipe: Any) -> Tensor:
    return torch.stack([product(x, w, recipe) for x, w in zip(a, b, strict=True)])


HALF = {"beta": 0.5, "alpha": 2}
PADDED, GROUPED = {"padding": "same", "groups": 2}, {"stride": 2, "output_padding": 1}
MASKED = {
    "attn_mask": torch.tensor([[True, True, False], [True, True, True], [False, True, True]]),
    "scale": 0.3,
}  # fmt: skip


def heads(function: Callable[..., Any], x: Tensor, w: Tensor, out: Tensor, **recipe: Any) -> Tensor:
    unseen = torch.tensor([[False, False, True], [False, False, False]])
    options = (4, 2, w, None, None, None, False, 0.0, out, None)
    return function(x, x, x, *options, key_padding_mask=unseen, **recipe)[0]


def of(name: str, **options: Any) -> Any:
    """torch's function with these options; None where this version of torch lacks it."""
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    return found and partial(found, **options)


class Row(NamedTuple):
    """call of operands of these shapes equals the products of lp.matmul."""

    call: Any
    shapes: list[tuple[int, ...]]
    equal: Callable[..., Tensor]

    @property
    def name(self) -> str:
        """For the id of a case."""
        function = self.call
        while isinstance(function, partial):
            function = function.func
        return f"{function.__name__} {' '.join('x'.join(map(str, x)) for x in self.shapes)}"


V, M, N, B, C = (4,), (3, 4), (4, 5), (2, 3, 4), (2, 4, 5)
NAMED = [
    Row(operator.matmul, [B, C], named("matmul")), Row(of("bmm"), [B, C], named("bmm")),
    Row(of("addmm"), [(5,), M, N], named("addmm")),
    Row(of("Tensor.addmm", **HALF), [(3, 5), M, N], named("addmm", **HALF)),
    Row(of("baddbmm", alpha=0.3), [(2, 3, 5), B, C], named("baddbmm", alpha=0.3)),
    Row(partial(torch.einsum, "bij,bjk->bik"), [B, C], partial(lpf.einsum, "bij,bjk->bik")),
    Row(of("nn.functional.linear"), [B, (5, 4), (5,)], named("linear")),
    Row(of("nn.functional.bilinear"), [M, (3, 5), (2, 4, 5)], named("bilinear")),
    Row(of("nn.functional.conv1d", **PADDED), [(2, 4, 6), (6, 2, 3)], named("conv1d", **PADDED)),
    Row(lambda x, w: torch.conv2d(x, w, None, 1, 1, 1, 2), [(2, 4, 1, 6), (6, 2, 1, 3)],
        named("conv2d", padding=1, groups=2)),
    Row(of("nn.functional.conv_transpose1d", **GROUPED), [(2, 4, 6), (4, 2, 3)],
        named("conv_transpose1d", **GROUPED)),
    Row(of("nn.functional.scaled_dot_product_attention", **MASKED), [B, B, B],
        named("scaled_dot_product_attention", **MASKED)),
    Row(partial(heads, F.multi_head_attention_forward), [(3, 2, 4), (12, 4), (4, 4)],
        partial(heads, lpf.multi_head_attention_forward)),
    # Arguments have other names or another order here.
    Row(lambda a, b: b.__rmatmul__(a), [B, C], product),
    Row(lambda a, b: torch.matmul(a, other=b), [B, C], product),
    Row(of("mm"), [M, N], product), Row(lambda a, b: a.mm(mat2=b), [M, N], product),
    Row(lambda a, b: torch.einsum("bij,bjk->bik", [a, b]), [B, C],
        partial(lpf.einsum, "bij,bjk->bik")),
    Row(lambda a, b: torch.einsum(a, [0, 1], b, [1, 2]), [M, N], partial(lpf.einsum, "ab,bc")),
    Row(of("linalg.matmul"), [B, C], product),
]  # fmt: skip
TABLE = [
    *NAMED,
    *(Row(of(name), [M, V], product) for name in ("mv", "Tensor.mv")),
    *(Row(of(f"{home}{name}"), [V, V], product)
      for name in ("dot", "vdot", "inner") for home in ("", "Tensor.")),
    Row(of("inner"), [B, M], last_with_last),
    Row(of("tensordot", dims=1), [M, N], product),
    Row(of("tensordot", dims=([2], [-1])), [B, M], last_with_last),
    Row(of("tensordot", dims=([2, 0], [0, 1])), [(2, 3, 4), (4, 2, 5)], two_dimensions),
    *(Row(of(name, **HALF), [(3,), M, V], partial(with_column, **HALF))
      for name in ("addmv", "Tensor.addmv")),
    Row(of("addmv"), [(), M, V], with_column),
    Row(of("nn.functional.grouped_mm"), [(3, 5, 4), (3, 4, 8)], pairs),
]  # fmt: skip
NATIVE = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2")


def inside(call: Callable[..., Tensor], recipe: Any, *operands: Tensor) -> Tensor:
    return lp.convert(Computes(lambda m, *x: call(*x)), recipe)(*operands)


def step(call: Callable[..., Tensor], operands: list[Tensor]) -> list[Tensor]:
    """The result and the gradients of the operands, from one seed."""
    leaves = [x.clone().requires_grad_() for x in operands]
    torch.manual_seed(5)
    result = call(*leaves)
    torch.manual_seed(6)
    weights = torch.randn(result.shape).bfloat16().to(result.dtype)
    found = torch.autograd.grad(result, leaves, weights, allow_unused=True)
    zeros = zip(found, leaves, strict=True)
    return [result.detach(), *(torch.zeros_like(x) if g is None else g for g, x in zeros)]


@pytest.mark.parametrize("row", [row for row in TABLE if row.call is not None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_call_is_the_product_of_matmul(row: Row, dtype: torch.dtype) -> None:
    operands = [torch.randn(shape).to(dtype) for shape in row.shapes]
    for recipe in (DETERMINISTIC, STOCHASTIC, MIXED, NATIVE):
        got = step(partial(inside, row.call, recipe), operands)
        want = step(partial(row.equal, recipe=recipe), operands)
        # A model's own product has the dtype of its operands, and lp.matmul float32.
        same(got, [want[0].to(dtype), *want[1:]])


@pytest.mark.parametrize("row", NAMED)
def test_a_call_by_the_fp32_recipe_is_torchs(row: Row) -> None:
    operands = [torch.randn(shape) for shape in row.shapes]
    assert_bit_equal(inside(row.call, "fp32", *operands), row.call(*operands))


def test_a_graph_breaks_at_the_groups_of_rows() -> None:
    call, operands = of("_grouped_mm", offs=ENDS), [torch.randn(6, 4), torch.randn(3, 4, 8)]
    net = lp.convert(Computes(lambda m, *x: call(*x)), DETERMINISTIC)
    compiled = torch.compile(net, backend="aot_eager")
    same(step(compiled, operands), step(net, operands))
    pair = [torch.randn(3, 5, 4), torch.randn(3, 4, 8)]
    net = lp.convert(Computes(lambda m, *x: torch._grouped_mm(*x)), DETERMINISTIC)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    same(step(compiled, pair), step(net, pair))


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


@pytest.mark.parametrize("call, message", [
    (lambda: torch.mm(ones(2, 3, 4), ones(4, 5)), r"mm: expected operands of 2 and 2 dimensions"),
    (lambda: torch.addmv(ones(2, 2), ones(2, 3), ones(3)), r"addmm: input has shape \(2, 2, 1\)"),
])  # fmt: skip
def test_wrong_operands_are_refused(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises((ValueError, IndexError), match=message):
        inside(call, DETERMINISTIC)


VECTOR, MATRIX = torch.randn(4), torch.randn(4, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.dot(VECTOR.cfloat(), VECTOR.cfloat()),
        lambda: torch.linalg.multi_dot([MATRIX] * 3),
        lambda: torch.linalg.matmul(MATRIX, MATRIX, out=torch.zeros(4, 4)),
        lambda: torch.inner(torch.tensor(2.0), VECTOR),
        lambda: torch.outer(VECTOR, VECTOR),
        lambda: MATRIX.clone().addmm_(MATRIX, MATRIX),
        lambda: MATRIX.long() @ MATRIX.long(),
        lambda: torch.mm(MATRIX.to_sparse(), MATRIX),
        lambda: torch.einsum("ij,jk,kl->il", MATRIX, MATRIX, MATRIX),
    ],
)
def test_calls_without_a_meaning_under_a_recipe_stay_torchs(call: Callable[[], Tensor]) -> None:
    assert torch.equal(inside(call, DETERMINISTIC), call())

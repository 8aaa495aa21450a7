"""matmul(initial=): where the outermost sum starts, its gradient, and what is refused."""

import torch

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.autograd import same
from tests.support.refusals import Row, refuses

ORDERS = [
    "e6m9",
    "e6m9:toward_zero",
    "e6m9_chunk8",
    "e6m9_chunk8:order=pairwise:outer=fp16",
    "e6m9:order=compensated",
    "e6m9:block=4:aligned_bits=9",
    "e8m13:toward_zero:block=32:aligned_bits=13:operands=e4m3fn",
]


def numbers(*shape: int) -> torch.Tensor:
    return lp.quantize(torch.randn(shape), "e4m3fn")


@each("acc", ["e6m9", "e6m9:toward_negative", "fixed16_f8"])
def test_a_start_is_a_product_that_comes_first(acc: str) -> None:
    a, b, c = numbers(5, 12), numbers(12, 3), lp.quantize(torch.randn(5, 3), "e6m9")
    for column in range(3):
        first = torch.cat([c[:, column : column + 1], a], 1)
        second = torch.cat([torch.ones(1, 1), b[:, column : column + 1]])
        want = lp.matmul(first, second, acc)
        got = lp.matmul(a, b[:, column : column + 1], acc, initial=c[:, column : column + 1])
        assert_bit_equal(got, want)


def test_chunks_start_at_zero_and_their_sum_at_initial() -> None:
    a, b = torch.ones(1, 6), torch.ones(6, 1)
    start = torch.tensor(1024.0)
    assert lp.matmul(a, b, "e6m9_chunk3", initial=start).item() == 1024 + 8
    assert lp.matmul(a, b, "e6m9", initial=start).item() == 1024


@each("acc", ORDERS)
def test_no_products_give_it_back_rounded(acc: str) -> None:
    a, b = torch.zeros(2, 0), torch.zeros(0, 3)
    start = torch.tensor([1.0, -0.0, 1 + 2.0**-20])
    got = lp.matmul(a, b, acc, initial=start)
    assert_bit_equal(got, torch.tensor([1.0, -0.0, 1.0]).expand(2, 3).contiguous())


@each("shape", [(), (3,), (5, 1), (2, 1, 3), (2, 5, 3)])
def test_it_broadcasts_to_the_result(shape: tuple[int, ...]) -> None:
    a, b, c = numbers(2, 5, 12), numbers(12, 3), numbers(*shape)
    want = lp.matmul(a, b, "e6m9", initial=c.expand(2, 5, 3).contiguous())
    assert_bit_equal(lp.matmul(a, b, "e6m9", initial=c), want)


def test_vectors_start_too() -> None:
    a, b, c = numbers(12), numbers(12), numbers(1)[0]
    want = lp.matmul(a[None], b[:, None], "e6m9", initial=c)
    assert_bit_equal(lp.matmul(a, b, "e6m9", initial=c), want[0, 0])
    rows = numbers(4, 12)
    want = lp.matmul(rows, b[:, None], "e6m9", initial=numbers(1))
    assert lp.matmul(rows, b, "e6m9", initial=c).shape == want[:, 0].shape


@each("dtype", [torch.float16, torch.bfloat16])
def test_narrow_dtypes_are_widened(dtype: torch.dtype) -> None:
    a, b, c = numbers(5, 12), numbers(12, 3), numbers(5, 3)
    want = lp.matmul(a, b, "e6m9", initial=c)
    assert_bit_equal(lp.matmul(a, b, "e6m9", initial=c.to(dtype)), want)


@each("shape", [(), (3,), (5, 1), (2, 5, 3)])
def test_its_gradient_is_the_results_summed(shape: tuple[int, ...]) -> None:
    a, b, c = numbers(2, 5, 12), numbers(12, 3), numbers(*shape).requires_grad_()
    grad = numbers(2, 5, 3)
    lp.matmul(a, b, "e6m9", initial=c).backward(grad)
    assert_bit_equal(c.grad, grad.sum_to_size(shape))


def test_the_operands_have_their_gradients_beside_it() -> None:
    a, b = numbers(5, 12).requires_grad_(), numbers(12, 3).requires_grad_()
    want = torch.autograd.grad(lp.matmul(a, b, "e6m9").sum(), (a, b))
    c = torch.zeros(3, dtype=torch.float16, requires_grad=True)
    *got, grad = torch.autograd.grad(lp.matmul(a, b, "e6m9", initial=c).sum(), (a, b, c))
    same(got, want)
    assert grad.dtype is torch.float16 and grad.tolist() == [5, 5, 5]


def test_output_rounds_after_it() -> None:
    a, b, c = numbers(5, 12), numbers(12, 3), numbers(5, 3).requires_grad_()
    y = lp.matmul(a, b, "e6m9", initial=c)
    rounded = lp.matmul(a, b, "e6m9", initial=c, output="e3m2")
    assert_bit_equal(rounded, lp.quantize(y, "e3m2"))
    rounded.sum().backward()
    assert c.grad.tolist() == torch.ones(5, 3).tolist()


def test_a_stochastic_start_is_drawn_once_a_call() -> None:
    a, b = torch.zeros(1, 0), torch.zeros(0, 4000)
    start = torch.full((4000,), 1.0625)
    draws = lp.matmul(a, b, "e5m2:stochastic", initial=start, generator=torch.tensor(3))
    again = lp.matmul(a, b, "e5m2:stochastic", initial=start, generator=torch.tensor(3))
    assert_bit_equal(draws, again)
    assert set(draws.unique().tolist()) == {1.0, 1.25}
    assert abs((draws == 1.25).float().mean().item() - 0.25) < 0.03


OPERANDS, START = (torch.zeros(5, 12), torch.zeros(12, 3)), torch.zeros(3)
REFUSED: list[Row] = [
    (OPERANDS, {"initial": torch.zeros(4)}, ValueError, r"\(4,\), which does not .* \(5, 3\)"),
    (OPERANDS, {"initial": torch.zeros(1, 5, 3)}, ValueError, "not broadcast to the result's"),
    (OPERANDS, {"initial": START.double()}, TypeError, "initial is float64"),
    (OPERANDS, {"initial": START.int()}, TypeError, "initial must be float16"),
    (OPERANDS, {"initial": 1.0}, TypeError, "initial must be a torch.Tensor, got float"),
    (OPERANDS, {"acc": None}, ValueError, "torch.addmm"),
    (OPERANDS, {"acc": "native_chunk4"}, ValueError, "order 'native'"),
    (OPERANDS, {"acc": "fp16:order=pairwise"}, ValueError, "a tree without"),
    (OPERANDS, {"acc": None, "recipe": "fp32"}, ValueError, "no out= or initial=; got initial"),
    (OPERANDS, {"initial": START.to("meta")}, ValueError, "must be on one device"),
]
test_what_is_refused = refuses(lp.matmul, REFUSED, acc="e6m9", initial=START)

"""Which functions convert(functions=True) emulates, and as what."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.loops import each
from tests.nn.layer_cases import same
from tests.support.computes import Computes

A, B = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
W, V, U = torch.randn(5, 4), torch.randn(5), torch.randn(2, 3, 5)
SEEN = torch.tensor([[True, True, False], [True, True, True], [False, True, True]])
HEADS = (4, 2, torch.randn(12, 4), None, None, None, False, 0.0, torch.randn(4, 4), None)
UNSEEN, BATCHED, BOTH = ~SEEN[:, :2], "bij,bjk->bik", torch.randn(2, 4, 5)
IMAGE, KERNEL = torch.randn(2, 4, 6), torch.randn(6, 2, 3)
PLANE, PLANES = IMAGE[:, :, None], KERNEL[:, :, None]
lpf = lp.functional
# Calls of torch beside the function of lpkernels that takes the same arguments.
ALIKE = [
    (operator.matmul, lpf.matmul, (A, B), {}),
    (torch.Tensor.matmul, lpf.matmul, (A, B), {}),
    (torch.bmm, lpf.bmm, (A, B), {}),
    (torch.Tensor.bmm, lpf.bmm, (A, B), {}),
    (torch.addmm, lpf.addmm, (V, A[0], B[0]), {}),
    (torch.Tensor.addmm, lpf.addmm, (U[0], A[0], B[0]), {"beta": 0.5, "alpha": 2}),
    (torch.baddbmm, lpf.baddbmm, (U, A, B), {"alpha": 0.3}),
    (torch.Tensor.baddbmm, lpf.baddbmm, (U, A, B), {}),
    (torch.einsum, lpf.einsum, (BATCHED, A, B), {}),
    (F.linear, lpf.linear, (A, W), {"bias": V}),
    (F.bilinear, lpf.bilinear, (A[0], U[0], BOTH), {}),
    (F.conv1d, lpf.conv1d, (IMAGE, KERNEL), {"padding": "same", "groups": 2}),
    (torch.conv2d, lpf.conv2d, (PLANE, PLANES, None, 1, 1, 1, 2), {}),
    (F.conv_transpose1d, lpf.conv_transpose1d, (IMAGE, KERNEL[:4]),
     {"stride": 2, "output_padding": 1}),
    (F.scaled_dot_product_attention, lpf.scaled_dot_product_attention, (A, A, A),
     {"attn_mask": SEEN, "scale": 0.3}),
]  # fmt: skip
# Calls whose arguments have other names or another order there.
CALLS: list[tuple[Callable[[], Any], Callable[..., Any]]] = [
    *((partial(of, *x, **more), partial(own, *x, **more)) for of, own, x, more in ALIKE),
    (lambda: B.__rmatmul__(A), partial(lpf.matmul, A, B)),
    (lambda: torch.matmul(A, other=B), partial(lpf.matmul, A, B)),
    (lambda: torch.mm(A[0], B[0]), partial(lpf.matmul, A[0], B[0])),
    (lambda: A[0].mm(mat2=B[0]), partial(lpf.matmul, A[0], B[0])),
    (lambda: torch.einsum(BATCHED, [A, B]), partial(lpf.einsum, BATCHED, A, B)),
    (lambda: torch.einsum(A[0], [0, 1], B[0], [1, 2]), partial(lpf.einsum, "ab,bc", A[0], B[0])),
    (
        lambda: F.multi_head_attention_forward(A, A, A, *HEADS, key_padding_mask=UNSEEN)[0],
        lambda **recipe: lpf.multi_head_attention_forward(
            A, A, A, *HEADS, key_padding_mask=UNSEEN, **recipe
        )[0],
    ),
]


def inside(does: Callable[..., Any], recipe: Any = DETERMINISTIC) -> Any:
    return lp.convert(Computes(lambda m: does()), recipe)()


@each("call, emulated", CALLS)
def test_calls_are_emulated(call: Callable[[], Any], emulated: Callable[..., Any]) -> None:
    torch.manual_seed(5)
    want = emulated(recipe=STOCHASTIC)
    torch.manual_seed(5)
    assert_bit_equal(inside(call, STOCHASTIC), want)
    assert not torch.equal(want, call())
    native = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2")
    assert_bit_equal(inside(call, native), emulated(recipe=native))
    assert_bit_equal(inside(call, "fp32"), call())


COUNTS = torch.arange(6).reshape(2, 3)
TORCHS = {
    "integers": lambda: COUNTS @ COUNTS.t(),
    "complex": lambda: torch.matmul(A[0].cfloat(), B[0].cfloat()),
    "sparse": lambda: torch.mm(A[0].to_sparse(), B[0]),
    "out": lambda: torch.matmul(A, B, out=torch.zeros(2, 3, 5)),
    "three operands": lambda: torch.einsum("ij,jk,kl->il", A[0], B[0], W),
    "one operand": lambda: torch.einsum("bij->bji", A),
    "dot": lambda: torch.dot(V, V),
    "relu": lambda: torch.relu(A),
}


@each("name", TORCHS)
def test_other_calls_stay_torchs(name: str) -> None:
    assert torch.equal(inside(TORCHS[name]), TORCHS[name]())


def test_float64_operands_are_refused() -> None:
    for call in (lambda: A.double() @ B.double(), lambda: F.linear(A, W.double())):
        with pytest.raises(RuntimeError, match=r"an operand is float64, .* exclude the module"):
            inside(call)
    assert torch._C._len_torch_function_stack() == 0


def test_gradients_of_calls_are_emulated() -> None:
    a, b = (t.clone().requires_grad_() for t in (A, B))
    got, want = inside(lambda: a @ b), lp.functional.matmul(a, b, recipe=DETERMINISTIC)
    same(
        torch.autograd.grad(got.square().sum(), (a, b)),
        torch.autograd.grad(want.square().sum(), (a, b)),
    )


def test_a_convolution_with_its_own_conv_forward_is_followed() -> None:
    class Halved(nn.Conv1d):
        def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
            return super()._conv_forward(input, weight / 2, bias)

    layer = lp.convert(Halved(4, 3, 2), DETERMINISTIC)
    want = lpf.conv1d(IMAGE, layer.weight / 2, layer.bias, recipe=DETERMINISTIC)
    assert_bit_equal(layer(IMAGE), want)


def test_an_error_in_forward_leaves_no_mode_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        inside(lambda: 1 / 0)
    assert torch._C._len_torch_function_stack() == 0

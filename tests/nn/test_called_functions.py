"""Which functions convert(functions=True) emulates, and as what."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC


class Calls(nn.Module):
    """A module that does whatever it is given."""

    def __init__(self, does: Callable[..., Any]) -> None:
        super().__init__()
        self.does = does

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.does(*tensors)


A, B = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
W, V, U = torch.randn(5, 4), torch.randn(5), torch.randn(2, 3, 5)
SEEN = torch.tensor([[True, True, False], [True, True, True], [False, True, True]])
HEADS = (4, 2, torch.randn(12, 4), None, None, None, False, 0.0, torch.randn(4, 4), None)
IMAGE, KERNEL = torch.randn(2, 4, 6), torch.randn(6, 2, 3)
lpf = lp.functional
CALLS: dict[str, tuple[Any, Any]] = {
    "@": (lambda: A @ B, lambda r: lpf.matmul(A, B, recipe=r)),
    "reflected @": (lambda: B.__rmatmul__(A), lambda r: lpf.matmul(A, B, recipe=r)),
    "torch.matmul": (lambda: torch.matmul(A, other=B), lambda r: lpf.matmul(A, B, recipe=r)),
    "Tensor.matmul": (lambda: A.matmul(B), lambda r: lpf.matmul(A, B, recipe=r)),
    "torch.mm": (lambda: torch.mm(A[0], B[0]), lambda r: lpf.matmul(A[0], B[0], recipe=r)),
    "Tensor.mm": (lambda: A[0].mm(mat2=B[0]), lambda r: lpf.matmul(A[0], B[0], recipe=r)),
    "torch.bmm": (lambda: torch.bmm(A, B), lambda r: lpf.bmm(A, B, recipe=r)),
    "Tensor.bmm": (lambda: A.bmm(B), lambda r: lpf.bmm(A, B, recipe=r)),
    "torch.addmm": (
        lambda: torch.addmm(V, A[0], B[0]),
        lambda r: lpf.addmm(V, A[0], B[0], recipe=r),
    ),
    "Tensor.addmm": (
        lambda: U[0].addmm(A[0], B[0], beta=0.5, alpha=2),
        lambda r: lpf.addmm(U[0], A[0], B[0], beta=0.5, alpha=2, recipe=r),
    ),
    "torch.baddbmm": (
        lambda: torch.baddbmm(U, A, B, alpha=0.3),
        lambda r: lpf.baddbmm(U, A, B, alpha=0.3, recipe=r),
    ),
    "Tensor.baddbmm": (lambda: U.baddbmm(A, B), lambda r: lpf.baddbmm(U, A, B, recipe=r)),
    "einsum": (
        lambda: torch.einsum("bij,bjk->bik", A, B),
        lambda r: lpf.einsum("bij,bjk->bik", A, B, recipe=r),
    ),
    "einsum of a list": (
        lambda: torch.einsum("bij,bjk->bik", [A, B]),
        lambda r: lpf.einsum("bij,bjk->bik", A, B, recipe=r),
    ),
    "einsum of sublists": (
        lambda: torch.einsum(A[0], [0, 1], B[0], [1, 2]),
        lambda r: lpf.einsum("ab,bc", A[0], B[0], recipe=r),
    ),
    "F.linear": (lambda: F.linear(A, W, bias=V), lambda r: lpf.linear(A, W, V, recipe=r)),
    "F.bilinear": (
        lambda: F.bilinear(A[0], U[0], B.mT.reshape(2, 4, 5)),
        lambda r: lpf.bilinear(A[0], U[0], B.mT.reshape(2, 4, 5), recipe=r),
    ),
    "F.conv1d": (
        lambda: F.conv1d(IMAGE, KERNEL, padding="same", groups=2),
        lambda r: lpf.conv1d(IMAGE, KERNEL, padding="same", groups=2, recipe=r),
    ),
    "torch.conv2d": (
        lambda: torch.conv2d(IMAGE[:, :, None], KERNEL[:, :, None], None, 1, 1, 1, 2),
        lambda r: lpf.conv2d(IMAGE[:, :, None], KERNEL[:, :, None], None, 1, 1, 1, 2, recipe=r),
    ),
    "F.conv_transpose1d": (
        lambda: F.conv_transpose1d(IMAGE, KERNEL[:4], stride=2, output_padding=1),
        lambda r: lpf.conv_transpose1d(IMAGE, KERNEL[:4], stride=2, output_padding=1, recipe=r),
    ),
    "F.scaled_dot_product_attention": (
        lambda: F.scaled_dot_product_attention(A, A, A, attn_mask=SEEN, scale=0.3),
        lambda r: lpf.scaled_dot_product_attention(A, A, A, SEEN, scale=0.3, recipe=r),
    ),
    "F.multi_head_attention_forward": (
        lambda: F.multi_head_attention_forward(A, A, A, *HEADS, key_padding_mask=~SEEN[:, :2])[0],
        lambda r: lpf.multi_head_attention_forward(
            A, A, A, *HEADS, key_padding_mask=~SEEN[:, :2], recipe=r
        )[0],
    ),
}


def inside(does: Callable[..., Any], recipe: Any = DETERMINISTIC) -> Any:
    return lp.convert(Calls(does), recipe)()


@pytest.mark.parametrize("call, emulated", CALLS.values(), ids=CALLS)
def test_calls_are_emulated(call: Any, emulated: Any) -> None:
    torch.manual_seed(5)
    want = emulated(STOCHASTIC)
    torch.manual_seed(5)
    assert_bit_equal(inside(call, STOCHASTIC), want)
    assert not torch.equal(want, call())
    native = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2")
    assert_bit_equal(inside(call, native), emulated(native))
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


@pytest.mark.parametrize("call", TORCHS.values(), ids=TORCHS)
def test_other_calls_stay_torchs(call: Any) -> None:
    assert torch.equal(inside(call), call())


def test_float64_operands_are_refused() -> None:
    for call in (lambda: A.double() @ B.double(), lambda: F.linear(A, W.double())):
        with pytest.raises(RuntimeError, match=r"an operand is float64, .* exclude the module"):
            inside(call)
    assert torch._C._len_torch_function_stack() == 0


def test_gradients_of_calls_are_emulated() -> None:
    a, b = (t.clone().requires_grad_() for t in (A, B))
    got, want = inside(lambda: a @ b), lp.functional.matmul(a, b, recipe=DETERMINISTIC)
    for x, y in zip(
        torch.autograd.grad(got.square().sum(), (a, b)),
        torch.autograd.grad(want.square().sum(), (a, b)),
        strict=True,
    ):
        assert_bit_equal(x, y)


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

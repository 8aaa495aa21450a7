"""The NaNs that have the bits of docs/contract.md, and the NaNs that are torch's."""

import pytest
import torch

import lpkernels as lp
from tests.compare import assert_bit_equal

F = lp.functional
# Two NaN with other bits than 0x7fc00000, and infinities: their difference is a third NaN.
SPECIAL = torch.tensor([-0x3EDCBB, 0x7FA00001, 0x7F800000, -0x800000], dtype=torch.int32)
SPECIAL = SPECIAL.view(torch.float32)


def nans(x: torch.Tensor) -> set[int]:
    """The bits of every NaN in x."""
    bits = {2: torch.int16, 4: torch.int32}[x.element_size()]
    found = x.detach().contiguous().view(bits)[x.isnan()]
    return {each % 2 ** (8 * x.element_size()) for each in found.tolist()}


def special(*shape: int) -> torch.Tensor:
    x = torch.ones(shape)
    x.view(-1)[:4] = SPECIAL
    return x


def test_emulated_gradients_have_one_nan(backend: str) -> None:
    x, w, b = special(4, 4), torch.ones(3, 4), torch.ones(3)
    leaves = [each.requires_grad_() for each in (x, w, b)]
    recipe = lp.Recipe(input="e5m2", fprop="e6m9", dgrad="e6m9", wgrad="e6m9")
    y = F.linear(*leaves, recipe=recipe, backend=backend)
    found = torch.autograd.grad(y, leaves, special(4, 3))
    assert [nans(each) for each in (y, *found)] == [{0x7FC00000}] * 4


@pytest.mark.parametrize("dtype, bits", [(torch.float16, 0x7E00), (torch.bfloat16, 0x7FC0)])
def test_quantize_has_one_nan_in_narrow_dtypes(dtype: torch.dtype, bits: int, backend: str) -> None:
    x = special(4, 16).to(dtype)
    out = torch.empty_like(x)
    lp.quantize(x, "e5m2", out=out, backend=backend)
    assert nans(lp.quantize(x, "e5m2", backend=backend)) == nans(out) == {bits}


def test_other_nans_are_torchs() -> None:
    x, w = special(4, 4), torch.ones(3, 4)
    native = F.linear(x, w, recipe=lp.Recipe(input="e5m2"))
    assert_bit_equal(native, torch.nn.functional.linear(lp.quantize(x, "e5m2"), w))
    sums = lp.Recipe(fprop="e6m9")
    e = torch.exp(x - x.amax(-1, keepdim=True))
    total = lp.matmul(e, torch.ones(4, 1), "e6m9")
    assert_bit_equal(F.softmax(x, -1, recipe=sums), e / total)
    zx, zh = F.linear(x, torch.ones(3, 4), recipe=sums), F.linear(x[:, :1], w[:, :1], recipe=sums)
    h = F.gru_cell(x, x[:, :1], w, w[:, :1], recipe=sums)
    (xr, xz, xn), (hr, hz, hn) = zx.chunk(3, -1), zh.chunk(3, -1)
    z, n = (xz + hz).sigmoid(), (xn + (xr + hr).sigmoid() * hn).tanh()
    assert_bit_equal(h, n + z * (x[:, :1] - n))


def test_the_gradient_of_a_quantizer_passes_as_it_came() -> None:
    x, given = torch.ones(4, requires_grad=True), special(4)
    (got,) = torch.autograd.grad(lp.quantize(x, "e5m2"), x, given)
    assert_bit_equal(got, given)

"""conv_transpose1d, 2d, 3d: values and gradients against the reference, and torch's conventions."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.reference import twin
from lpkernels.reference.values import narrow, widen
from lpkernels.rng import SITE_BIAS, SITE_OUTPUT, SITE_QUANTIZE, Role, derive_seed, draws
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES, STOCHASTIC

SEED = 987654321
CONV = {i: getattr(lp.functional, f"conv_transpose{i}d") for i in (1, 2, 3)}
TORCH_CONV = {i: getattr(F, f"conv_transpose{i}d") for i in (1, 2, 3)}


class Case(NamedTuple):
    """Shapes and numbers of one transposed convolution."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int
    dilation: tuple[int, ...]

    @property
    def numbers(self) -> tuple[Any, ...]:
        return self[2:]

    @property
    def channels(self) -> int:
        return self.w[1] * self.groups


CASES = {
    "1d": Case((2, 3, 5), (3, 2, 3), (1,), (0,), (0,), 1, (1,)),
    "1d room beyond the stride": Case((2, 2, 4), (2, 3, 2), (1,), (1,), (2,), 1, (3,)),
    "2d strided": Case((2, 3, 4, 3), (3, 2, 3, 2), (2, 3), (1, 0), (1, 2), 1, (1, 1)),
    "2d groups": Case((1, 4, 3, 4), (4, 2, 3, 3), (2, 1), (1, 1), (0, 0), 2, (1, 2)),
    "2d kernel below the stride": Case(
        (1, 2, 3, 3), (2, 2, 1, 2), (3, 3), (0, 0), (2, 1), 1, (1, 1)
    ),
    "3d": Case((1, 2, 2, 3, 2), (2, 2, 2, 2, 3), (1, 2, 1), (0, 1, 1), (0, 1, 0), 1, (1, 1, 1)),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
Operands = tuple[torch.Tensor, ...]


def operands(case: Case) -> Operands:
    """x, weight and bias that require gradients."""
    shapes = (case.x, case.w, (case.channels,))
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes)


def small_operands() -> Operands:
    return operands(CASES["2d groups"])


def gradients(y: torch.Tensor, tensors: Operands) -> list[torch.Tensor]:
    """y and the gradients of tensors, for one fixed output gradient."""
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    return [y.detach(), *torch.autograd.grad(y, tensors, g)]


def biased(y: np.ndarray, bias: np.ndarray, acc: lp.Accumulator, seed: int) -> np.ndarray:
    """y (N, C, *) plus bias (C,): one addition in the outermost accumulator.

    Its draws are keyed by position.
    """
    rows = np.moveaxis(y, 1, -1)
    flat = np.ascontiguousarray(rows).reshape(-1, y.shape[1])
    bits = None
    if acc.outermost_rounding == "stochastic":
        row, col = np.arange(len(flat))[:, None], np.arange(y.shape[1])
        bits = draws(seed, SITE_BIAS, row, col, 0, acc.random_bits, acc.rng)
    total = twin.add(
        widen(flat), widen(bias), acc.outermost, acc.outermost_rounding,
        draws=bits, random_bits=acc.random_bits,
    )  # fmt: skip
    return np.moveaxis(narrow(total).reshape(rows.shape), -1, 1)


def expected(case: Case, tensors: Operands, recipe: lp.Recipe, shape: Any) -> list[np.ndarray]:
    """y, dx, dw, db composed of the passes of the reference's convolution."""

    def rounded(a: np.ndarray, quantizer: Any, role: Role, site: int = SITE_QUANTIZE) -> Any:
        seed = derive_seed(SEED, role)
        a = np.ascontiguousarray(a)
        return a if quantizer is None else twin.quantize(a, quantizer, seed=seed, site=site)

    def seed(role: Role) -> dict[str, int]:
        return {"seed": derive_seed(SEED, role)}

    x, w, b = (t.detach().numpy() for t in tensors)
    conv = (case.stride, case.padding, case.dilation, case.groups)
    xq, wq = rounded(x, recipe.input, Role.INPUT), rounded(w, recipe.weight, Role.WEIGHT)
    bq = rounded(b, recipe.bias, Role.BIAS)
    y = twin.conv_dgrad(xq, wq, shape, *conv, recipe.fprop, **seed(Role.FPROP))
    y = biased(y, bq, recipe.fprop, derive_seed(SEED, Role.FPROP))
    y = rounded(y, recipe.output, Role.OUTPUT, SITE_OUTPUT)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).numpy()
    gq = rounded(g, recipe.grad_output, Role.GRAD_OUTPUT)
    dx = twin.conv_fprop(gq, wq, None, *conv, recipe.dgrad, **seed(Role.DGRAD))
    dx = dx[tuple(slice(n) for n in x.shape)]
    dw = twin.conv_wgrad(gq, xq, w.shape, *conv, recipe.wgrad, **seed(Role.WGRAD))
    rows = np.ascontiguousarray(np.moveaxis(gq, 1, -1)).reshape(-1, case.channels)
    ones = np.ones((1, len(rows)), np.float32)
    db = twin.matmul(ones, rows, None, recipe.wgrad, **seed(Role.GRAD_BIAS))
    return [
        y,
        rounded(dx, recipe.grad_input, Role.GRAD_INPUT),
        rounded(dw, recipe.grad_weight, Role.GRAD_WEIGHT),
        db.reshape(-1),
    ]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@cases
def test_conv_transpose_equals_the_composition_of_the_reference(
    recipe: lp.Recipe, case: Case, backend: str
) -> None:
    tensors, seed = operands(case), torch.tensor(SEED)
    conv = CONV[len(case.stride)]
    y = conv(*tensors, *case.numbers, recipe=recipe, generator=seed, backend=backend)
    want = expected(case, tensors, recipe, tuple(y.shape))
    for name, a, c in zip(("y", "dx", "dw", "db"), gradients(y, tensors), want, strict=True):
        assert_bit_equal(a, c, name)


@pytest.mark.parametrize("product", ["fp32", "native"])
@cases
def test_conv_transpose_without_rounding_is_torch_within_fp32(case: Case, product: str) -> None:
    sums = lp.Recipe(input="fp32", fprop=product, dgrad=product, wgrad=product)
    tensors, dims = operands(case), len(case.stride)
    got = CONV[dims](*tensors, *case.numbers, recipe=sums)
    want = TORCH_CONV[dims](*tensors, *case.numbers)
    for a, c in zip(gradients(got, tensors), gradients(want, tensors), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 3])
def test_conv_transpose_in_native_chunks_is_torch_within_fp32(chunk: int) -> None:
    acc = lp.Accumulator("fp32", order="native", chunk=chunk)
    tensors, case = small_operands(), CASES["2d groups"]
    got = CONV[2](*tensors, *case.numbers, recipe=lp.Recipe(fprop=acc, dgrad=acc, wgrad=acc))
    want = F.conv_transpose2d(*tensors, *case.numbers)
    for a, c in zip(gradients(got, tensors), gradients(want, tensors), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-5)


def test_conv_transpose_is_the_input_gradient_of_the_convolution() -> None:
    w, x = torch.randn(4, 2, 3, 3), torch.randn(2, 4, 5, 5)
    image = torch.zeros(2, 2, 7, 7, requires_grad=True)
    y = lp.functional.conv2d(image, w, recipe=lp.Recipe(dgrad="e5m3"))
    (want,) = torch.autograd.grad(y, image, x)
    assert_bit_equal(lp.functional.conv_transpose2d(x, w, recipe=lp.Recipe(fprop="e5m3")), want)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_conv_transpose_without_a_batch_dimension(dims: int) -> None:
    x, w = torch.randn(1, 2, *(5,) * dims), torch.randn(2, 3, *(3,) * dims)
    got = CONV[dims](x[0], w, recipe=DETERMINISTIC)
    assert_bit_equal(got, CONV[dims](x, w, recipe=DETERMINISTIC)[0])


def test_conv_transpose_of_an_empty_batch() -> None:
    _, w, b = small_operands()
    x = torch.randn(0, 4, 3, 4, requires_grad=True)
    y = lp.functional.conv_transpose2d(x, w, b, groups=2, recipe=DETERMINISTIC)
    assert y.shape == F.conv_transpose2d(x, w, b, groups=2).shape
    y.sum().backward()
    assert not w.grad.any() and not b.grad.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_conv_transpose_fp32_recipe_is_torchs_own_function(dtype: torch.dtype) -> None:
    x, w, b = (t.to(dtype) for t in small_operands())
    got = lp.functional.conv_transpose2d(x, w, b, 2, groups=2, recipe="fp32")
    assert_bit_equal(got, F.conv_transpose2d(x, w, b, 2, groups=2))


@pytest.mark.parametrize("needs", list(itertools.product([False, True], repeat=3)), ids=str)
def test_conv_transpose_computes_the_gradients_asked_for(needs: tuple[bool, ...]) -> None:
    def conv(*tensors: torch.Tensor) -> torch.Tensor:
        call: dict[str, Any] = {"recipe": STOCHASTIC, "generator": torch.tensor(SEED)}
        return lp.functional.conv_transpose2d(*tensors, groups=2, **call)

    tensors = small_operands()
    every = gradients(conv(*tensors), tensors)[1:]
    some = [t.detach().requires_grad_(n) for t, n in zip(tensors, needs, strict=True)]
    y = conv(*some)
    assert y.requires_grad == any(needs)
    if any(needs):
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(3)))
    for tensor, need, want in zip(some, needs, every, strict=True):
        assert (tensor.grad is not None) == need
        if need:
            assert_bit_equal(tensor.grad, want)


def test_conv_transpose_widens_narrow_operands_exactly() -> None:
    narrow_ones = [t.detach().bfloat16().requires_grad_() for t in small_operands()]
    wide = [t.detach().float().requires_grad_() for t in narrow_ones]

    def run(tensors: Any) -> list[torch.Tensor]:
        y = lp.functional.conv_transpose2d(*tensors, groups=2, recipe=DETERMINISTIC)
        return gradients(y, tensors)

    got, want = run(narrow_ones), run(wide)
    assert_bit_equal(got[0], want[0])
    for a, c in zip(got[1:], want[1:], strict=True):
        assert_bit_equal(a, c.bfloat16())


def test_conv_transpose_does_not_depend_on_the_memory_format(backend: str) -> None:
    tensors = small_operands()
    last = [t.detach().requires_grad_() for t in tensors]
    for i in (0, 1):
        last[i] = last[i].detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    seed = torch.tensor(SEED)

    def run(each: Any) -> list[torch.Tensor]:
        call: dict[str, Any] = {"recipe": STOCHASTIC, "generator": seed, "backend": backend}
        return gradients(lp.functional.conv_transpose2d(*each, groups=2, **call), each)

    for a, c in zip(run(last), run(tensors), strict=True):
        assert_bit_equal(a, c)


def test_conv_transpose_result_can_be_changed_in_place() -> None:
    x, w, b = small_operands()
    for recipe in (lp.Recipe(input="e4m3"), DETERMINISTIC):
        for image in (x, x[0]):
            y = lp.functional.conv_transpose2d(image, w, b, groups=2, recipe=recipe)
            y.relu_().sum().backward()
    assert x.grad is not None


def test_conv_transpose_compiles_into_one_graph() -> None:
    tensors = small_operands()

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return lp.functional.conv_transpose2d(x, w, b, 2, 1, 1, 2, recipe=STOCHASTIC)

    torch.manual_seed(1)
    want = gradients(layer(*tensors), tensors)
    torch.manual_seed(1)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for a, c in zip(gradients(compiled(*tensors), tensors), want, strict=True):
        assert_bit_equal(a, c)


X, W, B = torch.ones(2, 4, 5, 5), torch.ones(4, 3, 3, 3), torch.ones(6)


@pytest.mark.parametrize(
    "arguments, keywords, error, match",
    [
        ((X.double(), W, B), {}, TypeError, r"conv_transpose2d: x is float64"),
        ((X, W.int(), B), {}, TypeError, r"weight must be float.*int32"),
        ((X[0, 0], W, B), {}, ValueError, r"x has shape \(5, 5\).*\(N, C_in, H, W\)"),
        ((X, W[0], B), {}, ValueError, r"weight \(3, 3, 3\)"),
        ((X, W[:2], B), {}, ValueError, r"x has C_in=4 but weight has C_in=2"),
        ((X, W, B), {"groups": 3}, ValueError, r"groups=3 with C_in=4; expected"),
        ((X, W, B), {"groups": 0}, ValueError, r"groups=0 with"),
        ((X, W, B[:3]), {}, ValueError, r"bias has shape \(3,\).*must be \(6,\)"),
        ((X, W, B), {"stride": 0}, ValueError, r"stride=0; expected an int or 2 ints, each at le"),
        ((X, W, B), {"padding": "same"}, TypeError, r"padding='same'; expected an int or 2 ints"),
        ((X, W, B), {"output_padding": 1}, ValueError, r"output_padding=\(1, 1\) must be smaller"),
        ((X, W, B), {"padding": 9}, ValueError, r"output of size \(-11, -11\).*less padding"),
        ((X[..., :0], W, B), {}, ValueError, r"input of size \(5, 0\)"),
        ((X, W, B), {"backend": "gpu"}, ValueError, r"unknown backend 'gpu'"),
        ((X, W, B), {"generator": 3}, TypeError, r"generator must be a torch.Generator.*got int"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_conv_transpose_refuses_wrong_arguments(
    arguments: tuple[Any, ...], keywords: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        lp.functional.conv_transpose2d(
            *arguments, **{"recipe": DETERMINISTIC, "groups": 2, **keywords}
        )

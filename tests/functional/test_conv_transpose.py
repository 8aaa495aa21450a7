"""conv_transpose1d, 2d, 3d: each step is one of the reference's, and all else is as in torch.

What transposed convolutions share with linear is tested in test_every_layer.py.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.reference import twin
from lpkernels.reference.values import narrow, widen
from lpkernels.rng import SITE_BIAS, draws
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES
from tests.loops import each
from tests.support.autograd import close, gradients, leaves, output_gradients, same
from tests.support.composition import SEED, Steps
from tests.support.refusals import Row, refuses

CONV = {dims: getattr(lp.functional, f"conv_transpose{dims}d") for dims in (1, 2, 3)}
TORCH_CONV = {dims: getattr(F, f"conv_transpose{dims}d") for dims in (1, 2, 3)}


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


def operands(case: Case) -> list[torch.Tensor]:
    """x, weight and bias that require gradients."""
    return leaves(case.x, case.w, (case.channels,))


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


def composed(case: Case, tensors: list[torch.Tensor], recipe: lp.Recipe) -> list[np.ndarray]:
    """y, dx, dw, db composed of the passes of the reference's convolution."""
    step, conv = Steps(recipe), (case.stride, case.padding, case.dilation, case.groups)
    shape = tuple(TORCH_CONV[len(case.stride)](*tensors, *case.numbers).shape)
    x, w, b = (t.detach().numpy() for t in tensors)
    xq, wq, bq = step.rounded(x, "input"), step.rounded(w, "weight"), step.rounded(b, "bias")
    y = twin.conv_dgrad(xq, wq, shape, *conv, recipe.fprop, seed=step.seed_of("fprop"))
    y = step.rounded(biased(y, bq, recipe.fprop, step.seed_of("fprop")), "output")
    gq = step.rounded(output_gradients(shape)[0].numpy(), "grad_output")
    dx = twin.conv_fprop(gq, wq, None, *conv, recipe.dgrad, seed=step.seed_of("dgrad"))
    dx = step.rounded(dx[tuple(slice(n) for n in x.shape)], "grad_input")
    dw = twin.conv_wgrad(gq, xq, w.shape, *conv, recipe.wgrad, seed=step.seed_of("wgrad"))
    db = step.bias_gradient(np.moveaxis(gq, 1, -1).reshape(-1, case.channels))
    return [y, dx, step.rounded(dw, "grad_weight"), db]


@each("recipe", RECIPES.values())
@each("case", CASES.values())
def test_conv_transpose_is_its_steps_by_the_reference(
    recipe: lp.Recipe, case: Case, backends: list[str]
) -> None:
    tensors, conv = operands(case), CONV[len(case.stride)]
    want = composed(case, tensors, recipe)
    for backend in backends:
        call: dict[str, Any] = {"generator": torch.tensor(SEED), "backend": backend}
        y = conv(*tensors, *case.numbers, recipe=recipe, **call)
        same(gradients(y, tensors), want, backend, ("y", "dx", "dw", "db"))


@each("product", ["fp32", "native", "native_chunk1", "native_chunk3"])
@each("case", CASES.values())
def test_sums_in_fp32_are_torchs_within_rounding(case: Case, product: str) -> None:
    sums = lp.Recipe(input="fp32", fprop=product, dgrad=product, wgrad=product)
    tensors, dims = operands(case), len(case.stride)
    got = gradients(CONV[dims](*tensors, *case.numbers, recipe=sums), tensors)
    close(got, gradients(TORCH_CONV[dims](*tensors, *case.numbers), tensors))


def test_conv_transpose_is_the_input_gradient_of_the_convolution() -> None:
    w, x = torch.randn(4, 2, 3, 3), torch.randn(2, 4, 5, 5)
    image = torch.zeros(2, 2, 7, 7, requires_grad=True)
    y = lp.functional.conv2d(image, w, recipe=lp.Recipe(dgrad="e5m3"))
    (want,) = torch.autograd.grad(y, image, x)
    assert_bit_equal(lp.functional.conv_transpose2d(x, w, recipe=lp.Recipe(fprop="e5m3")), want)


@each("dims", [1, 2, 3])
def test_an_image_alone_is_a_batch_of_one(dims: int) -> None:
    x, w = leaves((1, 2, *(5,) * dims), (2, 3, *(3,) * dims))
    got = CONV[dims](x[0], w, recipe=DETERMINISTIC)
    assert_bit_equal(got, CONV[dims](x, w, recipe=DETERMINISTIC)[0])


def test_an_empty_batch_has_gradients_of_zero() -> None:
    x, w, b = leaves((0, 4, 3, 4), (4, 2, 3, 3), (4,))
    y = lp.functional.conv_transpose2d(x, w, b, groups=2, recipe=DETERMINISTIC)
    assert y.shape == F.conv_transpose2d(x, w, b, groups=2).shape
    y.sum().backward()
    assert not w.grad.any() and not b.grad.any()


X, W, B = torch.ones(2, 4, 5, 5), torch.ones(4, 3, 3, 3), torch.ones(6)
REFUSED: list[Row] = [
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
]
test_wrong_arguments_are_refused = refuses(
    lp.functional.conv_transpose2d, REFUSED, recipe=DETERMINISTIC, groups=2
)

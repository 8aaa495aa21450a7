"""conv1d, conv2d, conv3d: each step is one of the reference's, and all else is as in torch.

What convolutions share with linear is tested in test_every_layer.py.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.reference import twin
from tests.cases import CONV_CASES, ConvCase
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES
from tests.loops import each
from tests.support.autograd import close, gradients, leaves, output_gradients, same
from tests.support.composition import SEED, Steps
from tests.support.refusals import Row, refuses

CONV = {dims: getattr(lp.functional, f"conv{dims}d") for dims in (1, 2, 3)}
TORCH_CONV = {dims: getattr(F, f"conv{dims}d") for dims in (1, 2, 3)}
SUMS = lp.Recipe(input="fp32", fprop="fp32", dgrad="fp32", wgrad="fp32")


def operands(case: ConvCase) -> list[torch.Tensor]:
    """x, weight and bias that require gradients."""
    return leaves(case.input_shape, case.weight_shape, case.weight_shape[:1])


def numbers(case: ConvCase) -> tuple[Any, ...]:
    return case.stride, case.padding, case.dilation, case.groups


def composed(case: ConvCase, tensors: list[torch.Tensor], recipe: lp.Recipe) -> list[np.ndarray]:
    """y, dx, dw, db: every rounding and every product is the reference's."""
    step, rest = Steps(recipe), numbers(case)
    x, w, b = (t.detach().numpy() for t in tensors)
    xq, wq, bq = step.rounded(x, "input"), step.rounded(w, "weight"), step.rounded(b, "bias")
    y = twin.conv_fprop(xq, wq, bq, *rest, recipe.fprop, seed=step.seed_of("fprop"))
    y = step.rounded(y, "output")
    gq = step.rounded(output_gradients(y.shape)[0].numpy(), "grad_output")
    dx = twin.conv_dgrad(gq, wq, x.shape, *rest, recipe.dgrad, seed=step.seed_of("dgrad"))
    dw = twin.conv_wgrad(xq, gq, w.shape, *rest, recipe.wgrad, seed=step.seed_of("wgrad"))
    db = step.bias_gradient(np.moveaxis(gq, 1, -1).reshape(-1, len(w)))
    return [y, step.rounded(dx, "grad_input"), step.rounded(dw, "grad_weight"), db]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@each("case", CONV_CASES.values())
def test_conv_is_its_steps_by_the_reference(
    recipe: lp.Recipe, case: ConvCase, backends: list[str]
) -> None:
    tensors, conv = operands(case), CONV[len(case.stride)]
    want = composed(case, tensors, recipe)
    for backend in backends:
        call: dict[str, Any] = {"generator": torch.tensor(SEED), "backend": backend}
        y = conv(*tensors, *numbers(case), recipe=recipe, **call)
        same(gradients(y, tensors), want, backend, ("y", "dx", "dw", "db"))


@each("case", CONV_CASES.values())
def test_quantizers_alone_leave_the_products_to_torch(case: ConvCase) -> None:
    recipe = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2")
    (x, w, b), dims = operands(case), len(case.stride)
    got = gradients(CONV[dims](x, w, b, *numbers(case), recipe=recipe), [x, w, b])
    rounded = [lp.quantize(x, "e4m3").detach(), lp.quantize(w, "e5m2").detach(), b]
    y = TORCH_CONV[dims](*(t.requires_grad_() for t in rounded), *numbers(case))
    g = lp.quantize(*output_gradients(y.shape), "e5m2")
    close(got, [y, *torch.autograd.grad(y, rounded, g)])


@each("dims", [1, 2, 3])
@each("kernel, dilation", [(3, 1), (2, 1), (4, 3)])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_same_padding_is_torchs(dims: int, kernel: int, dilation: int) -> None:
    tensors = leaves((2, 2, 6, 5, 7)[: dims + 2], (3, 2, kernel, 3, kernel)[: dims + 2], (3,))
    got = CONV[dims](*tensors, 1, "same", dilation, recipe=SUMS)
    close(
        gradients(got, tensors), gradients(TORCH_CONV[dims](*tensors, 1, "same", dilation), tensors)
    )


def test_valid_padding_is_none_and_one_number_stands_for_both_sizes() -> None:
    x, w, b = operands(CONV_CASES["conv2d_groups"])
    for given, meant in (
        ((1, "valid", 1, 2), ((1, 1), (0, 0), (1, 1), 2)),
        ((2, [1], (1,), 2), ((2, 2), (1, 1), (1, 1), 2)),
    ):
        want = lp.functional.conv2d(x, w, b, *meant, recipe=DETERMINISTIC)
        assert_bit_equal(lp.functional.conv2d(x, w, b, *given, recipe=DETERMINISTIC), want)


@each("dims", [1, 2, 3])
def test_an_image_alone_is_a_batch_of_one(dims: int) -> None:
    x, w = leaves((1, 2, *(5,) * dims), (3, 2, *(3,) * dims))
    got = CONV[dims](x[0], w, recipe=DETERMINISTIC)
    assert_bit_equal(got, CONV[dims](x, w, recipe=DETERMINISTIC)[0])


@each("order", ["sequential", "native"])
def test_results_have_row_major_strides_where_a_size_is_one(backend: str, order: str) -> None:
    """The strides decide which kernel torch's batch norm picks, and so its last bits."""
    acc = lp.Accumulator(order=order, chunk=4, outer="e6m9")
    recipe = lp.Recipe(fprop=acc, dgrad=acc, wgrad=acc)
    x, w = leaves((2, 3, 1, 1), (4, 3, 1, 1))
    y = lp.functional.conv2d(x, w, recipe=recipe, backend=backend)
    strides = [t.stride() for t in (y, *torch.autograd.grad(y.sum(), (x, w)))]
    assert strides == [(4, 1, 1, 1), (3, 1, 1, 1), (3, 1, 1, 1)]


X, W, B = torch.ones(2, 4, 5, 5), torch.ones(6, 2, 3, 3), torch.ones(6)
REFUSED: list[Row] = [
    ((X.double(), W, B), {}, TypeError, r"conv2d: x is float64.*quantize\(x, fmt\).float\(\)"),
    ((X, W.int(), B), {}, TypeError, r"weight must be float.*int32"),
    ((X[0, 0], W, B), {}, ValueError, r"x has shape \(5, 5\).*\(N, C_in, H, W\)"),
    ((X, W[0], B), {}, ValueError, r"weight \(2, 3, 3\)"),
    ((X, W, B), {"groups": 1}, ValueError, r"C_in=4 but weight has C_in / groups=2 with gro"),
    ((X, W, B), {"groups": 4}, ValueError, r"groups=4 with C_in=4 and C_out=6; expected"),
    ((X, W, B), {"groups": 0}, ValueError, r"groups=0 with"),
    ((X, W, B[:3]), {}, ValueError, r"bias has shape \(3,\).*must be \(6,\)"),
    ((X, W.to("meta"), B), {}, ValueError, r"one device.*weight on meta"),
    ((X, W, B), {"stride": 0}, ValueError, r"stride=0; expected an int or 2 ints, each at le"),
    ((X, W, B), {"dilation": (1, 1, 1)}, ValueError, r"dilation=\(1, 1, 1\); expected"),
    ((X, W, B), {"padding": -1}, ValueError, r"padding=-1; .* at least 0"),
    ((X, W, B), {"stride": 1.5}, TypeError, r"stride=1.5; expected an int or 2 ints"),
    ((X, W, B), {"padding": "full"}, ValueError, r"padding='full'; expected \"same\", \"valid"),
    ((X, W, B), {"padding": "same", "stride": 2}, ValueError, r"\"same\" needs stride 1"),
    ((X, W, B), {"dilation": 3}, ValueError, r"kernel \(3, 3\) .* spans \(7, 7\) .* \(5, 5\)"),
    ((X, W, B), {"recipe": "fp9"}, ValueError, r"unknown name 'fp9'"),
    ((X, W, B), {"backend": "gpu"}, ValueError, r"unknown backend 'gpu'"),
    ((X, W, B), {"generator": 3}, TypeError, r"generator must be a torch.Generator.*got int"),
]
test_wrong_arguments_are_refused = refuses(
    lp.functional.conv2d, REFUSED, recipe=DETERMINISTIC, groups=2
)

"""What every function that takes a recipe refuses: axes that a tensor lacks, unknown backends,
generators that are none, and float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels import functional as F
from lpkernels.backends._layout import axis_sizes
from lpkernels.reference.quantize import quantize as reference
from tests.compare import assert_bit_equal

ACC = lp.Accumulator("e8m23")


def t(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator).requires_grad_()


def multi_head(**options: Any) -> Any:
    projections = (t(12, 4), t(12), None, None, False, 0.0, t(4, 4), t(4))
    return F.multi_head_attention_forward(*[t(5, 3, 4)] * 3, 4, 2, *projections, **options)


def attention(**options: Any) -> Any:
    return F.scaled_dot_product_attention(t(2, 3, 4), t(2, 5, 4), t(2, 5, 4), **options)


CELL = (t(12, 4), t(12, 3), t(12), t(12))
AFFINE, INDICES = (t(4, 5), t(4, 5)), torch.tensor([[0, 1]])
LAYER = [t(9, 4), t(9, 3), t(9), t(9)]
#: Each function, and the dimensions of its input, weight, bias and output: the least, where its
#: products differ, and 0 for a tensor that it does not round.
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, int, int, int]]] = {
    "linear": (lambda **o: F.linear(t(2, 3, 4), t(3, 4), t(3), **o), (3, 2, 1, 3)),
    "conv1d": (lambda **o: F.conv1d(t(2, 3, 5), t(4, 3, 2), t(4), **o), (3, 3, 1, 3)),
    "conv2d": (lambda **o: F.conv2d(t(2, 3, 5, 4), t(4, 3, 2, 2), t(4), **o), (4, 4, 1, 4)),
    # An image alone is rounded as a batch of one.
    "conv3d": (lambda **o: F.conv3d(t(3, 4, 4, 4), t(4, 3, 2, 2, 2), t(4), **o), (5, 5, 1, 5)),
    "conv_transpose2d": (
        lambda **o: F.conv_transpose2d(t(2, 3, 5, 4), t(3, 4, 2, 2), t(4), **o),
        (4, 4, 1, 4),
    ),
    "bilinear": (
        lambda **o: F.bilinear(t(2, 5, 3), t(2, 5, 4), t(6, 3, 4), t(6), **o),
        (2, 2, 1, 2),
    ),
    "embedding": (lambda **o: F.embedding(INDICES, t(3, 4), **o), (0, 2, 0, 3)),
    "bmm": (lambda **o: F.bmm(t(2, 3, 4), t(2, 4, 3), **o), (3, 3, 0, 3)),
    "baddbmm": (lambda **o: F.baddbmm(t(3), t(2, 3, 4), t(2, 4, 3), **o), (3, 3, 1, 3)),
    "addmm": (lambda **o: F.addmm(t(3), t(3, 4), t(4, 3), **o), (2, 2, 1, 2)),
    "matmul": (lambda **o: lp.matmul(t(2, 3, 4), t(4, 3), **o), (3, 2, 0, 3)),
    "einsum": (lambda **o: F.einsum("ij,jk->ik", t(3, 4), t(4, 3), **o), (3, 3, 0, 3)),
    "scaled_dot_product_attention": (attention, (3, 3, 0, 3)),
    "multi_head_attention_forward": (multi_head, (3, 2, 1, 3)),
    "lstm": (lambda **o: F.lstm(t(5, 2, 4), (t(1, 2, 3),) * 2, CELL, **o)[0], (2, 2, 1, 2)),
    "gru": (lambda **o: F.gru(t(5, 2, 4), t(1, 2, 3), LAYER, **o)[0], (2, 2, 1, 2)),
    "lstm_cell": (lambda **o: F.lstm_cell(t(3, 4), (t(3, 3),) * 2, *CELL, **o)[0], (2, 2, 1, 2)),
    "layer_norm": (lambda **o: F.layer_norm(t(3, 4, 5), (4, 5), *AFFINE, **o), (3, 2, 2, 3)),
    "rms_norm": (lambda **o: F.rms_norm(t(3, 4), (4,), t(4), **o), (2, 1, 0, 2)),
    "group_norm": (lambda **o: F.group_norm(t(3, 4, 5), 2, t(4), t(4), **o), (3, 1, 1, 3)),
    "batch_norm": (
        lambda **o: F.batch_norm(t(3, 4), None, None, t(4), t(4), True, **o),
        (2, 1, 1, 2),
    ),
    "softmax": (lambda **o: F.softmax(t(3, 4), -1, **o), (2, 0, 0, 2)),
    "gelu": (lambda **o: F.gelu(t(3, 4), **o), (2, 0, 0, 2)),
}


def ranks(function: str) -> dict[str, int]:
    """The dimensions of every tensor of a recipe that the function rounds."""
    of_input, weight, bias, output = FUNCTIONS[function][1]
    found = {"input": of_input, "weight": weight, "bias": bias, "output": output}
    found |= {"grad_input": of_input, "grad_weight": weight, "grad_output": output}
    return {name: rank for name, rank in found.items() if rank}


every_function = pytest.mark.parametrize("function", FUNCTIONS)


@every_function
def test_an_axis_that_a_tensor_lacks_is_refused_before_anything_is_drawn(function: str) -> None:
    (call, _), of = FUNCTIONS[function], ranks(function)
    before = torch.get_rng_state()
    for name, rank in of.items():
        plural = "" if rank == 1 else "s"
        for axis in (rank, -rank - 1):
            match = (
                f"^{function}: affine4_axis{axis} runs along axis {axis}, but {function}'s {name} "
                rf"has {rank} dimension{plural}; the axis must be in {-rank}\.\.{rank - 1}$"
            )
            with pytest.raises(ValueError, match=match):
                call(recipe=lp.Recipe(**{name: f"affine4_axis{axis}:stochastic"}))
    assert torch.equal(torch.get_rng_state(), before)


@every_function
def test_unknown_backends_other_generators_and_float64_are_refused(function: str) -> None:
    (call, _), recipe = FUNCTIONS[function], lp.Recipe(input="e4m3", weight="e4m3", fprop="e6m9")
    with pytest.raises(ValueError, match="unknown backend 'gpu'"):
        call(recipe=recipe, backend="gpu")
    with pytest.raises(TypeError, match="generator must be"):
        call(recipe=recipe, generator=3)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(TypeError, match="float64"):
            call(recipe=recipe)
    finally:
        torch.set_default_dtype(torch.float32)


@every_function
def test_the_first_and_the_last_axis_are_taken(function: str) -> None:
    (call, _), of = FUNCTIONS[function], ranks(function)
    for axes in ([-rank for rank in of.values()], [rank - 1 for rank in of.values()]):
        formats: Any = {n: f"block2_axis{a}_e2m1" for n, a in zip(of, axes, strict=True)}
        y = call(recipe=lp.Recipe(**formats))
        (y if isinstance(y, Tensor) else y[0]).sum().backward()


def test_the_result_of_a_product_has_the_axis_of_its_quantizer() -> None:
    match = r"matmul: affine4_axis2 runs along axis 2, but the result has shape \(3, 3\)"
    for acc in (ACC, lp.NATIVE):
        with pytest.raises(ValueError, match=match):
            lp.matmul(t(3, 4), t(4, 3), acc, output="affine4_axis2")
    with pytest.raises(ValueError, match=r"the result has shape .*; a scalar has no axis"):
        lp.matmul(t(4), t(4), ACC, output="affine4_axis0")


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 3)])
def test_on_the_meta_device_too(shape: tuple[int, ...]) -> None:
    # A vector is rounded as a matrix of one row.
    recipe = lp.Recipe(input="affine4_axis2")
    x, w = torch.empty(shape, device="meta"), torch.empty(4, 3, device="meta")
    with pytest.raises(ValueError, match="linear's input has 2 dimensions"):
        F.linear(x, w, recipe=recipe)


def test_softmax_counts_axes_in_the_tensor_that_it_is_given() -> None:
    x, plain = t(3, 4), lp.Recipe(input="fp32")
    for axis in (0, 1):
        fmt = f"affine2_axis{axis}"
        want = F.softmax(lp.quantize(x, fmt), 1, recipe=plain)
        assert_bit_equal(F.softmax(x, 1, recipe=lp.Recipe(input=fmt)), want)


def test_bilinear_counts_axes_in_the_bias_and_the_result() -> None:
    x1, x2, w, b, plain = t(5, 3), t(5, 4), t(6, 3, 4), t(6), lp.Recipe(input="fp32")
    want = F.bilinear(x1, x2, w, lp.quantize(b, "block4_e2m1"), recipe=plain)
    assert_bit_equal(F.bilinear(x1, x2, w, b, recipe=lp.Recipe(bias="block4_e2m1")), want)
    want = lp.quantize(F.bilinear(x1, x2, w, b, recipe=plain), "block4_e2m1")
    assert_bit_equal(F.bilinear(x1, x2, w, b, recipe=lp.Recipe(output="block4_e2m1")), want)


@pytest.mark.parametrize("fmt", ["affine4_axis2", "block4_axis-3_e2m1"])
def test_no_backend_takes_another_axis(fmt: str) -> None:
    quantizer = lp.Quantizer(fmt)
    with pytest.raises(ValueError, match=r"the tensor has shape \(3, 4\); the axis must be in -2"):
        axis_sizes(torch.Size((3, 4)), quantizer.to_ints())
    with pytest.raises(IndexError):
        reference(t(3, 4).detach().numpy(), quantizer)

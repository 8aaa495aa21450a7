"""The common promises of linear, the convolutions and the transposed convolutions."""

from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional as F

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC
from tests.support.autograd import close, gradients, leaves, same


class Layer(NamedTuple):
    """A function by its name, the shapes of x, weight and bias, and its other arguments."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    options: dict[str, Any]

    def operands(self) -> list[torch.Tensor]:
        return leaves(*self.shapes)

    def __call__(self, *tensors: torch.Tensor, **call: Any) -> torch.Tensor:
        return getattr(lp.functional, self.name)(*tensors, **self.options, **call)

    def torchs(self, *tensors: torch.Tensor) -> torch.Tensor:
        return getattr(F, self.name)(*tensors, **self.options)


CONV = Layer("conv2d", ((2, 6, 5, 5), (4, 3, 3, 3), (4,)), {"padding": "same", "groups": 2})
TRANSPOSED = Layer(
    "conv_transpose2d",
    ((1, 4, 3, 4), (4, 2, 3, 3), (4,)),
    {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
)
LAYERS = (Layer("linear", ((2, 4, 5), (3, 5), (3,)), {}), CONV, TRANSPOSED)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_recipe_fp32_is_torchs_own_function(layer: Layer, dtype: torch.dtype) -> None:
    x, w, b = (t.to(dtype) for t in layer.operands())
    assert_bit_equal(layer(x, w, b, recipe="fp32"), layer.torchs(x, w, b))
    assert_bit_equal(layer(x, w), layer.torchs(x, w))


@pytest.mark.parametrize("native", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("layer", LAYERS)
def test_each_product_has_its_own_accumulator(layer: Layer, native: str) -> None:
    fields = {"fprop": "e5m7", "dgrad": "e5m6", "wgrad": "e5m5"}
    tensors = layer.operands()
    emulated = gradients(layer(*tensors, recipe=lp.Recipe(**fields)), tensors)
    mixed = gradients(layer(*tensors, recipe=lp.Recipe(**{**fields, native: "native"})), tensors)
    torchs = gradients(layer.torchs(*tensors), tensors)
    for product, results in {"fprop": (0,), "dgrad": (1,), "wgrad": (2, 3)}.items():
        for i in results:
            if product == native:
                close([mixed[i]], [torchs[i]])
            else:
                assert_bit_equal(mixed[i], emulated[i])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layer", LAYERS)
def test_narrow_operands_are_widened_exactly(layer: Layer, dtype: torch.dtype) -> None:
    narrow = [t.detach().to(dtype).requires_grad_() for t in layer.operands()]
    wide = [t.detach().float().requires_grad_() for t in narrow]
    y, *got = gradients(layer(*narrow, recipe=DETERMINISTIC), narrow)
    want_y, *want = gradients(layer(*wide, recipe=DETERMINISTIC), wide)
    assert_bit_equal(y, want_y)
    same(got, [c.to(dtype) for c in want])


@pytest.mark.parametrize("layer", LAYERS)
def test_an_expanded_gradient_is_taken(layer: Layer) -> None:
    tensors = layer.operands()
    y = layer(*tensors, recipe=DETERMINISTIC)
    want = torch.autograd.grad(y, tensors, torch.ones(y.shape), retain_graph=True)
    same(torch.autograd.grad(y.sum(), tensors), want)


@pytest.mark.parametrize("recipe", [lp.Recipe(input="e4m3"), DETERMINISTIC])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_result_can_be_changed_in_place(layer: Layer, recipe: lp.Recipe) -> None:
    x, w, b = layer.operands()
    for each_x in (x, x[0]):
        layer(each_x, w, b, recipe=recipe).relu_().sum().backward()
    assert x.grad is not None

"""The products of a step, found on the meta device."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lpkernels as lp
from bench.predict.tracing import Traced, trace
from lpkernels.arithmetic import as_quantizer

E5M2 = as_quantizer("e5m2").to_ints()


class Net(nn.Module):
    """A strided convolution, a product of two activations, a layer with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x).flatten(2)
        y = y @ y.transpose(1, 2)
        return self.head(y)


def traced(recipe: str | lp.Recipe, model: type[nn.Module] = Net, *size: int) -> list[Traced]:
    with torch.device("meta"):
        built, x = model(), torch.ones(size or (2, 3, 8, 8))
    return trace(lp.convert(built, recipe), x, torch.sum)


def test_every_pass_of_every_layer_is_found_with_the_sizes_of_its_tensors() -> None:
    found = traced("fp8_wang2018")
    names = [f"{one.layer}:{one.gemm}" for one in found]
    # The images need no gradient.
    assert (
        names
        == (
            "stem:fprop :fprop head:fprop head:dgrad head:wgrad head:bias :dgrad :wgrad stem:wgrad"
        ).split()
    )
    call = found[0].call
    assert (call.op, call.left, call.right) == ("conv_fprop", (2, 3, 8, 8), (8, 3, 3, 3))
    assert call.result == (2, 8, 4, 4)
    assert call.geometry == ((2, 2), (1, 1), (1, 1)) and call.groups == 1
    assert call.acc == lp.recipe("fp8_wang2018").fprop.to_ints()
    assert call.quantizers == (E5M2, E5M2)
    # The gradient of a bias is a product with ones.
    gradient = found[names.index("head:bias")].call
    assert gradient.ones and (gradient.left, gradient.right) == ((1, 16), (16, 5))


def test_operands_rounded_by_a_pass_of_their_own_are_known_too() -> None:
    recipe = lp.Recipe(
        input="e5m2:stochastic", weight="e4m3fn:stochastic", grad_output="bf16:stochastic",
        fprop="e6m9", dgrad="e6m9", wgrad="e6m9",
    )  # fmt: skip
    calls = {(one.layer, one.gemm): one.call for one in traced(recipe)}
    x, w, g = (q.to_ints() for q in (recipe.input, recipe.weight, recipe.grad_output))
    assert calls["head", "fprop"].quantizers == (x, w)
    assert calls["head", "dgrad"].quantizers == (g, w)
    assert calls["head", "wgrad"].quantizers == (g, x)
    # Here the gradient is the right operand.
    assert calls["stem", "wgrad"].quantizers == (x, g)
    # Nothing is known of values that a scale decides.
    recipe = lp.Recipe(input="affine8", fprop="e6m9", dgrad="e6m9", wgrad="e6m9")
    assert traced(recipe)[0].call.quantizers == ((), ())


def test_steps_of_a_recurrent_layer_are_the_layers() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    found = traced("fp8_wang2018", Recurrent, 6, 2, 4)
    assert {one.layer for one in found} == {"lstm"}
    steps = [one for one in found if one.call.left == (2, 3) and one.gemm == "fprop"]
    assert len(steps) == 6 and len(set(steps)) == 1


def test_torchs_own_products_are_none() -> None:
    assert traced("fp16_mixed") == traced("fp32") == []


class Watch(TorchDispatchMode):
    """Notes the number of elements of each tensor that is not on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                self.sizes.append(tensor.numel())
        return result


def test_no_memory_is_taken_and_a_model_that_has_some_is_refused() -> None:
    with Watch() as watch:
        traced("fp8_wang2018", Net, 1 << 20, 3, 64, 64)
    # Only seeds and the integers of a recipe take memory.
    assert max(watch.sizes, default=0) < 1000
    with pytest.raises(ValueError, match="parameters on the meta device, got some on cpu"):
        trace(Net(), torch.ones(1, 3, 8, 8, device="meta"), torch.sum)

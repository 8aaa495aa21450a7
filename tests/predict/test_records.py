"""The products of a step, found on the meta device, and predictions of the step as records."""

import dataclasses
import json

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lpkernels as lp
from bench.predict.records import Prediction, predict
from bench.predict.tracing import Traced, trace
from lpkernels.arithmetic import as_quantizer
from lpkernels.experiments.workloads.bundled import workload
from lpkernels.recipes import as_recipe


def predicted(model: str, recipe: str | lp.Recipe, batch: int) -> list[Prediction]:
    work = workload(model, batch=batch, device="meta")
    lp.convert(work.model, as_recipe(recipe))
    about = {"model": model, "batch": batch}
    return predict(trace(work.model, work.sample, work.loss), "h100", about=about)


def test_shares_sum_to_one_totals_are_sums_and_records_say_what_they_are_of() -> None:
    cuda, triton = predicted("resnet20-cifar", "fp8_wang2018", 4)
    assert (cuda.backend, triton.backend) == ("cuda", "triton")
    for one in (cuda, triton):
        assert sum(row["share"] for row in one.products) == pytest.approx(1)
        for name in ("microseconds", "launches", "macs", "packing_microseconds"):
            assert one.total[name] == sum(row[name] for row in one.products)
        assert one.total["launch_microseconds"] == 2 * one.total["launches"]
        assert one.total["scratch"] == max(row["scratch"] for row in one.products)
        ratio = one.total["microseconds"] / one.total["fp32_microseconds"]
        assert one.total["ratio"] == ratio
        for row in json.loads(json.dumps([*one.products, one.total])):
            assert row["device"] == "h100" and row["model"] == "resnet20-cifar"
            assert row["backend"] == one.backend and row["schema"] == 1
        assert "versions" in one.total["environment"]
    first = cuda.products[0]
    assert (first["layer"], first["gemm"], first["sizes"]) == ("stem", "fprop", [1, 4096, 16, 27])
    # 16 of the tile's 64 columns exist.
    assert first["tile"] == [128, 64] and first["filled"] == 16 / 64
    assert (first["splits"], first["launches"], first["accumulator"]) == (1, 3, "e6m9_chunk64")


def test_equal_products_are_one_record_and_native_chunks_are_fast() -> None:
    cuda, _ = predicted("tiny-lstm", "fp8_wang2018", 2)
    steps = [row for row in cuda.products if row["layer"] == "lstm" and row["times"] > 1]
    assert {row["times"] for row in steps} == {2, 128}
    one = next(row for row in steps if row["times"] == 128)
    assert one["launches"] == 128 * 3
    cuda, *_ = predicted("resnet18-imagenet", summed("native_chunk64:outer=e6m9"), 64)
    assert cuda.total["ratio"] == pytest.approx(0.84, rel=1e-2)


# Each row has the network, the batch, and how many times as long as float32 a step takes on cuda
# and on triton. The figures are those of docs/predictions.md.
TODAY = [
    ("resnet18-imagenet", 64, 4.41, 5.05),
    ("resnet20-cifar", 128, 5.82, 5.11),
    pytest.param("mobilenetv2-imagenet", 64, 3.84, 3.19, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("model", "batch", "cuda", "triton"), TODAY)
def test_todays_steps_against_float32(model: str, batch: int, cuda: float, triton: float) -> None:
    found = [one.total["ratio"] for one in predicted(model, "fp8_wang2018", batch)]
    assert found == pytest.approx([cuda, triton], rel=2e-3)


# Each row has the format of operands, the sums and what a step of ResNet-18 and of ResNet-20 takes
# on cuda. The figures are those of docs/predictions.md.
OTHER_OPERANDS = [
    (None, "e8m23_chunk64", 2.28, 3.41),
    ("bf16", "e6m9_chunk64", 8.30, 10.2),
    (None, "e6m9_chunk64", 10.2, 12.4),
]


@pytest.mark.parametrize("fmt, sums, resnet18, resnet20", OTHER_OPERANDS)
def test_other_operands(fmt: str | None, sums: str, resnet18: float, resnet20: float) -> None:
    operands = {"input": fmt, "weight": fmt, "grad_output": fmt}
    recipe = lp.Recipe(**operands, fprop=sums, dgrad=sums, wgrad=sums)
    ratios = (("resnet18-imagenet", 64, resnet18), ("resnet20-cifar", 128, resnet20))
    for model, batch, ratio in ratios:
        cuda, *_ = predicted(model, recipe, batch)
        assert cuda.total["ratio"] == pytest.approx(ratio, rel=5e-3)


def summed(sums: str) -> lp.Recipe:
    """The recipe of 8-bit operands with other sums."""
    acc = lp.accumulator(sums)
    return dataclasses.replace(lp.recipe("fp8_wang2018"), fprop=acc, dgrad=acc, wgrad=acc)


def test_what_was_not_counted_is_refused_with_its_reason() -> None:
    for one in predicted("tiny-gpt", "hopper_fp8", 2):
        assert one.products == [] and one.total == {}
        assert one.refused.startswith(f"{one.backend}: ") and "ordered kernel" in one.refused
    # On cuda the ends of chunks are not drawn.
    cuda, triton = predicted("tiny-gpt", summed("e6m9_chunk64:stochastic"), 2)
    assert "rounds outer sums by stochastic" in cuda.refused and not cuda.products
    assert not triton.refused and triton.products[0]["kernel"] == "stochastic"


def test_wrong_input_is_refused_and_torchs_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    predicted("tiny-gpt", "fp8_wang2018", 2)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(ValueError, match="no product of this step is emulated"):
        predicted("tiny-gpt", "fp32", 2)
    with pytest.raises(ValueError, match="expected one of h100, got 'b200'"):
        predict([], "b200")


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
    return trace(lp.convert(built, as_recipe(recipe)), x, torch.sum)


def test_every_pass_of_every_layer_is_found_with_the_sizes_of_its_tensors() -> None:
    found = traced("fp8_wang2018")
    names = [f"{one.layer}:{one.gemm}" for one in found]
    # The images need no gradient.
    forward, head = "stem:fprop :fprop head:fprop", "head:dgrad head:wgrad head:bias"
    assert names == f"{forward} {head} :dgrad :wgrad stem:wgrad".split()
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


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


def test_steps_of_a_recurrent_layer_are_the_layers() -> None:
    found = traced("fp8_wang2018", Recurrent, 6, 2, 4)
    assert {one.layer for one in found} == {"lstm"}
    steps = [one for one in found if one.call.left == (2, 3) and one.gemm == "fprop"]
    assert len(steps) == 6 and len(set(steps)) == 1
    # Torch's own products are none.
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

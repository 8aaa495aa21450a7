"""A configuration as it trains; a model's values, counted by hand and by `count_tensors`."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lpkernels as lp
from lpkernels.techniques.assignment import assign, trace
from lpkernels.techniques.loss_scaling import LossScaler, MasterWeights
from lpkernels.techniques.pareto import FormatSpace, TrainingRecipe, count_tensors, training_memory
from tests.support.autograd import Computes
from tests.support.refusals import refused

BATCH = 4


def residual() -> nn.Module:
    """A convolution, a norm, a ReLU in place, a sum, a linear layer; the ReLU is used twice."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.relu(m.norm(m.conv(x)))
        return m.linear(m.relu(y + x).flatten(1))

    parts = {"conv": nn.Conv2d(2, 2, 3, padding=1), "norm": nn.BatchNorm2d(2)}
    return Computes(forward, **parts, relu=nn.ReLU(inplace=True), linear=nn.Linear(32, 5))


MAP = BATCH * 2 * 4 * 4
X = torch.zeros(BATCH, 2, 4, 4)


def test_tensors_are_counted_once():
    counts = count_tensors(residual(), X)
    # It counts the convolution, the norm (the ReLU writes into it) and the sum; the flattened sum
    # is a view.
    assert counts == {
        "params": 2 * 2 * 9 + 2 + 4 + 165,
        "activations": 3 * MAP,
        "inputs": MAP,
        "outputs": BATCH * 5,
    }
    assert count_tensors(residual().to("meta"), X.to("meta")) == counts


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.tied = self.w

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"y": x * self.w, "same": x, "view": self.w.view(1, 3), "index": x.argmax(1) + scale}


def test_arguments_results_and_shared_parameters_count_once():
    counts = count_tensors(Pair(), torch.zeros(2, 3), kwargs={"scale": torch.tensor(1)})
    assert counts == {"params": 3, "activations": 0, "inputs": 6, "outputs": 6 + 6 + 3}


def test_the_model_is_left_as_found_after_an_error_too():
    model = residual()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    count_tensors(model, torch.ones_like(X))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(RuntimeError):
        count_tensors(model, torch.zeros(1, 3, 4, 4))
    assert not any(module._forward_hooks for module in model.modules())


COUNTS = {"params": 1000, "activations": 500, "inputs": 64, "outputs": 10}


def test_memory_is_that_of_the_formula_with_few_distinct_values_in_a_space():
    assert training_memory(COUNTS, 8, 16) == 6168
    assert isinstance(training_memory(COUNTS, 8, 16), float)
    # A block format costs its scales too.
    assert FormatSpace(["block32_e2m1"], ["bf16"]).low_bits.tolist() == [4.25]
    space = FormatSpace.peppp()
    memory = training_memory(COUNTS, space.low_bits, space.high_bits)
    assert memory.shape == (99,) and memory.dtype == np.float64
    assert len(np.unique(list(zip(space.low_bits, space.high_bits, strict=True)), axis=0)) == 35
    assert memory[0] == training_memory(COUNTS, 5, 14)
    assert memory[98] == training_memory(COUNTS, 9, 20) == memory.max()


WRONG = [
    (lambda: training_memory({"params": 1}, 8, 16), ValueError,
     "keys params, activations, inputs, outputs; got params"),
    (lambda: training_memory(COUNTS | {"params": -1}, 8, 16), ValueError,
     r"counts\['params'\]: expected at least 0"),
    (lambda: training_memory([1, 2, 3, 4], 8, 16), TypeError, "counts must be a mapping"),
    (lambda: count_tensors(torch.relu, X), TypeError, "count_tensors"),
]  # fmt: skip
test_wrong_arguments_are_refused = refused(WRONG)


RECIPE = TrainingRecipe("e4m2_sat", "e6m9_sat")


def network() -> nn.Sequential:
    hidden, middle, head = nn.Linear(7, 5), nn.Linear(5, 5), nn.Linear(5, 3)
    return nn.Sequential(hidden, nn.ReLU(), middle, nn.ReLU(), head)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(11, 7), torch.arange(11) % 3


def is_in(x: Tensor, fmt: str) -> bool:
    return torch.equal(x, lp.quantize(x, fmt))


def test_formats_alone_round_stochastically_and_others_as_they_say() -> None:
    assert RECIPE.low == lp.Quantizer("e4m2_sat", "stochastic")
    assert RECIPE.accumulator == lp.NATIVE and RECIPE.loss_scale == 1000.0
    assert TrainingRecipe(lp.Quantizer("e4m2"), "fp16").low == lp.Quantizer("e4m2", "nearest_even")
    for configuration in FormatSpace.peppp():
        recipe = TrainingRecipe(*configuration)
        assert (recipe.low.fmt, recipe.high.fmt) == configuration
    for scale in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="loss_scale: expected a finite number above 0"):
            TrainingRecipe("e4m2_sat", "e6m9_sat", loss_scale=scale)


def test_the_assignment_is_low_but_for_input_and_logits() -> None:
    ops = trace(network(), cross_entropy, batch())
    found = RECIPE.assignment(ops)
    last = [op.name for op in ops if op.is_gemm][-1]
    after = [op.name for op in ops][[op.name for op in ops].index(last) :]
    start = next(op.name for op in ops if not op.inputs)
    high = {f"{name}.{kind}" for name in (start, *after) for kind in ("Y", "GY")}
    assert found.tensors.keys() - found.low == high
    assert {str(found.format_of(key).fmt) for key in high} == {"e6m9_sat"}
    gradients = {key for key in found.low if key.endswith(".GP")}
    assert {str(found.format_of(key)) for key in gradients} == {"e8m23"}
    assert {str(found.format_of(key)) for key in found.low - gradients} == {"e4m2_sat:stochastic"}
    with pytest.raises(ValueError, match="expected a GEMM, whose result is the logits, among 0"):
        RECIPE.assignment([])


def test_a_loop_under_the_assignment_keeps_every_tensor_in_its_format() -> None:
    """The input and the logits have the high format; all else has the low one."""
    model, recipe = network(), TrainingRecipe("e4m2_sat", "e6m9_sat", "e6m5_chunk16")
    model = lp.convert(model, recipe.sums)
    assert {str(acc) for acc in (model[0].recipe.fprop, model[4].recipe.wgrad)} == {"e6m5_chunk16"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = MasterWeights(optimizer, **recipe.masters)
    scaler = LossScaler(static=recipe.loss_scale)
    x, labels = batch()
    ops = trace(model, cross_entropy, (x, labels))
    assigned = assign(model, cross_entropy, recipe.assignment(ops), promote=None)
    results: dict[str, Tensor] = {}
    for name, module in model.named_children():
        module.register_forward_hook(lambda m, args, y, name=name: results.update({name: y}))
    scaler.scale(assigned(x, labels)).backward()
    assert all(is_in(results[name], "e4m2_sat") for name in ("1", "3"))
    scaler.step(optimizer)
    assert all(is_in(parameter.detach(), "e4m2_sat") for parameter in model.parameters())
    with optimizer.masters():
        masters = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert is_in(masters, "e6m9_sat") and not is_in(masters, "e4m2_sat")

"""A configuration as it trains: layers, optimizer, assignment."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lpkernels as lp
from lpkernels.techniques.assignment import assign, trace
from lpkernels.techniques.loss_scaling import LossScaler, MasterWeights
from lpkernels.techniques.pareto import FormatSpace, TrainingRecipe

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

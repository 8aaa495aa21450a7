"""A configuration as it trains: layers, optimizer, assignment, file."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lpkernels as lp
from lpkernels.techniques.assignment import trace
from lpkernels.techniques.loss_scaling import LossScaler, MasterWeights
from lpkernels.techniques.pareto import FormatSpace, TrainingRecipe
from tests.loops import rows

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
    assert TrainingRecipe("e4m2", "fp16", rounding="to_odd").high == lp.Quantizer("fp16", "to_odd")
    assert TrainingRecipe(lp.Quantizer("e4m2"), "fp16").low == lp.Quantizer("e4m2", "nearest_even")
    for configuration in FormatSpace.peppp():
        recipe = TrainingRecipe(*configuration)
        assert (recipe.low.fmt, recipe.high.fmt) == configuration
    for scale in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="loss_scale: expected a finite number above 0"):
            TrainingRecipe("e4m2_sat", "e6m9_sat", loss_scale=scale)


def test_every_tensor_of_a_perceptron_is_in_its_format() -> None:
    """The input and the logits have the high format; all else has the low one, gradients too."""
    model = lp.convert(network(), RECIPE.policy)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = MasterWeights(inner, **RECIPE.masters)
    seen: dict[str, Tensor] = {}

    def note(name: str, x: Tensor) -> None:
        seen[name] = x.detach()
        if x.requires_grad:
            x.register_hook(lambda gradient: seen.update({f"{name}'s gradient": gradient}))

    for name, module in model.named_children():
        module.register_forward_hook(lambda m, x, y, name=name: note(name, y))
    scaler = LossScaler(static=RECIPE.loss_scale)
    x, labels = batch()
    scaler.scale(cross_entropy(model(x), labels)).backward()
    for name in ("0", "1", "2", "3"):
        assert is_in(seen[name], "e4m2_sat"), name
    assert not is_in(seen["4"], "e4m2_sat") and is_in(seen["4"], "e6m9_sat")
    # The layer is given the softmax's gradient, in float32; the one it computes with is rounded
    # inside.
    for name in ("1", "3"):
        assert is_in(seen[f"{name}'s gradient"], "e4m2_sat"), name
    scaler.step(optimizer)
    for parameter in model.parameters():
        assert is_in(parameter.detach(), "e4m2_sat")
    with optimizer.masters():
        masters = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert is_in(masters, "e6m9_sat") and not is_in(masters, "e4m2_sat")


def test_the_ends_read_and_return_the_high_format_and_an_accumulator_sums_all_products() -> None:
    model = lp.convert(network(), RECIPE.policy)
    first, middle, last = (model[i].recipe for i in (0, 2, 4))
    low, high = RECIPE.low, RECIPE.high
    assert (first.input, first.output, first.grad_output) == (high, low, low)
    assert (middle.input, middle.output, middle.grad_input) == (low, low, low)
    assert (last.input, last.output, last.grad_output, last.grad_input) == (low, high, high, low)
    assert {r.weight for r in (first, middle, last)} == {lp.Quantizer("e4m2_sat", "nearest_even")}
    summed = TrainingRecipe("e4m2_sat", "e6m9_sat", "e6m5_chunk16").policy["*"]
    assert {str(acc) for acc in (summed.fprop, summed.dgrad, summed.wgrad)} == {"e6m5_chunk16"}


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


def test_a_recipe_comes_back_from_its_file(tmp_path: Path) -> None:
    recipe = TrainingRecipe(lp.Quantizer("e4m2_sat"), "fp16", "e6m5_chunk16", loss_scale=8.0)
    assert TrainingRecipe.load(recipe.save(tmp_path / "recipe.json")) == recipe
    found = json.loads(RECIPE.save(tmp_path / "recipe.json").read_text())
    assert found["low"] == "e4m2_sat:stochastic" and found["accumulator"] == "native"


@rows(
    "text, message",
    ("{", "expected a recipe, got no JSON"),
    ('{"type": "error matrix"}', "expected a recipe, as TrainingRecipe.save writes it"),
    ('{"type": "training recipe", "schema": 3}', "expected schema 2, got 3"),
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        TrainingRecipe.load(path)

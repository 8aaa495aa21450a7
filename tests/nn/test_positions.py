"""FIRST and LAST as patterns: which layers they mean, and where they are refused."""

from typing import Any

import pytest
from torch import nn

import lpkernels as lp
from tests.loops import each, rows
from tests.nn.policy_models import Doubled, ResNet, converted

FIRST, LAST = lp.nn.FIRST, lp.nn.LAST


@rows(
    "include, exclude, names",
    (FIRST, None, ["stem"]),
    ([LAST, FIRST], None, ["stem", "fc"]),
    (LAST, "stem", ["fc"]),
    ((nn.Conv2d, nn.Linear), [FIRST, LAST, "*2"], ["blocks.0.conv1", "blocks.1.conv1"]),
    (nn.Conv2d, (FIRST, "blocks.0.*"), ["blocks.1.conv1", "blocks.1.conv2"]),
)
def test_positions_select_layers(include: Any, exclude: Any, names: list[str]) -> None:
    model = lp.convert(ResNet(), "fp16_mixed", include=include, exclude=exclude)
    assert list(converted(model)) == names


def test_an_excluded_position_is_a_conflict_as_a_name_is() -> None:
    with pytest.raises(ValueError, match="include=FIRST conflicts with exclude='stem'"):
        lp.convert(ResNet(), "fp16_mixed", include=FIRST, exclude="stem")
    with pytest.raises(ValueError, match=r"no layer matched \(recipe for '\*', include=FIRST\)"):
        lp.convert(nn.Sequential(nn.Embedding(3, 2)), "fp16_mixed", include=FIRST)


def test_set_recipe_takes_positions_of_the_whole_model() -> None:
    model = lp.convert(ResNet(), "fp8_wang2018", exclude="stem")
    lp.set_recipe(model, {FIRST: "fp32", LAST: "bf16_mixed"})
    found = converted(model)
    assert found["fc"] == lp.recipe("bf16_mixed")
    assert found["blocks.0.conv1"] == lp.recipe("fp8_wang2018")
    with pytest.raises(ValueError, match=r"set_recipe: no layer matched .*recipe for FIRST"):
        lp.set_recipe(model, {FIRST: "fp32"})


def shared() -> nn.Sequential:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.Linear(2, 2), layer)


ENDS = {
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8), ["self_attn", "linear2"]),
    "lookups and norms": (
        lambda: nn.Sequential(
            nn.Embedding(3, 2), nn.LayerNorm(2), nn.GRU(2, 2), nn.LazyLinear(3), nn.Softmax(-1)
        ),
        ["2", "3"],
    ),
    "own forward": (lambda: nn.Sequential(Doubled(2, 2), nn.Linear(2, 2)), ["0", "1"]),
    "shared": (shared, ["0", "1"]),
    "parametrized": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.ReLU()),
        ["0"],
    ),
    "none": (lambda: nn.Sequential(nn.Embedding(3, 2), nn.LayerNorm(2)), []),
}


@each("make, names", ENDS.values())
def test_ends_are_the_first_and_last_layers_that_multiply(make: Any, names: list[str]) -> None:
    bf16 = lp.recipe("bf16_mixed")
    rules = {FIRST: bf16, LAST: bf16, "*": "fp8_wang2018"}
    model = lp.convert(make(), rules)
    assert [name for name, its in converted(model).items() if its == bf16] == names
    # FIRST and LAST mean the same layers in a model that is converted already.
    fp16 = lp.recipe("fp16_mixed")
    lp.convert(model, {**rules, FIRST: fp16, LAST: fp16})
    assert [name for name, its in converted(model).items() if its == fp16] == names


def test_an_end_that_cannot_be_emulated_is_refused_until_it_is_excluded() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].forward = model[1].forward = lambda x: x
    first, rest = lp.recipe("bf16_mixed"), lp.recipe("fp8_wang2018")
    rules: dict[Any, Any] = {FIRST: first, nn.BatchNorm1d: "fp32", "*": rest}
    match = r"the key FIRST: lpkernels cannot emulate '0' \(Linear: its forward was replaced"
    with pytest.raises(ValueError, match=match):
        lp.convert(model, rules)
    # The norm has torch's own arithmetic, so leaving it alone is only warned about.
    with pytest.warns(UserWarning, match="left 1 .* '1': its forward was replaced on the object"):
        lp.convert(model, rules, exclude="0")
    assert converted(model) == {"2": rest, "3": rest}
    rules[nn.BatchNorm1d] = first
    with pytest.raises(ValueError, match=r"the key BatchNorm1d: .* '1' \(BatchNorm1d: its forw"):
        lp.convert(model, rules, exclude="0")
    lp.convert(model, rules, exclude=["0", "1"])
    assert converted(model) == {"2": rest, "3": rest}


@each("model", [ResNet(), nn.Linear(2, 2)])
def test_a_position_behind_all_names_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"the key LAST never applies.* '\*' before it takes"):
        lp.convert(model, {"*": "fp16_mixed", LAST: "fp32"})

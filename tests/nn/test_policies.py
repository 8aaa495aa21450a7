"""Named policies, and the layers that they select in models of several kinds; FIRST and LAST."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.nn.policy_models import (
    CALLERS,
    MODELS,
    PRODUCTS,
    REDUCING,
    Doubled,
    ResNet,
    Transformer,
    converted,
)

FIRST, LAST, GATES, FUNCTIONS = lp.nn.FIRST, lp.nn.LAST, lp.nn.GATES, lp.nn.FUNCTIONS
FP32 = lp.Recipe()
HALF = {"fp16_mixed": "fp16", "bf16_mixed": "bf16"}
OLDER = [*HALF, "fp8_wang2018", "hfp8_sun2019", "cpt_fu2021"]
SCALED = [name for name in lp.policies() if name not in OLDER]
# Their last layer is torch's own, and these have one scale a tensor, which suits convolutions.
HEAD_APART = ["mxfp8", "nvfp4_pretraining", "deepseek_v3", "te_block", "te_current", "te_delayed"]
BY_TENSOR = ["te_current", "te_delayed"]


def stated(kind: str, policy: str) -> dict[str, lp.Recipe]:
    """The recipe of each module of a model as the policy's text states it."""
    body = lp.recipe(policy)
    wanted = dict.fromkeys([*CALLERS[kind], *PRODUCTS[kind]], body)
    first, last = PRODUCTS[kind][0], PRODUCTS[kind][-1]
    norm = FP32
    if policy in SCALED:
        left = [*CALLERS[kind], *["heads"] * (kind == "transformer" and body.scaling is not None)]
        left += [last] * (policy in HEAD_APART)
        if policy not in BY_TENSOR and kind == "resnet":
            left += PRODUCTS[kind][:-1]
        wanted |= dict.fromkeys(left, FP32)
    elif policy in HALF:
        fmt = HALF[policy]
        norm = lp.Recipe(input=fmt, output=fmt, grad_output=fmt, grad_input=fmt)
    elif policy == "fp8_wang2018":
        wanted[first] = dataclasses.replace(body, input=lp.Quantizer("e6m9"))
        e6m9 = dict.fromkeys(["input", "weight", "grad_output"], lp.Quantizer("e6m9"))
        wanted[last] = dataclasses.replace(body, **e6m9)
    elif policy == "cpt_fu2021":
        wanted[last] = FP32
    else:
        wide = dict.fromkeys(["input", "weight"], lp.Quantizer("fp_6_9_0"))
        wide["grad_output"] = lp.Quantizer("fp_6_9_0_backward")
        wanted[first] = wanted[last] = dataclasses.replace(body, **wide)
    wanted |= dict.fromkeys(REDUCING[kind], norm)
    if kind == "transformer":
        wanted["tokens"] = body if policy in HALF else FP32
    return wanted


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", lp.policies())
def test_policy_gives_every_layer_the_recipe_it_states(kind: str, name: str) -> None:
    make, x = MODELS[kind]
    model = make()
    classes = [type(module) for module in model.modules()]
    assert lp.convert(model, lp.policy(name)) is model
    assert converted(model) == stated(kind, name)
    if kind != "mlp":
        assert converted(lp.convert(make(), name)) == stated(kind, name)
    if "rht" in str(lp.recipe(name)):
        # These models have fewer rows than a transform takes together.
        return
    model(x).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    lp.revert(model)
    assert [type(module) for module in model.modules()] == classes


def test_policy_is_edited_as_a_dict() -> None:
    policy = lp.policy("fp8_wang2018")
    policy[FIRST] = "bf16_mixed"
    del policy[LAST]
    policy = {"blocks.0.*": "fp32"} | policy
    policy |= {nn.BatchNorm2d: "fp16_mixed", "*": "hopper_fp8"}
    assert isinstance(policy, lp.nn.Policy)
    model = lp.convert(ResNet(), policy)
    names = {"stem": "bf16_mixed", "fc": "hopper_fp8", "bn": "fp16_mixed"}
    names |= {"blocks.0.conv1": "fp32", "blocks.0.bn1": "fp32", "blocks.1.bn1": "fp16_mixed"}
    found = converted(model)
    assert {name: found[name] for name in names} == {k: lp.recipe(v) for k, v in names.items()}
    assert lp.policy("fp8_wang2018")[FIRST] != policy[FIRST]


def test_another_policy_replaces_all_of_one_and_set_recipe_takes_it() -> None:
    model = lp.convert(Transformer(), lp.policy("bf16_mixed"))
    lp.convert(model, lp.policy("hfp8_sun2019"))
    assert converted(model) == stated("transformer", "hfp8_sun2019")
    model = lp.convert(ResNet(), lp.recipe("fp8_wang2018"), exclude="stem")
    policy = lp.policy("hfp8_sun2019")
    found = converted(lp.set_recipe(model, "hfp8_sun2019"))
    assert "stem" not in found and "bn" not in found
    assert (found["blocks.0.conv1"], found["fc"]) == (policy["*"], policy[LAST])


def test_policy_survives_copies_in_order() -> None:
    policy = lp.policy("fp8_wang2018")
    for twin in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy)), policy.copy()):
        assert type(twin) is lp.nn.Policy and list(twin.items()) == list(policy.items())


@pytest.mark.parametrize(
    "include, exclude, names",
    [
        (FIRST, None, ["stem"]),
        ([LAST, FIRST], None, ["stem", "fc"]),
        (LAST, "stem", ["fc"]),
        ((nn.Conv2d, nn.Linear), [FIRST, LAST, "*2"], ["blocks.0.conv1", "blocks.1.conv1"]),
        (nn.Conv2d, (FIRST, "blocks.0.*"), ["blocks.1.conv1", "blocks.1.conv2"]),
    ],
)
def test_positions_select_layers(include: Any, exclude: Any, names: list[str]) -> None:
    model = lp.convert(ResNet(), "fp16_mixed", include=include, exclude=exclude)
    assert list(converted(model)) == names


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


@pytest.mark.parametrize("make, names", ENDS.values())
def test_ends_are_the_first_and_last_layers_that_multiply(make: Any, names: list[str]) -> None:
    bf16 = lp.recipe("bf16_mixed")
    rules = {FIRST: bf16, LAST: bf16, "*": "fp8_wang2018"}
    model = lp.convert(make(), rules)
    assert [name for name, its in converted(model).items() if its == bf16] == names
    # FIRST and LAST mean the same layers in a model that is converted already.
    fp16 = lp.recipe("fp16_mixed")
    lp.convert(model, {**rules, FIRST: fp16, LAST: fp16})
    assert [name for name, its in converted(model).items() if its == fp16] == names


class Experts(nn.Module):
    """Experts with gates by several names; the gate_proj of a gated unit is no such gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.router = nn.Linear(2, 2), nn.Linear(2, 2)
        self.shared_expert_gate, self.gate_proj = nn.Linear(2, 2), nn.Linear(2, 2)
        self.up = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.up(x).mT


def test_gates_and_functions_are_patterns() -> None:
    model = lp.convert(Experts(), {GATES: "bf16_mixed", FUNCTIONS: "fp16_mixed", "*": "fp32"})
    for again in (model, lp.set_recipe(model, {GATES: "bf16_mixed", FUNCTIONS: "fp16_mixed"})):
        found = converted(again)
        assert {name for name, its in found.items() if its == lp.recipe("bf16_mixed")} == {
            "gate", "router", "shared_expert_gate",
        }  # fmt: skip
        assert found[""] == lp.recipe("fp16_mixed")
    found = converted(lp.convert(Experts(), "deepseek_v3"))
    assert [name for name, its in found.items() if its == lp.recipe("deepseek_v3")] == ["gate_proj"]


LAYERS = [
    lambda: nn.Linear(4, 4), lambda: nn.Conv2d(4, 4, 1), lambda: nn.LSTM(4, 4),
    lambda: Doubled(4, 4), lambda: nn.MultiheadAttention(4, 2), lambda: lp.nn.Linear(4, 4),
]  # fmt: skip


@pytest.mark.parametrize("name", ["fp16_mixed", "hopper_fp8"])
@pytest.mark.parametrize("make", LAYERS)
def test_a_name_is_the_recipe_of_a_model_that_is_one_layer(make: Any, name: str) -> None:
    model = lp.convert(make(), name)
    assert converted(model) == {"": lp.recipe(name)}
    assert getattr(model, "attention_recipe", model.recipe) == lp.recipe(name)
    lp.set_recipe(lp.set_recipe(model, "fp32"), name)
    assert converted(model) == {"": lp.recipe(name)}


@pytest.mark.parametrize(
    "recipe", ["fp32", "hopper_fp8", "lba_m7e4", "h100_fp16", lp.recipe("fp16_mixed")], ids=str
)
def test_a_recipe_and_a_name_without_a_policy_are_for_every_layer(recipe: Any) -> None:
    want = lp.recipe(recipe) if isinstance(recipe, str) else recipe
    assert {*converted(lp.convert(ResNet(), recipe)).values()} == {want}


def test_a_name_as_a_value_is_a_recipe_and_not_a_policy() -> None:
    assert converted(lp.convert(ResNet(), {"fc": "mxfp8"})) == {"fc": lp.recipe("mxfp8")}
    # Where the layers are convolutions, every one of them would have blocks along "k".
    assert "stem" in converted(lp.convert(ResNet(), "mxfp8"))
    with pytest.raises(ValueError, match="'stem': input=block32_k_e4m3_up has blocks along 'k'"):
        lp.convert(ResNet(), lp.recipe("mxfp8"))

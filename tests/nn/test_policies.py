"""Named policies, and the layers that they select in models of several kinds; FIRST and LAST;
policies in files: a written policy reads back, converts alike, and is never code."""

import copy
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels import schemas
from tests.nn.policy_models import (
    CALLERS,
    MODELS,
    PRODUCTS,
    REDUCING,
    Doubled,
    ResNet,
    Transformer,
    converted,
    modules_of,
)
from tests.support.autograd import Computes

FIRST, LAST, GATES, FUNCTIONS = lp.nn.FIRST, lp.nn.LAST, lp.nn.GATES, lp.nn.FUNCTIONS
FP32 = lp.Recipe()
HALF = {"fp16_mixed": "fp16", "bf16_mixed": "bf16"}
OLDER = [*HALF, "fp8_wang2018", "hfp8_sun2019", "cpt_fu2021"]
SCALED = [name for name in lp.policies() if name not in OLDER]
# Their last layer is torch's own, and these have one scale a tensor, which suits convolutions.
HEAD_APART = [
    "mxfp8", "nvfp4_pretraining", "nvfp4_46", "nvfp4_46_pretraining", "nvfp4_row", "nvfp4_46_rl",
    "deepseek_v3", "te_block", "te_current", "te_delayed",
]  # fmt: skip
BY_TENSOR = ["te_current", "te_delayed"]


def stated(kind: str, policy: str) -> dict[str, lp.Recipe]:
    """The recipe of each module of a model as the policy's text states it."""
    model, body = MODELS[kind][0](), lp.recipe(policy)
    products, callers = modules_of(model, PRODUCTS), modules_of(model, CALLERS)
    wanted = dict.fromkeys([*callers, *products], body)
    first, last = products[0], products[-1]
    norm = FP32
    if policy in SCALED:
        left = [*callers, *["heads"] * (kind == "transformer" and body.scaling is not None)]
        left += [last] * (policy in HEAD_APART)
        if policy not in BY_TENSOR and kind == "resnet":
            left += products[:-1]
        wanted |= dict.fromkeys(left, FP32)
    elif policy in HALF:
        fmt = HALF[policy]
        norm = lp.Recipe(input=fmt, output=fmt, grad_output=fmt, grad_input=fmt)
    elif policy == "fp8_wang2018":
        e6m9 = dict.fromkeys(["input", "weight", "grad_output"], lp.Quantizer("e6m9"))
        wanted[first] = dataclasses.replace(body, input=lp.Quantizer("e6m9"))
        wanted[last] = dataclasses.replace(body, **e6m9)
    elif policy == "cpt_fu2021":
        wanted[last] = FP32
    else:
        wide = dict.fromkeys(["input", "weight"], lp.Quantizer("fp_6_9_0"))
        wide["grad_output"] = lp.Quantizer("fp_6_9_0_backward")
        wanted[first] = wanted[last] = dataclasses.replace(body, **wide)
    wanted |= dict.fromkeys(modules_of(model, REDUCING), norm)
    wanted |= dict.fromkeys(modules_of(model, (nn.Embedding,)), body if policy in HALF else FP32)
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
    # These models have fewer rows than a random transform takes together.
    if "rht" not in str(lp.recipe(name)):
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


def experts() -> nn.Module:
    """Experts with gates by several names; the gate_proj of a gated unit is no such gate."""
    names = ("gate", "router", "shared_expert_gate", "gate_proj", "up")
    return Computes(lambda m, x: x @ m.up(x).mT, **{name: nn.Linear(2, 2) for name in names})


def test_gates_and_functions_are_patterns() -> None:
    model = lp.convert(experts(), {GATES: "bf16_mixed", FUNCTIONS: "fp16_mixed", "*": "fp32"})
    for again in (model, lp.set_recipe(model, {GATES: "bf16_mixed", FUNCTIONS: "fp16_mixed"})):
        found = converted(again)
        assert {name for name, its in found.items() if its == lp.recipe("bf16_mixed")} == {
            "gate", "router", "shared_expert_gate",
        }  # fmt: skip
        assert found[""] == lp.recipe("fp16_mixed")
    found = converted(lp.convert(experts(), "deepseek_v3"))
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy.json"


def scores() -> nn.Module:
    """Layers, norms, and a product called as a function; the same at each call."""
    torch.manual_seed(0)

    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.norm(m.query(x) @ m.key(x).mT @ x)
        return m.parts["a:b"](m.other(m.parts["a[0]"](x)))

    parts = nn.ModuleDict({"a[0]": nn.Linear(8, 8), "a:b": nn.Linear(8, 4)})
    layers = {"query": nn.Linear(8, 8), "key": nn.Linear(8, 8)}
    norms = {"norm": nn.LayerNorm(8), "other": nn.LayerNorm(8)}
    return Computes(forward, **layers, **norms, parts=parts)


SUMS = lp.Recipe(fprop="e6m5", dgrad="e6m5", wgrad="e6m5")


def text(rules: Any, **header: Any) -> str:
    return json.dumps(
        {"kind": "policy", "schema": schemas.SCHEMA, "version": "0", "rules": rules, **header}
    )


def rule(**layer: Any) -> dict[str, Any]:
    return {"layers": [layer], "recipe": {"input": "e5m2"}}


def read_back(what: Any, path: Path) -> lp.nn.Policy:
    lp.save_policy(what, path)
    return lp.load_policy(path)


@pytest.mark.parametrize("name", lp.policies())
def test_a_policy_and_its_name_are_read_back(name: str, path: Path) -> None:
    policy = read_back(lp.policy(name), path)
    assert isinstance(policy, lp.nn.Policy)
    assert list(policy.items()) == list(lp.policy(name).items())
    assert list(read_back(name, path).items()) == list(policy.items())


@pytest.mark.parametrize("name", lp.recipes())
def test_a_recipe_is_read_back_as_that_of_every_layer(name: str, path: Path) -> None:
    assert dict(read_back(lp.recipe(name), path)) == {"*": lp.recipe(name)}
    if name not in lp.policies():
        assert dict(read_back(name, path)) == {"*": lp.recipe(name)}


def test_a_mapping_of_names_is_read_back_in_order(path: Path) -> None:
    rules = {"*": lp.recipe("fp32"), "key": lp.recipe("fp8_wang2018")}
    assert list(read_back({"*": "fp32", "key": "fp8_wang2018"}, path).items()) == list(
        rules.items()
    )


def test_a_converted_model_is_written_by_the_names_of_its_modules(path: Path) -> None:
    x = torch.randn(5, 8)
    model = lp.convert(
        scores(), {"key": "bf16_mixed", "": "lba_m7e4", "*": "fp8_wang2018"}, exclude="query"
    )
    again = lp.convert(scores(), read_back(model, path))
    assert converted(again) == converted(model)
    assert torch.equal(again(x), model(x))
    # A norm is converted, though to torch's own arithmetic, where another norm has a rule.
    model = lp.convert(scores(), {nn.LayerNorm: SUMS, "*": "fp8_wang2018"}, exclude="other")
    again = lp.convert(scores(), read_back(model, path))
    assert converted(again) == converted(model) | {"other": lp.Recipe()}
    assert torch.equal(again(x), model(x))


class Own(nn.Linear):
    pass


@pytest.mark.parametrize(
    "key, match",
    [
        (lambda name, module: True, r"a key is the function '<lambda>'.*write a glob"),
        (Own, r"a key is the class 'Own', which is not torch\.nn's.*write a glob"),
        (lp.nn.Linear, r"a key is the class 'Linear', which is not torch\.nn's"),
    ],
)
def test_a_key_that_is_code_is_not_written(path: Path, key: Any, match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        lp.save_policy({key: "fp8_wang2018"}, path)
    assert not list(path.parent.iterdir())


def test_a_model_that_is_not_converted_has_no_policy(path: Path) -> None:
    with pytest.raises(ValueError, match=r"the policy of a Computes: it has no converted module"):
        lp.save_policy(scores(), path)


@pytest.mark.parametrize(
    "content, match",
    [
        ("{", r"policy\.json: expected a policy that lp\.save_policy wrote, in JSON: "),
        ("[]", r"expected a policy that lp\.save_policy wrote, got list"),
        (text([], kind="run"), r"expected a policy that lp\.save_policy wrote, got a file of kind"),
        (text([], schema=7), r"expected schema 2, got 7, which another version of lpkernels"),
        (text(None), r"expected a list of rules, got None"),
        (text([{**rule(name="*"), "call": "os:getcwd"}]), r"rule 1: expected layers and recipe"),
        (text([rule(function="os:getcwd")]), r"rule 1: expected a layer like"),
        *(
            (
                text([rule(**{"class": name})]),
                rf"rule 1: expected a class of torch\.nn, got '{name}'",
            )
            for name in ("os:getcwd", "functional", "Parameter")
        ),
        (
            text([rule(position="MIDDLE")]),
            r"rule 1: expected FIRST or LAST or GATES or FUNCTIONS, got 'MIDDLE'",
        ),
        (text([rule(name="*"), rule(name="*")]), r"rule 2: '\*' stands in a rule before"),
        (text([{**rule(name="*"), "recipe": {"fprop": "os:getcwd"}}]), r"rule 1: Recipe: fprop"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_in_one_sentence(
    path: Path, content: str, match: str
) -> None:
    path.write_text(content)
    with pytest.raises((TypeError, ValueError), match=match) as caught:
        lp.load_policy(path)
    assert "\n" not in str(caught.value)


def test_the_policy_of_another_model_is_refused_by_convert(path: Path) -> None:
    lp.save_policy(lp.convert(scores(), lp.recipe("fp8_wang2018")), path)
    policy = lp.load_policy(path)
    with pytest.raises(ValueError, match=r"convert: the key 'query' fits the name of no module"):
        lp.convert(nn.Sequential(nn.Linear(8, 8)), policy)

"""Policies in files: what is written is read back, converts alike, and is never code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels import schemas

FP8 = "fp8_wang2018"


class Scores(nn.Module):
    """Layers, a norm, and a product called as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.other = nn.LayerNorm(8), nn.LayerNorm(8)
        self.parts = nn.ModuleDict({"a[0]": nn.Linear(8, 8), "a:b": nn.Linear(8, 4)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.query(x) @ self.key(x).mT @ x)
        return self.parts["a:b"](self.other(self.parts["a[0]"](x)))


def made() -> Scores:
    torch.manual_seed(0)
    return Scores()


def text(rules: Any, **header: Any) -> str:
    return json.dumps({"kind": "policy", "schema": 1, "version": "0", "rules": rules, **header})


def rule(**layer: Any) -> dict[str, Any]:
    return {"layers": [layer], "recipe": {"input": "e5m2"}}


@pytest.mark.parametrize("name", lp.policies())
def test_a_policy_is_read_back_in_its_order(tmp_path: Path, name: str) -> None:
    lp.save_policy(lp.policy(name), tmp_path / "policy.json")
    loaded = lp.load_policy(tmp_path / "policy.json")
    assert isinstance(loaded, lp.nn.Policy)
    assert list(loaded.items()) == list(lp.policy(name).items())


@pytest.mark.parametrize("name", lp.recipes())
def test_every_recipe_is_read_back(tmp_path: Path, name: str) -> None:
    lp.save_policy(name, tmp_path / "policy.json")
    assert dict(lp.load_policy(tmp_path / "policy.json")) == {"*": lp.recipe(name)}


@pytest.mark.parametrize("what", [lp.recipe(FP8), "policy:fp16_mixed", {"*": "fp32", "key": FP8}])
def test_what_convert_takes_is_taken(tmp_path: Path, what: Any) -> None:
    lp.save_policy(what, tmp_path / "policy.json")
    loaded = lp.load_policy(tmp_path / "policy.json")
    assert lp.recipe(FP8) in loaded.values() or loaded == lp.policy("fp16_mixed")


def test_a_converted_model_is_written_by_the_names_of_its_modules(tmp_path: Path) -> None:
    model = lp.convert(made(), {"key": "bf16_mixed", "": "lba_m7e4", "*": FP8}, exclude="query")
    lp.save_policy(model, tmp_path / "policy.json")
    policy = lp.load_policy(tmp_path / "policy.json")
    assert policy["key"] == lp.recipe("bf16_mixed")
    again = lp.convert(made(), policy)
    assert [type(m) for m in again.modules()] == [type(m) for m in model.modules()]
    x = torch.randn(5, 8)
    assert torch.equal(again(x), model(x))


def test_a_converted_norm_comes_back_and_another_stays_torchs_own(tmp_path: Path) -> None:
    sums = lp.Recipe(fprop="e6m5", dgrad="e6m5", wgrad="e6m5")
    model = lp.convert(made(), {nn.LayerNorm: sums, "*": FP8}, exclude="other")
    lp.save_policy(model, tmp_path / "policy.json")
    again = lp.convert(made(), lp.load_policy(tmp_path / "policy.json"))
    assert again.norm.recipe == sums
    assert again.other.recipe.is_torch
    x = torch.randn(5, 8)
    assert torch.equal(again(x), model(x))


def test_layers_of_one_recipe_are_one_rule(tmp_path: Path) -> None:
    lp.save_policy(lp.convert(made(), FP8), tmp_path / "policy.json")
    (only,) = json.loads((tmp_path / "policy.json").read_text())["rules"]
    names = ["", "query", "key", "parts.a[[]0]", "parts.a[:]b"]
    assert only["layers"] == [{"name": name} for name in names]


def test_the_file_says_its_kind_schema_and_version(tmp_path: Path) -> None:
    lp.save_policy(FP8, tmp_path / "policy.json")
    header = json.loads((tmp_path / "policy.json").read_text())
    assert (header["kind"], header["schema"], header["version"]) == (
        "policy",
        schemas.schema("policy"),
        lp.__version__,
    )


class Own(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("key", "match"),
    [
        (lambda name, module: True, r"a key is the function '<lambda>'.*write a glob"),
        (Own, r"a key is the class 'Own', which is not torch\.nn's.*write a glob"),
        (lp.nn.Linear, r"a key is the class 'Linear', which is not torch\.nn's"),
        ("layers:pick", r"'layers:pick' names a function"),
    ],
)
def test_what_is_code_is_not_written(tmp_path: Path, key: Any, match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        lp.save_policy({key: FP8}, tmp_path / "policy.json")
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_not_converted_has_no_policy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the policy of a Scores: it has no converted module"):
        lp.save_policy(made(), tmp_path / "policy.json")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", r"policy\.json: expected a policy that lp\.save_policy wrote, in JSON: "),
        ("[]", r"expected a policy that lp\.save_policy wrote, got list"),
        (text([], kind="run"), r"expected a policy that lp\.save_policy wrote, got a file of kind"),
        (text([], schema=7), r"expected schema <= 1 of 'policy', got 7.*update lpkernels"),
        (text([], schema="1"), r"an integer from 1 to 1, got '1'"),
        (text(None), r"expected a list of rules, got None"),
        (text(["*"]), r"rule 1: expected layers and recipe"),
        (text([{**rule(name="*"), "call": "os:getcwd"}]), r"rule 1: expected layers and recipe"),
        (text([{"layers": "*", "recipe": {}}]), r"rule 1: expected a list of layers, got '\*'"),
        (text([rule(name="*"), rule()]), r"rule 2: expected a layer like"),
        (text([rule(name=3)]), r"rule 1: expected a layer like"),
        (text([rule(function="os:getcwd")]), r"rule 1: expected a layer like"),
        (text([rule(name="os:getcwd")]), r"rule 1: 'os:getcwd' names a function.*nothing in it is"),
        (
            text([rule(**{"class": "os:getcwd"})]),
            r"rule 1: expected a class of torch\.nn, got 'os:getcwd'",
        ),
        (
            text([rule(**{"class": "functional"})]),
            r"rule 1: expected a class of torch\.nn, got 'functional'",
        ),
        (
            text([rule(**{"class": "Parameter"})]),
            r"rule 1: expected a class of torch\.nn, got 'Parameter'",
        ),
        (text([rule(position="MIDDLE")]), r"rule 1: expected FIRST or LAST, got 'MIDDLE'"),
        (text([rule(name="*"), rule(name="*")]), r"rule 2: '\*' stands in a rule before"),
        (text([{**rule(name="*"), "recipe": FP8}]), r"rule 1: Recipe\.from_dict: expected a mapp"),
        (text([{**rule(name="*"), "recipe": {"x": "e5m2"}}]), r"rule 1: .*has no field 'x'"),
        (text([{**rule(name="*"), "recipe": {"fprop": "os:getcwd"}}]), r"rule 1: Recipe: fprop"),
    ],
)
def test_what_is_no_policy_is_one_sentence(tmp_path: Path, content: str, match: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(content)
    with pytest.raises((TypeError, ValueError), match=match) as caught:
        lp.load_policy(path)
    assert "\n" not in str(caught.value)


def test_the_policy_of_another_model_is_refused_by_convert(tmp_path: Path) -> None:
    lp.save_policy(lp.convert(made(), FP8), tmp_path / "policy.json")
    policy = lp.load_policy(tmp_path / "policy.json")
    with pytest.raises(ValueError, match=r"convert: the key 'query' fits the name of no module"):
        lp.convert(nn.Sequential(nn.Linear(8, 8)), policy)

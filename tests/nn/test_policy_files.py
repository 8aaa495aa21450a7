"""Policies in files: a written policy reads back, converts alike, and is never code."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels import schemas
from tests.nn.policy_models import converted

FP8 = "fp8_wang2018"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy.json"


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
    rules = {"*": lp.recipe("fp32"), "key": lp.recipe(FP8)}
    assert list(read_back({"*": "fp32", "key": FP8}, path).items()) == list(rules.items())


def test_a_converted_model_is_written_by_the_names_of_its_modules(path: Path) -> None:
    x = torch.randn(5, 8)
    model = lp.convert(made(), {"key": "bf16_mixed", "": "lba_m7e4", "*": FP8}, exclude="query")
    again = lp.convert(made(), read_back(model, path))
    assert converted(again) == converted(model)
    assert torch.equal(again(x), model(x))
    # A norm is converted, though to torch's own arithmetic, where another norm has a rule.
    model = lp.convert(made(), {nn.LayerNorm: SUMS, "*": FP8}, exclude="other")
    again = lp.convert(made(), read_back(model, path))
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
        lp.save_policy({key: FP8}, path)
    assert not list(path.parent.iterdir())


def test_a_model_that_is_not_converted_has_no_policy(path: Path) -> None:
    with pytest.raises(ValueError, match=r"the policy of a Scores: it has no converted module"):
        lp.save_policy(made(), path)


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
    lp.save_policy(lp.convert(made(), lp.recipe(FP8)), path)
    policy = lp.load_policy(path)
    with pytest.raises(ValueError, match=r"convert: the key 'query' fits the name of no module"):
        lp.convert(nn.Sequential(nn.Linear(8, 8)), policy)

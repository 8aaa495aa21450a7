"""Texts and plain values of Quantizer, Accumulator and Recipe: both give back an equal object."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpkernels.arithmetic import (
    NAMED_ACCUMULATORS,
    NATIVE,
    Accumulator,
    Quantizer,
    Recipe,
    accumulator,
)
from lpkernels.recipes import recipe
from lpkernels.recipes import recipes as recipe_names
from tests.cases import ACCUMULATORS
from tests.loops import each
from tests.support.descriptions import accumulators, quantizers, recipes


def through_json(described: Any) -> Any:
    return type(described).from_dict(json.loads(json.dumps(described.to_dict())))


@given(quantizers)
def test_every_quantizer_is_that_of_its_text(quantizer: Quantizer) -> None:
    assert Quantizer.parse(str(quantizer)) == quantizer


@given(accumulators())
def test_every_accumulator_is_that_of_its_text(acc: Accumulator) -> None:
    assert accumulator(str(acc)) == acc


@settings(max_examples=40)
@given(recipes())
def test_every_recipe_is_that_of_its_text(its: Recipe) -> None:
    assert Recipe.parse(str(its)) == its


@settings(max_examples=40)
@given(st.one_of(quantizers, accumulators(), recipes()))
def test_all_come_back_from_json(described: Any) -> None:
    assert through_json(described) == described


@each("name", recipe_names())
def test_named_recipes_come_back(name: str) -> None:
    built = recipe(name)
    assert Recipe.parse(str(built)) == through_json(built) == built


@each("acc", [*ACCUMULATORS, *NAMED_ACCUMULATORS.values()])
def test_accumulators_come_back_from_json(acc: Accumulator) -> None:
    assert through_json(acc) == acc


def test_plain_values_are_texts_and_numbers() -> None:
    quantizer = Quantizer("bf16", "stochastic", random_bits=9)
    assert quantizer.to_dict() == {
        "fmt": "e8m7",
        "rounding": "stochastic",
        "random_bits": 9,
        "rng": "fast",
    }
    plain = Recipe(input=quantizer, fprop="e6m9_chunk64").to_dict()
    assert plain["input"] == "e8m7:stochastic:bits=9"
    assert (plain["fprop"], plain["dgrad"], plain["weight"]) == ("e6m9_chunk64", "native", None)
    assert accumulator("h100_e4m3").to_dict()["operands"] == ["e4m3fn", "e4m3fn"]


def test_fields_that_are_left_out_have_their_defaults() -> None:
    assert Quantizer.from_dict({"fmt": "e5m2"}) == Quantizer("e5m2")
    assert Recipe.from_dict({}) == Recipe()
    assert Accumulator.from_dict({"order": "native"}) == NATIVE


@each(
    "text", ['Recipe(input="e5m2", fprop="e6m9")', " Recipe( input = 'e5m2',\n  fprop='e6m9', ) "]
)
def test_a_recipe_may_be_written_as_python_reads_it(text: str) -> None:
    assert Recipe.parse(text) == Recipe(input="e5m2", fprop="e6m9")


@each(
    "text, match",
    [
        (
            "fp8_wang2018",
            r"cannot read 'fp8_wang2018'; expected Recipe\(input='e5m2', .*lp\.recipe",
        ),
        ("Recipe(input='e5m2'", r"cannot read \"Recipe\(input='e5m2'\""),
        ("Recipe('e5m2')", r"cannot read \"'e5m2'\" in"),
        ("Recipe(input='e5m2' fprop='e6m9')", r"cannot read .* in"),
        ("Recipe(inputs='e5m2')", r"has no field 'inputs'; did you mean input, .*\?"),
        ("Recipe(input='e5m2', input='e5m2')", "gives its input twice"),
        ("Recipe(input='e5m')", "Recipe: input: parse_format: unknown format 'e5m'"),
        ("Recipe(fprop='')", "Recipe: fprop: accumulator: unknown name ''"),
    ],
)
def test_what_is_no_text_of_a_recipe(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Recipe.parse(text)


@each(
    "parse, match",
    [
        (lambda: Recipe.parse(Recipe()), r"Recipe\.parse: expected a str .*, got Recipe"),
        (lambda: Quantizer.parse(3), r"Quantizer\.parse: expected a str .*, got int"),
        (lambda: Quantizer.from_dict("e5m2"), r"Quantizer\.from_dict: expected a mapping .* str"),
    ],
)
def test_values_of_another_type(parse: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        parse()


def test_an_unknown_field_of_plain_values_is_refused() -> None:
    match = r"Quantizer\.from_dict: has no field 'bits'; .* fmt, rounding, random_bits, rng"
    with pytest.raises(ValueError, match=match):
        Quantizer.from_dict({"fmt": "e5m2", "bits": 3})

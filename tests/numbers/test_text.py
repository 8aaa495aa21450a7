"""Texts and plain values of Quantizer, Accumulator and Recipe: both give back an equal object."""

import json
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lpkernels.arithmetic import NATIVE, Accumulator, Quantizer, Recipe, accumulator
from lpkernels.recipes import recipe
from tests.support.descriptions import accumulators, quantizers, recipes
from tests.support.refusals import refused


def agree(described: Any) -> None:
    """The description's text, and its plain values through JSON, give it back."""
    kind = type(described)
    read = accumulator if kind is Accumulator else kind.parse
    assert read(str(described)) == described
    assert kind.from_dict(json.loads(json.dumps(described.to_dict()))) == described


@settings(max_examples=150)
@given(st.one_of(quantizers, accumulators()))
def test_quantizers_and_accumulators_come_back(described: Any) -> None:
    agree(described)


@settings(max_examples=30)
@given(recipes())
def test_recipes_come_back(described: Recipe) -> None:
    agree(described)
    assert recipe(repr(described)) == described


def test_plain_values_are_texts_and_numbers() -> None:
    quantizer = Quantizer("bf16", "stochastic", random_bits=9)
    plain = {"fmt": "e8m7", "rounding": "stochastic", "random_bits": 9, "rng": "fast"}
    assert quantizer.to_dict() == {**plain, "hadamard": None, "signs": "te"}
    plain = Recipe(input=quantizer, fprop="e6m9_chunk64").to_dict()
    assert plain["input"] == "e8m7:stochastic:bits=9"
    assert (plain["fprop"], plain["dgrad"], plain["weight"]) == ("e6m9_chunk64", "native", None)
    assert accumulator("h100_e4m3").to_dict()["operands"] == ["e4m3fn", "e4m3fn"]


def test_fields_left_out_have_their_defaults_and_a_recipe_may_be_python() -> None:
    assert Quantizer.from_dict({"fmt": "e5m2"}) == Quantizer("e5m2")
    assert Recipe.from_dict({}) == Recipe()
    assert Accumulator.from_dict({"order": "native"}) == NATIVE
    for text in (
        'Recipe(input="e5m2", fprop="e6m9")',
        " Recipe( input = 'e5m2',\n  fprop='e6m9', ) ",
    ):
        assert Recipe.parse(text) == Recipe(input="e5m2", fprop="e6m9")


REFUSED = [
    (lambda: Recipe.parse(Recipe()), TypeError, r"Recipe\.parse: expected a str .*, got Recipe"),
    (lambda: Quantizer.parse(3), TypeError, r"Quantizer\.parse: expected a str .*, got int"),
    (partial(Quantizer.from_dict, "e5m2"), TypeError,
     r"Quantizer\.from_dict: expected a mapping .* str"),
    (lambda: Quantizer.from_dict({"fmt": "e5m2", "bits": 3}), ValueError,
     r"Quantizer\.from_dict: has no field 'bits'; .* fmt, rounding, random_bits, rng"),
    *(
        (partial(Recipe.parse, text), ValueError, match)
        for text, match in (
            ("fp8_wang2018", r"'fp8_wang2018'; expected Recipe\(input='e5m2', .*lp\.recipe"),
            ("Recipe(input='e5m2'", r"cannot read \"Recipe\(input='e5m2'\""),
            ("Recipe('e5m2')", r"cannot read \"'e5m2'\" in"),
            ("Recipe(input='e5m2' fprop='e6m9')", r"cannot read .* in"),
            ("Recipe(inputs='e5m2')", r"has no field 'inputs'; did you mean input, .*\?"),
            ("Recipe(input='e5m2', input='e5m2')", "gives its input twice"),
            ("Recipe(input='e5m')", "Recipe: input: parse_format: unknown format 'e5m'"),
            ("Recipe(fprop='')", "Recipe: fprop: accumulator: unknown name ''"),
        )
    ),
]  # fmt: skip
test_what_is_no_text_and_no_plain_value_is_refused = refused(REFUSED)

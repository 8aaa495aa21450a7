"""Texts and plain values of formats, quantizers, accumulators and recipes: whatever a constructor
takes comes back from its text, its plain values, its integers and its pickle."""

import copy
import json
import pickle
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lpkernels as lp
from lpkernels.arithmetic import (
    NATIVE,
    Accumulator,
    Quantizer,
    Recipe,
    RunningRange,
    accumulator,
    accumulator_from_ints,
    as_quantizer,
)
from lpkernels.formats import Format, format_from_ints, parse_format
from lpkernels.recipes import recipe
from tests.numbers import constructed
from tests.numbers.constructed import tables_of_this_module_alone  # noqa: F401

READERS = {Accumulator: accumulator, RunningRange: lp.RunningRange.of}
#: The longest name of each kind: two float formats, and a table.
LONGEST = [
    lp.BlockFormat(
        lp.FloatFormat(1, 14, specials="p3109", bias=-123, subnormals=False, overflow="saturate"),
        (2**31, 2**62), scale=lp.FloatFormat(1, 23, specials="none", bias=-125, subnormals=False,
        overflow="saturate"), axis="k", rule="up", tensor_scale=True, target=2.0**-126,
    ),
    lp.BlockFormat(
        lp.TableFormat([-1, 0, 1], "texts" * 12 + "long"), 2**62, axis=-64, scale="fp32", rule="up",
        target=2.0**-126,
    ),
]  # fmt: skip


def agree(described: Any) -> None:
    kind = type(described)
    read = READERS.get(kind) or (parse_format if isinstance(described, Format) else kind.parse)
    assert read(str(described)) == described
    assert pickle.loads(pickle.dumps(described)) == described
    if isinstance(described, Format):
        assert copy.deepcopy(described) == described == parse_format(described.name)
        assert format_from_ints(described.to_ints()) == described
    if kind is Accumulator:
        assert accumulator_from_ints(described.to_ints()) == described
    if hasattr(described, "to_dict"):
        assert kind.from_dict(json.loads(json.dumps(described.to_dict()))) == described


# What constructors refuse is drawn again.
whatever = partial(
    settings, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


@whatever(max_examples=250)
@given(constructed.formats)
def test_formats_come_back(described: Any) -> None:
    agree(described)


@pytest.mark.parametrize("described", LONGEST)
def test_the_longest_names_come_back(described: Any) -> None:
    assert len(str(described)) > 96
    agree(described)


def test_a_scale_that_is_called_as_the_powers_of_two_keeps_its_values() -> None:
    fmt = lp.BlockFormat("e2m1", 4, scale=lp.FloatFormat(8, 0))
    assert str(fmt) == "block4_e2m1_se8m0ieee"
    assert parse_format("block4_e2m1_se8m0").scale == "e8m0"


@whatever(max_examples=150)
@given(st.one_of(constructed.quantizers, constructed.accumulators))
def test_quantizers_and_accumulators_come_back(described: Any) -> None:
    agree(described)


@pytest.mark.filterwarnings("ignore::lpkernels.FixedAxisWarning")
@whatever(max_examples=40)
@given(constructed.recipes)
def test_recipes_come_back(described: Recipe) -> None:
    agree(described)
    assert recipe(repr(described)) == described


@given(constructed.ranges | constructed.scalings)
def test_ranges_and_scalings_of_earlier_steps_come_back(described: Any) -> None:
    agree(described)


def test_a_short_text_has_the_defaults() -> None:
    assert lp.DelayedScaling.of("delayed") == lp.DelayedScaling()
    assert lp.DelayedScaling.of("delayed:margin=3") == lp.DelayedScaling(margin=3)
    assert as_quantizer("e5m2:philox:bits=7:stochastic") == Quantizer(
        "e5m2", "stochastic", random_bits=7, rng="philox"
    )


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

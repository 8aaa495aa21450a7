"""Spaces of configurations: the paper's 99, products, texts, refusals."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpkernels import Accumulator, FloatFormat
from lpkernels.techniques.pareto import FormatSpace
from tests.loops import each

AXES = {"low": ["e4m3", "e5m2"], "high": ["fp16", "bf16", "fp32"]}


def test_peppp_has_the_99_of_the_paper():
    space = FormatSpace.peppp()
    assert len(space) == len(list(space)) == 99
    assert space.shape == (11, 9)
    assert space.name(0) == "e3m1_sat e6m7_sat"
    assert space.name(98) == "e5m3_sat e8m11_sat"
    widths = [low.bits for low in space.low]
    assert {bits: widths.count(bits) for bits in widths} == {5: 1, 6: 2, 7: 3, 8: 3, 9: 2}
    assert [high.bits for high in space.high] == [14, 16, 18, 15, 17, 19, 16, 18, 20]
    assert {fmt.overflow for pair in FormatSpace.peppp() for fmt in pair} == {"saturate"}


def test_a_space_has_the_low_format_outermost():
    space = FormatSpace(**AXES)
    low, high = space[4]
    assert (str(low), str(high)) == ("e5m2", "e8m7")
    assert space[-1] == (FloatFormat(5, 2), FloatFormat(8, 23))
    assert space[:2] == (space[0], space[1])
    assert space.low_bits.tolist() == [8] * 6
    assert space.high_bits.tolist() == [16, 16, 32] * 2


def test_accumulators_are_a_third_axis():
    space = FormatSpace(**AXES, accumulators=["native", "e6m9_chunk64:stochastic"])
    assert space.shape == (2, 3, 2)
    assert space[1] == (FloatFormat(4, 3), FloatFormat(5, 10), space.accumulators[1])
    assert space.accumulators[1] == Accumulator("e6m9", "stochastic", chunk=64)
    assert space.low_bits.shape == (12,)


def test_index_takes_formats_and_names():
    space = FormatSpace(**AXES)
    assert [space.index(configuration) for configuration in space] == list(range(6))
    assert space.index(("e5m2", "bf16")) == 4
    with pytest.raises(ValueError, match=r"'e5m2 e5m2' is none of its 6 .* like 'e4m3 e5m10'"):
        space.index(("e5m2", "e5m2"))
    with pytest.raises(ValueError, match="none of its 6"):
        space.index(("e5m2",))
    with pytest.raises(IndexError, match="below 6, got 6"):
        space[6]


SPACES = [
    FormatSpace.peppp(),
    FormatSpace(**AXES),
    FormatSpace(**AXES, accumulators=["native", "e6m9_chunk64:stochastic"]),
    FormatSpace(["block32_e2m1", "fixed8_f4"], ["affine8"]),
]


@each("space", SPACES)
def test_spaces_round_trip_through_text_and_json(space: FormatSpace):
    assert FormatSpace.parse(str(space)) == space
    assert FormatSpace.from_json(space.to_json()) == space


@given(
    st.lists(st.tuples(st.integers(2, 8), st.integers(0, 10)), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from(["fp16", "bf16", "e6m9_sat", "fp32"]), min_size=1, unique=True),
)
def test_any_product_of_formats_round_trips(low: list[tuple[int, int]], high: list[str]):
    space = FormatSpace([FloatFormat(*widths) for widths in low], high)
    assert FormatSpace.parse(str(space)) == FormatSpace.from_json(space.to_json()) == space
    assert len(set(space)) == len(low) * len(high)


LATER = json.dumps(json.loads(FormatSpace(**AXES).to_json()) | {"schema": 2})
HIGH = ["bf16"]
WRONG = [
    (lambda: FormatSpace(["e4m3", "e4m3"], HIGH), ValueError, "low has e4m3 twice"),
    (lambda: FormatSpace(["e4m3"], ["bf16", "e8m7"]), ValueError, "high has e8m7 twice"),
    (lambda: FormatSpace(["e4m3"], HIGH, ["e6m9"] * 2), ValueError, "accumulators has e6m9 twice"),
    (lambda: FormatSpace([], HIGH), ValueError, "low must have at least one entry"),
    (lambda: FormatSpace("e4m3", HIGH), TypeError, "low must be a list, got 'e4m3'"),
    (lambda: FormatSpace(["e4m3"], [3]), TypeError, "a format, its name or a torch.dtype, got 3"),
    (lambda: FormatSpace.parse("e4m3 e5m2"), ValueError, "two or three axes"),
    (lambda: FormatSpace.parse(3), TypeError, "expected a str"),
    (lambda: FormatSpace.from_json("e4m3"), ValueError, "not JSON"),
    (lambda: FormatSpace.from_json("[]"), ValueError, "expected a format space"),
    (lambda: FormatSpace.from_json(LATER), ValueError, "schema <= 1 of 'format space', got 2"),
]


@each("call, error, match", WRONG)
def test_wrong_axes_and_texts_are_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()

"""An assignment as a file and as a table."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lpkernels.techniques.assignment import Assignment, Formats, Op, Pins, demote, group
from tests.loops import each
from tests.techniques.assignment.networks import chain

GROUPS = group(chain())
MADE = demote(
    GROUPS, 0.4, formats=Formats(weight=("bf16", "fp8_e5m2:stochastic")),
    pins=Pins(high="in.*", low=["fc.*"], tied="bn?.bias.P"),
)  # fmt: skip


def test_an_assignment_comes_back(tmp_path: Path):
    path = tmp_path / "a.json"
    MADE.save(path)
    assert Assignment.load(path, GROUPS) == MADE
    promoted = MADE.promoted(["conv2.Y", "relu1.Y"])
    promoted.save(str(path))
    assert Assignment.load(path) == promoted
    # Each tensor takes one line.
    assert len(path.read_text().splitlines()) == 7 + len(MADE.tensors)


def test_tensors_have_the_formats_of_their_precision():
    assert str(MADE.format_of("conv2.weight.P")) == "e5m2:stochastic"
    assert str(MADE.format_of("conv1.weight.P")) == "e8m7"
    assert MADE.is_low("relu1.Y")
    assert not MADE.is_low("in.Y")
    for call in (MADE.format_of, lambda key: MADE.promoted([key])):
        with pytest.raises(ValueError, match=r"no tensor has the key 'relu9\.Y'"):
            call("relu9.Y")


def chain_with(**fields: Callable[[Op], Any]) -> list[Op]:
    return [replace(op, **{name: of(op) for name, of in fields.items()}) for op in chain()]


@each(
    "ops, match",
    [
        ([*chain(), Op("more", False, ("nll",), {}, 1)],
         "it is of another model: it lacks 'more.GY', 'more.Y'; trace the model"),
        (chain()[:-1], "it is of another model: the model lacks 'nll.GY', 'nll.Y'; trace"),
        (chain_with(name=lambda op: f"x{op.name}", inputs=lambda op: ()),
         "it lacks 'xbn1.GY', 'xbn1.Y', 'xbn1.bias.GP' and 35 more and the model lacks 'bn1.GY'"),
        (chain_with(numel=lambda op: 2 * op.numel),
         "it is of another batch: 22 tensors have other sizes; 'in.Y' has 256 elements in it "
         "and 512 in the model"),
        (chain_with(params=lambda op: dict.fromkeys(op.params, 9)),
         "it is of another model: 16 tensors have other sizes; 'conv1.weight.P' has 36 elements"),
    ],
)  # fmt: skip
def test_an_assignment_of_something_else_is_refused(tmp_path: Path, ops: list[Op], match: str):
    MADE.save(tmp_path / "a.json")
    with pytest.raises(ValueError, match=match):
        Assignment.load(tmp_path / "a.json", group(ops))


@each(
    "text, match",
    [
        ("no json", "expected an lpkernels assignment, got no JSON"),
        ("[1]", "expected an lpkernels assignment, as its save"),
        ('{"what": "lpkernels assignment", "schema": 9}',
         "expected schema <= 1 of 'lpkernels assignment', got 9"),
        ('{"what": "lpkernels assignment", "schema": 1}', "a field is missing .*: 'tensors'"),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, text: str, match: str):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=match):
        Assignment.load(path)


def test_the_table_has_a_row_for_each_group():
    assert str(demote(group(chain(loss_numel=4)), 0.6)).splitlines() == [
        "group  from   to     tensors  elements   low    bits",
        "    0  in     in           4       584    0%   9,344",
        "    1  conv1  relu1       12     6,736  100%  56,256",
        "    2  conv2  pool        16     3,348    0%  53,568",
        "    3  fc     nll          6       168    0%   2,688",
        "low-precision ratio 0.6216, 121,856 bits of 173,376 in high precision, bit ratio 0.5943",
    ]


def test_a_network_without_elements_has_no_ratio():
    made = demote(group([Op("in", False, (), {}, 0)]), 0.0)
    assert (made.ratio, made.bits, made.bit_ratio) == (0.0, 0, 0.0)
    assert "of none in high precision" in str(made)

"""`lpkernels assign` and `lpkernels units`."""

import re
from pathlib import Path

import pytest

from lpkernels.arithmetic import MODELS, UNITS
from lpkernels.techniques.assignment import Assignment
from tests.support.commands import call, done, sentence, wide  # noqa: F401

SMALL = ("assign", "--model", "cnn3", "--data", "digits", "--width", 4, "--batch", 8)


def test_it_shows_and_saves_an_assignment(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    said = done(*SMALL, "--ratio", 0.5, "--save", file)
    made = Assignment.load(file)
    assert made.ratio >= 0.5
    assert str(made) in said


@pytest.mark.parametrize("order", ["increasing", "random", "uniform", "operator_based"])
def test_every_order_gives_one(order: str) -> None:
    assert "low-precision ratio" in done(*SMALL, "--order", order)


@pytest.mark.parametrize(
    "options, option, message",
    [
        (["--order", "size"], "--order", "expected one of .*uniform.*got 'size'"),
        (["--ratio", 1.5], "--ratio", "1"),
        (["--ratio", 0.5, "--bits", 9], "--bits", "got 9 with --ratio 0.5; give one"),
        (["--ratio", 0.5, "--order", "uniform"], "--ratio", "uniform has no budget, got 0.5"),
        (["--bits", 1], "--bits", "bits=1 cannot be met"),
        (["--batch", 5000], "--batch", "expected at most the 1[0-9]+ training examples, got 5000"),
    ],
)
def test_errors_name_the_option(options: list[object], option: str, message: str) -> None:
    said = sentence(call(*SMALL, *options), 2)
    assert option in said and re.search(message, said)


def test_all_are_listed_and_one_is_detailed() -> None:
    listed = done("units")
    assert all(name in listed for name in (*UNITS, *MODELS)) and listed.count("model only") == 3
    detailed = call("units", "h100_e4m3").output
    assert str(UNITS["h100_e4m3"].accumulator) in detailed
    assert "wgmma" in detailed and "not known" in detailed
    assert "a model, no recording" in call("units", "model_b200_nvf4").output


@pytest.mark.parametrize("name, evidence", [
    ("mi300_e4m3fnuz", "hardware: 1,827 designed outputs"), ("rdna3_fp16", "306 recorded outputs"),
    ("mi250_bf16_1k", "model of MMA-Sim: 1,200 outputs"),
])  # fmt: skip
def test_a_unit_says_what_it_rests_on(name: str, evidence: str) -> None:
    assert evidence in call("units", name).output and evidence in done("units")

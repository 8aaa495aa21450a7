"""`python -m bench.predict`: tables, records, and refusals."""

from pathlib import Path
from typing import Any

import pytest

from bench.predict.__main__ import app
from lpkernels.cli._options import console
from lpkernels.experiments.records import read_records
from tests.loops import each, rows
from tests.support.commands import assert_refused, invoked, sentence, wide  # noqa: F401

PREDICT = ("h100", "--model", "tiny-gpt", "--batch", "2")


def predict(*arguments: object) -> Any:
    return invoked(app, arguments)


def test_tables_and_records(tmp_path: Path) -> None:
    out = tmp_path / "new" / "predicted.jsonl"
    said = sentence(predict(*PREDICT, "--out", out), 0)
    assert "cuda on h100: tiny-gpt, batch 2, fp8_wang2018; predicted, not measured" in said
    assert "triton on h100" in said and "blocks.0.qkv" in said
    records = read_records(out)
    totals = [record for record in records if record["type"] == "prediction_total"]
    assert [record["backend"] for record in totals] == ["cuda", "triton"]
    assert {record["recipe"] for record in records} == {"fp8_wang2018"}


@each("columns", ["80", "1000"])
def test_no_word_of_a_table_is_broken(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """A table that is wider than the console has its own width, no more."""
    monkeypatch.setattr(console, "_width", int(columns))
    lines = predict(*PREDICT).output.splitlines()
    heads = [line for line in lines if "GxMxNxK" in line]
    assert len(heads) == 2
    for head in heads:
        for word in ("layer", "launches", "scratch", "share", "x fp32"):
            assert f" {word} " in head
        assert 100 < len(head) < 170
    assert sum("blocks.0.qkv " in line and " KiB " in line for line in lines) >= 6


def test_an_accumulator_replaces_the_sums_of_the_recipe(tmp_path: Path) -> None:
    out = tmp_path / "predicted.jsonl"
    said = predict(*PREDICT, "--accumulator", "native_chunk64:outer=e6m9", "--out", out).output
    assert "no prediction: triton: native_chunk64:outer=e6m9" in said
    records = read_records(out)
    assert {record["backend"] for record in records} == {"cuda"}
    kernels = {r["kernel"] for r in records if r["type"] == "prediction"}
    assert "tensor cores, half" in kernels
    # Without the option the recipe has its own.
    assert "e6m9_chunk64" not in predict(*PREDICT, "--recipe", "hfp8_sun2019").output


@rows(
    "arguments, option, message",
    (["b200"], "gpu", "expected one of h100, got 'b200'"),
    (["--model", "vgg"], "--model", "docs/predictions.md lists all), got 'vgg'"),
    (["--recipe", "fp7"], "--recipe", "unknown name 'fp7'"),
    ([*PREDICT, "--recipe", "fp32"], "--recipe", "no product of this step is emulated"),
)
def test_wrong_input_names_the_option(arguments: list[str], option: str, message: str) -> None:
    said = sentence(predict(*arguments), 2)
    assert option in said and message in said


def test_help_has_an_example() -> None:
    assert "python -m bench.predict h100 --model resnet18-imagenet" in predict("--help").output


@each("option", ["--predict h100", "--model tiny-gpt", "--recipe fp32", "--batch 2"])
def test_the_command_that_predicted_before_says_where_it_went(option: str) -> None:
    assert_refused(["bench", *option.split()], "python -m bench.predict")

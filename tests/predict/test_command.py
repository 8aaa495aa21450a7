"""`python -m bench.predict`: tables, records, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from bench.predict.__main__ import app
from lpkernels.cli._options import console
from lpkernels.experiments.records import read_records
from tests.loops import each
from tests.support.commands import call, invoked, wide  # noqa: F401

TINY = ("h100", "--model", "tiny-gpt", "--batch", "2")


def predict(*arguments: object) -> Any:
    return invoked(app, arguments)


def test_tables_and_records(tmp_path: Path) -> None:
    out = tmp_path / "new" / "predicted.jsonl"
    result = predict(*TINY, "--out", out)
    assert result.exit_code == 0, result.output
    assert "cuda on h100: tiny-gpt, batch 2, fp8_wang2018; predicted, not measured" in result.output
    assert "triton on h100" in result.output and "blocks.0.qkv" in result.output
    records = read_records(out)
    totals = [record for record in records if record["type"] == "prediction_total"]
    assert [record["backend"] for record in totals] == ["cuda", "triton"]
    assert {record["recipe"] for record in records} == {"fp8_wang2018"}


@pytest.mark.parametrize("columns", ["80", "1000"])
def test_no_word_of_a_table_is_broken(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """A table that is wider than the console has its own width, no more."""
    monkeypatch.setattr(console, "_width", int(columns))
    lines = predict(*TINY).output.splitlines()
    heads = [line for line in lines if "GxMxNxK" in line]
    assert len(heads) == 2
    for head in heads:
        for word in ("layer", "launches", "scratch", "share", "x fp32"):
            assert f" {word} " in head
        assert 100 < len(head) < 170
    assert sum("blocks.0.qkv " in line and " KiB " in line for line in lines) >= 6


def test_an_accumulator_replaces_the_sums_of_the_recipe(tmp_path: Path) -> None:
    out = tmp_path / "predicted.jsonl"
    result = predict(*TINY, "--accumulator", "native_chunk64:outer=e6m9", "--out", out)
    assert result.exit_code == 0, result.output
    assert "no prediction: triton: native_chunk64:outer=e6m9" in result.output
    records = read_records(out)
    assert {record["backend"] for record in records} == {"cuda"}
    kernels = {r["kernel"] for r in records if r["type"] == "prediction"}
    assert "tensor cores, half" in kernels


def test_without_the_option_the_recipe_has_its_own() -> None:
    assert "e6m9_chunk64" not in predict(*TINY, "--recipe", "hfp8_sun2019").output


@pytest.mark.parametrize(
    ("arguments", "option", "message"),
    [
        (["b200"], "gpu", "expected one of h100, got 'b200'"),
        (["--model", "vgg"], "--model", "tiny-lstm, got 'vgg'"),
        (["--recipe", "fp7"], "--recipe", "unknown name 'fp7'"),
        ([*TINY, "--recipe", "fp32"], "--recipe", "no product of this step is emulated"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_names_the_option(arguments: list[str], option: str, message: str) -> None:
    result = predict(*arguments)
    assert result.exit_code == 2, result.output
    assert option in result.output and message in result.output


def test_help_has_an_example() -> None:
    output = predict("--help").output
    assert "python -m bench.predict h100 --model resnet18-imagenet" in output


@each("option", ["--predict h100", "--model tiny-gpt", "--recipe fp32", "--batch 2"])
def test_the_command_that_predicted_before_says_where_it_went(option: str) -> None:
    result = call("bench", *option.split())
    assert result.exit_code == 2
    assert "python -m bench.predict" in result.output

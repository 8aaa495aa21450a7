"""`lpkernels bench --predict`: tables, records, and what is refused."""

from pathlib import Path

import pytest

from lpkernels.cli._options import console
from lpkernels.experiments.records import read_records
from tests.loops import each
from tests.support.commands import assert_refused, call, done, wide  # noqa: F401

TINY = ("bench", "--predict", "h100", "--model", "tiny-gpt", "--batch", "2")


def test_tables_and_records(tmp_path: Path) -> None:
    out = tmp_path / "new" / "predicted.jsonl"
    said = done(*TINY, "--out", out)
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
    lines = call(*TINY).output.splitlines()
    heads = [line for line in lines if "GxMxNxK" in line]
    assert len(heads) == 2
    for head in heads:
        for word in ("layer", "launches", "scratch", "share", "x fp32"):
            assert f" {word} " in head
        assert 100 < len(head) < 170
    assert sum("blocks.0.qkv " in line and " KiB " in line for line in lines) >= 6


def test_an_accumulator_replaces_the_sums_of_the_recipe(tmp_path: Path) -> None:
    out = tmp_path / "predicted.jsonl"
    said = done(*TINY, "--accumulator", "native_chunk64:outer=e6m9", "--out", out)
    assert "no prediction: triton: native_chunk64:outer=e6m9" in said
    records = read_records(out)
    assert {record["backend"] for record in records} == {"cuda"}
    kernels = {r["kernel"] for r in records if r["type"] == "prediction"}
    assert "tensor cores, half" in kernels
    # Without the option the recipe has its own.
    assert "e6m9_chunk64" not in call(*TINY, "--recipe", "hfp8_sun2019").output


@each(
    "arguments, option, message",
    [
        (["--predict", "b200"], "--predict", "expected one of h100, got 'b200'"),
        (["--predict", "h100", "--model", "vgg"], "--model", "tiny-lstm, got 'vgg'"),
        (["--predict", "h100", "--recipe", "fp7"], "--recipe", "unknown name 'fp7'"),
        ([*TINY[1:], "--recipe", "fp32"], "--recipe", "no product of this step is emulated"),
    ],
)
def test_wrong_input_names_the_option(arguments: list[str], option: str, message: str) -> None:
    assert_refused(["bench", *arguments], option, message)


def test_help_has_an_example() -> None:
    assert "lpkernels bench --predict h100 --model resnet18-imagenet" in done("bench", "--help")

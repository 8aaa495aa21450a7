"""`lpkernels units`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lpkernels.arithmetic import UNITS
from lpkernels.experiments.sweeps import unit_comparison
from lpkernels.experiments.training.interrupts import Interrupted
from tests.loops import each
from tests.support.commands import assert_refused, call, done, wide  # noqa: F401

TINY = (
    *("--data", "tests.experiments.tiny:tiny_workload", "--model", "cnn1", "--width", 2),
    *("--epochs", 1, "--batch", 15),
)
PAIR = ("units", "compare", "--a", "fp32", "--b", "h100_fp8")


def test_all_are_listed_and_one_is_detailed() -> None:
    listed = done("units")
    assert all(name in listed for name in UNITS)
    assert call("units", "show").output == listed
    detailed = call("units", "h100_e4m3").output
    assert str(UNITS["h100_e4m3"].accumulator) in detailed
    assert "wgmma" in detailed and "not known" in detailed


def test_help_of_a_comparison_has_an_example() -> None:
    result = call("units", "compare", "--help")
    assert "lpkernels units compare --a h100_fp8 --b ada_e4m3" in result.output.split("Example:")[1]


def test_a_comparison_shows_outputs_and_training_and_draws(tmp_path: Path) -> None:
    said = done(*PAIR, *TINY, "--out", tmp_path)
    for words in ("untrained", "trained in fp32", "trained in h100_fp8", "24", "test accuracy"):
        assert words in said
    assert "no forward sum is longer than a block: the longest has 9 products" in said
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert "h100_fp8" in call("report", tmp_path).output


def test_stopped_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise Interrupted("stopped here")

    with monkeypatch.context() as patch:
        patch.setattr(unit_comparison, "compare", interrupted)
        result = call(*PAIR, *TINY, "--out", tmp_path)
    assert result.exit_code == 130
    assert f"resume with: lpkernels units compare --resume --out {tmp_path}" in result.output
    resume = ("units", "compare", "--resume", "--out", tmp_path)
    assert_refused((*resume, "--epochs", 1), "--epochs", "options it was begun with")
    assert "trained in h100_fp8" in done(*resume)
    assert_refused((*PAIR, *TINY, "--out", tmp_path), "--out")


@each(
    "arguments, option, message",
    [
        (["h100_e4m"], "name", "did you mean h100_e4m3"),
        (["compare"], "--a", "expected a recipe or a tensor core"),
        (["compare", "--a", "fp32"], "--b", "expected a recipe or a tensor core"),
        (["compare", "--a", "h100_fp7"], "--a", "did you mean h100_fp8"),
        (["compare", "--a", "b200_bf16", "--b", "h100_bf16"], "--b", "same arithmetic"),
        (["compare", "--a", "fp32", "--b", "h100_fp8", "--model", "vgg"], "--model", "vgg"),
        (["compare", "--a", "fp32", "--b", "h100_fp8", "--lr", "-1"], "--lr", "positive"),
        (["compare", "--a", "fp32", "--b", "h100_fp8", "--device", "tpu7"], "--device", "tpu7"),
        (["compare", "--resume", "--out", "nowhere"], "--out", "expected a comparison in"),
    ],
)
def test_errors_name_the_option(
    arguments: list[str], option: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(["units", *arguments], option, message)
    assert list(tmp_path.iterdir()) == []

"""`lpkernels frontier`: real runs, small ones."""

import re
import shlex
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from lpkernels.cli._options import bytes_from
from lpkernels.experiments.sweeps import frontiers
from lpkernels.experiments.sweeps.cells import read_cell
from lpkernels.experiments.sweeps.results import read_results
from lpkernels.experiments.training.config import RunConfig, command_of, flat_settings
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace
from tests.support import commands
from tests.support.commands import wide  # noqa: F401

TOML = """
name = "tables"
seeds = 1
low = ["e3m1_sat", "e4m2_sat"]
high = ["e6m7_sat", "e6m11_sat"]
[base]
data = "iris"
width = 4
epochs = 1
batch = 64
[arms.clean]
[arms.noisy]
label_noise = 0.5
"""
SPACE = FormatSpace(["e3m1_sat", "e4m2_sat"], ["e6m7_sat", "e6m11_sat"])
call, done = (partial(command, "frontier") for command in (commands.call, commands.done))


def fails(option: str, message: str, *arguments: object) -> None:
    said = commands.sentence(call(*arguments), 2).replace("'--", "--")
    assert f"Invalid value for {option}" in said and message in said, said


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "tables.toml").write_text(TOML)
    return tmp_path / "tables.toml"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study in which everything is measured."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "tables.toml").write_text(TOML)
    out = folder / "out"
    said = done("run", folder / "tables.toml", "--out", out, "--jobs", 1)
    assert "8 finished" in said and f"lpkernels frontier predict {out}" in " ".join(said.split())
    return out


@pytest.fixture
def known(tmp_path: Path) -> Path:
    errors = np.random.default_rng(0).uniform(0.2, 0.6, (4, 4))
    return ErrorMatrix(SPACE, list("abcd"), errors).save(tmp_path / "known.csv")


def test_table_and_predict(study: Path, tmp_path: Path) -> None:
    errors, picture = tmp_path / "errors.csv", tmp_path / "frontier.png"
    assert "8 finished, 0 diverged" in commands.done("sweep", "status", study)
    done("table", study, "--export", errors)
    assert ErrorMatrix.load(errors).tasks == ("clean", "noisy")
    predicted = done("predict", study, "--task", "noisy", "--cap", "48KiB", "--plot", picture)
    assert "every configuration is measured" in predicted and "clean" not in predicted
    assert picture.stat().st_size > 1000


def test_a_choice_by_known_tasks_says_its_recipe(spec: Path, known: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--known", known, "--rank", 2)
    spec.write_text(TOML.replace("[arms.clean]\n", ""))
    done("run", spec, "--out", out, *options, "--measure", 3, "--jobs", 1)
    assert "3 cells: 3 finished" in commands.done("sweep", "status", out)
    said = done("predict", out, "--cap", "1MiB", *options).splitlines()
    choice, recipe = (next(x for x in said if x.startswith(y)) for y in ("choice for", "recipe: "))
    name = " ".join(re.findall(r"(\w+):stochastic", recipe))
    assert name in SPACE.names
    assert choice.startswith(f"choice for noisy, at most 1.00 MiB: {name}, ")


def test_the_printed_command_trains_what_was_measured(study: Path) -> None:
    printed = done("predict", study, "--task", "noisy", "--cap", "1MiB").splitlines()
    (line,) = (line for line in printed if line.startswith("lpkernels train"))
    (name,) = re.findall("1.00 MiB: (.*?),", "\n".join(printed))
    found = (r for r in read_results(study).runs if r.arm == "noisy")
    (cell,) = (result.cell for result in found if result.axes["configuration"] == name)
    measured = read_cell(study / "cells" / cell).config
    assert measured.name == "noisy" and measured.workload.label_noise == 0.5
    assert parsed(line) == measured.replace(name="run")


def parsed(command: str) -> RunConfig:
    """The configuration that `lpkernels train` reads out of its own options."""
    words = shlex.split(command)
    assert words[:2] == ["lpkernels", "train"]
    given = commands.command("train").make_context("train", words[2:]).params
    return RunConfig.of(**{name: given[name] for name in flat_settings() if name in given})


def test_every_setting_has_its_option_in_a_printed_command() -> None:
    config = RunConfig.of(
        data="my tasks:make", data_dir="a 'b'", lr=1e-3, clip=0.5, augment=True, nesterov=False,
        master="e6m9:stochastic", working="e5m2", dynamic_scale=True, seed=7,
    )  # fmt: skip
    assert parsed(command_of(config)) == config
    accumulators = [["0", "e6m9", "e6m9", "e6m9"]]
    assert command_of(RunConfig.of(layer_accs=accumulators)).startswith("# layer_accs is no option")


def test_wrong_options_are_named_after_missing_files(
    tmp_path: Path, spec: Path, known: Path, study: Path
) -> None:
    none = tmp_path / "none"
    fails("'folder'", "expected the folder of a sweep at", "predict", none)
    fails("'spec'", "expected a specification (a TOML file) at", "run", none)
    fails("--known", "No such file", "predict", study, "--known", none)
    run = ("run", spec, "--out", tmp_path / "out")
    other = ErrorMatrix(FormatSpace(["e4m3"], ["fp16"]), ["a"], [[0.5]])
    path = other.save(tmp_path / "other.csv")
    fails("--known", "its errors are of other configurations", *run, "--known", path)
    fails("--rank", "expected 1 to 4, for 4 known tasks", *run, "--known", known, "--rank", 5)
    given = ("--known", known, "--rank", 2)
    fails("--cap", "below the cheapest configuration's", *run, *given, "--cap", "1B")
    fails("--cap", "expected a size such as 64KiB", *run, "--cap", "much")
    fails(
        "--task", "expected one of clean, noisy, got 'other'", "predict", study, "--task", "other"
    )
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("cells/*"))


def test_stopped_it_can_go_on(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Mock(side_effect=Interrupted("stopped; 0 of 8 cells are finished"))
    monkeypatch.setattr(frontiers, "run_sweep", stop)
    monkeypatch.setattr("sys.argv", ["lpkernels", "frontier", "run", "a b.toml"])
    result = call("run", spec, "--out", tmp_path / "out")
    assert result.exit_code == 130
    assert "resume with: lpkernels frontier run 'a b.toml'" in result.output


@pytest.mark.parametrize(
    "text, size",
    [("64KiB", 65536), ("64 kib", 65536), ("1.5MB", 1_500_000), ("17", 17), (" 1 GiB ", 2**30)],
)
def test_a_size_is_read_with_its_unit(text: str, size: int) -> None:
    assert bytes_from(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "12 parsecs", "-3KiB", "0", "nan", "inf", "1 2 KiB"])
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a size such as 64KiB"):
        bytes_from(text)

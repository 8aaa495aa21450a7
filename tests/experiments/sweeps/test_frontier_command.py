"""`lpkernels frontier`: real runs, small ones."""

import re
import shlex
import shutil
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import typer

from lpkernels import schemas
from lpkernels.cli.train import app as train_app
from lpkernels.experiments.records import write_records
from lpkernels.experiments.sweeps.cells import read_cell
from lpkernels.experiments.sweeps.frontiers import study as studies
from lpkernels.experiments.sweeps.frontiers.choosing import CHOICES
from lpkernels.experiments.sweeps.results import read_results
from lpkernels.experiments.training.config import RunConfig, command_of, flat_settings
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.report import frontiers as pictures
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
[tasks.clean]
[tasks.noisy]
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
    said = done("run", folder / "tables.toml", "--out", out, "--all", "--jobs", 1)
    assert "8 finished" in said and f"lpkernels frontier predict {out}" in " ".join(said.split())
    return out


@pytest.fixture
def known(tmp_path: Path) -> Path:
    errors = np.random.default_rng(0).uniform(0.2, 0.6, (4, 4))
    return ErrorMatrix(SPACE, list("abcd"), errors).save(tmp_path / "known.csv")


def test_status_table_predict_plot(study: Path, tmp_path: Path) -> None:
    errors = tmp_path / "errors.csv"
    status = call("status", study).output
    assert "noisy: 4 of 4 configurations chosen" in status and "8 finished, 0 diverged" in status
    done("table", study, "--export", errors)
    assert ErrorMatrix.load(errors, SPACE).tasks == ("clean", "noisy")
    predicted = call("predict", study, "--task", "noisy").output
    assert "every configuration is measured" in predicted and "clean" not in predicted
    for what in ("frontier", "matrix", "singular-values"):
        picture = tmp_path / f"{what}.png"
        done("plot", study, "--what", what, "--truth", errors, "--out", picture)
        assert picture.stat().st_size > 1000


def test_studies_of_one_name(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(pictures, "plot_frontiers", lambda each, *_, **__: drawn.extend(each))
    folders = [shutil.copytree(study, tmp_path / name) for name in ("one", "two")]
    done("plot", *folders, "--out", tmp_path / "x.png")
    assert drawn == ["one: clean", "one: noisy", "two: clean", "two: noisy"]


def test_choose_says_the_recipe(spec: Path, known: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--known", known, "--rank", 2)
    done("run", spec, "--out", out, *options, "--task", "noisy", "--measure", 3, "--jobs", 1)
    assert "3 of 4" in call("status", out).output
    choice, recipe, *_ = done("choose", out, "--cap", "1MiB", *options).splitlines()
    name = " ".join(re.findall(r"(\w+):stochastic", recipe))
    assert name in SPACE.names
    assert choice.startswith(f"choice for noisy, at most 1.00 MiB: {name}, ")


def test_the_printed_command_trains_what_was_measured(study: Path) -> None:
    printed = done("choose", study, "--task", "noisy", "--cap", "1MiB").splitlines()
    (line,) = (line for line in printed if line.startswith("lpkernels train"))
    arm = f"noisy: {' '.join(re.findall(r'([a-z0-9_]+):stochastic', printed[1]))}"
    (cell,) = (each.cell for each in read_results(study).results if each.arm == arm)
    measured = RunConfig.from_dict(read_cell(study / "cells" / cell)["config"])
    assert measured.name == arm and measured.workload.label_noise == 0.5
    assert parsed(line) == measured.replace(name="run")


def parsed(command: str) -> RunConfig:
    """The configuration that `lpkernels train` reads out of its own options."""
    words = shlex.split(command)
    assert words[:2] == ["lpkernels", "train"]
    train = typer.main.get_command(train_app)
    given = train.make_context("train", words[2:]).params
    return RunConfig.of(**{name: given[name] for name in flat_settings() if name in given})


def test_every_setting_has_its_option_in_a_printed_command() -> None:
    config = RunConfig.of(
        data="my tasks:make", data_dir="a 'b'", lr=1e-3, clip=0.5, augment=True, nesterov=False,
        master="e6m9:stochastic", working="e5m2", log="tensorboard:x", dynamic_scale=True, seed=7,
    )  # fmt: skip
    assert parsed(command_of(config)) == config
    accumulators = [["0", "e6m9", "e6m9", "e6m9"]]
    assert command_of(RunConfig.of(layer_accs=accumulators)).startswith("# layer_accs is no option")


def test_choices_are_drawn_from_their_records(tmp_path: Path) -> None:
    path, out = tmp_path / "choices.jsonl", tmp_path / "choices.png"
    row = {"type": "average", "method": "greedy", "count": 3, "rmse": 0.1, "rmse_error": 0.01}
    write_records(path, [schemas.header(CHOICES), row | {"noise": 0.02}])
    done("plot", path, "--what", "choices", "--out", out)
    assert out.stat().st_size > 1000


def test_wrong_options_are_named_after_missing_files(tmp_path: Path, spec: Path, known: Path):
    none = tmp_path / "none"
    fails("'folder'", "expected the folder of a study at", "choose", none)
    fails("'spec'", "expected a specification (a TOML file) at", "run", none)
    fails("'sources'", "expected the folder of a study or a file of records", "plot", none)
    fails("--known", "No such file", "plot", tmp_path, "--known", none)
    fails("--truth", "No such file", "plot", tmp_path, "--truth", none)
    fails("--what", "expected one of frontier", "plot", tmp_path, "--what", "x", "--out", "a.png")
    run = ("run", spec, "--out", tmp_path / "out")
    other = ErrorMatrix(FormatSpace(["e4m3"], ["fp16"]), ["a"], [[0.5]])
    path = other.save(tmp_path / "other.csv")
    fails("--known", "its errors are of other configurations", *run, "--known", path)
    fails("--rank", "expected 1 to 3, for 4 known tasks", *run, "--known", known, "--rank", 4)
    given = ("--known", known, "--rank", 2)
    fails("--cap", "below the cheapest configuration's", *run, *given, "--cap", "1B")
    fails("--cap", "expected a size such as 64KiB", *run, "--cap", "much")
    fails("--task", "expected one of clean, noisy, got 'other'", *run, "--task", "other")
    fails("--method", "expected one of greedy", *run, *given, "--method", "best")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("cells/*"))


def test_stopped_it_can_go_on(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Mock(side_effect=Interrupted("stopped; 0 of 8 cells are finished"))
    monkeypatch.setattr(studies, "run_sweep", stop)
    monkeypatch.setattr("sys.argv", ["lpkernels", "frontier", "run", "a b.toml", "--all"])
    result = call("run", spec, "--out", tmp_path / "out", "--all")
    assert result.exit_code == 130
    assert "resume with: lpkernels frontier run 'a b.toml' --all" in result.output

"""`lpkernels sweep`: real runs, small ones."""

import itertools
import signal
from functools import partial
from pathlib import Path

import pandas
import pytest

from lpkernels.experiments.records import read_run
from lpkernels.experiments.sweeps.cells import Folder
from lpkernels.experiments.sweeps.results import read_results
from lpkernels.experiments.training.trainer import Trainer
from tests.support import commands
from tests.support.commands import wide  # noqa: F401
from tests.support.trainings import figures

TOML = """
name = "tiny"
seeds = 2
[base]
model = "cnn1"
width = 1
epochs = 2
batch = 500
[arms.fp32]
[arms.affine4]
operands = "affine4"
"""

#: The results of sweeps that the pages show.
RECORDS = sorted((Path(__file__).parents[3] / "bench" / "results").glob("sweep-*.jsonl"))
call, done = (partial(command, "sweep") for command in (commands.call, commands.done))


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "sweep.toml").write_text(TOML)
    return tmp_path / "sweep.toml"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed sweep, which tests only read."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "sweep.toml").write_text(TOML)
    said = done("run", folder / "sweep.toml", "--out", folder / "whole", "--jobs", 1)
    assert "4 finished" in said
    assert f"lpkernels sweep table {folder / 'whole'}" in " ".join(said.split())
    return folder / "whole"


@pytest.fixture(scope="module")
def exported(whole: Path) -> Path:
    """A file of the results of `whole`, which tests only read."""
    path = whole.parent / "results.jsonl"
    done("table", whole, "--export", path)
    return path


def test_the_status_counts_the_cells(whole: Path) -> None:
    said = done("status", whole)
    assert "4 cells: 4 finished, 0 diverged, 0 failed, 0 begun, 0 waiting" in said


def test_a_table_of_the_folder_and_of_its_exported_file_are_the_same(whole, exported) -> None:
    table = done("table", whole)
    assert all(word in table for word in ("affine4", "difference", "Holm"))
    assert done("table", exported) == table
    frames = (read_results(path).table for path in (exported, whole))
    pandas.testing.assert_frame_equal(*frames)
    assert exported.stat().st_size < 10_000


def test_a_table_has_the_asked_figure_and_reference(exported: Path) -> None:
    said = done("table", exported, "--reference", "affine4", "--metric", "train_loss")
    assert "train loss" in said and "arm minus affine4" in " ".join(said.split())


def test_a_table_in_a_file_has_a_row_for_each_arm(exported: Path, tmp_path: Path) -> None:
    done("table", exported, "--csv", tmp_path / "deep" / "t.csv")
    table = pandas.read_csv(tmp_path / "deep" / "t.csv")
    assert table["arm"].tolist() == ["fp32", "affine4"] and table["pairs"].tolist()[1:] == [2]


def test_an_arm_that_is_left_out_is_exported_all_the_same(exported: Path, tmp_path: Path) -> None:
    said = done("table", exported, "--without", "affine4", "--export", tmp_path / "all.jsonl")
    assert "affine4" not in said
    assert read_results(tmp_path / "all.jsonl") == read_results(exported)


def test_a_table_without_results_of_the_reference_says_so(exported: Path, tmp_path: Path) -> None:
    lines = exported.read_text().splitlines()
    part = tmp_path / "part.jsonl"
    part.write_text("\n".join(line for line in lines if '"arm": "fp32"' not in line))
    assert "nothing is compared: 'fp32' has no result yet" in done("table", part)


@pytest.mark.parametrize("options", [(), ("--against", "updates")], ids=["rows", "curve"])
def test_a_sweep_is_drawn(options: tuple[str, ...], exported: Path, tmp_path: Path) -> None:
    done("plot", exported, *options, "--out", tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "path",
    [RECORDS[0], *(pytest.param(path, marks=pytest.mark.slow) for path in RECORDS[1:])],
    ids=lambda path: path.stem,
)
def test_published_results_are_shown(path: Path, tmp_path: Path) -> None:
    assert read_results(path).spec.compare in done("table", path)
    commands.done("report", path, "--html", tmp_path / "page.html")


def test_a_cell_is_the_run_that_train_makes(whole: Path, tmp_path: Path) -> None:
    for name in Folder(whole).finished():
        cell = whole / "cells" / name
        config = read_run(cell).config
        Trainer(config, tmp_path / name).fit()
        assert figures(tmp_path / name) == figures(cell)
        assert config.threads == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_ctrl_c_says_how_to_go_on(spec, whole, tmp_path, monkeypatch, number):
    evaluate, tests = Trainer.evaluate, itertools.count(1)

    def signalled(trainer: Trainer) -> dict[str, float]:
        # Each cell is tested after its two epochs.
        if next(tests) == 3:
            signal.raise_signal(number)
        return evaluate(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", signalled)
        words = ["run", str(spec), "--out", str(tmp_path / "out"), "--jobs", "1"]
        patch.setattr("sys.argv", ["lpkernels", "sweep", *words])
        result = call(*words)
    assert result.exit_code == 130
    assert "stopped; 1 of 4 cells are finished" in result.output
    command = result.output.split("resume with: lpkernels sweep ")[1].split()
    assert "1 begun" in call("status", tmp_path / "out").output
    done(*command)
    for name in Folder(whole).finished():
        assert figures(tmp_path / "out" / "cells" / name) == figures(whole / "cells" / name)


def test_failed_cells_are_told(spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = Trainer.evaluate

    def fail(trainer: Trainer) -> dict[str, float]:
        if trainer.config.name == "affine4":
            raise ValueError("[no] luck")
        return evaluate(trainer)

    run = ("run", spec, "--out", tmp_path / "out", "--jobs", 1)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", fail)
        result = call(*run)
    assert result.exit_code == 1
    assert "failed: affine4, seed 0: ValueError: [no] luck (failed/" in result.output
    assert "2 failed" in call("status", tmp_path / "out").output
    assert "[no] luck" in call("table", tmp_path / "out").output
    assert call(*run).exit_code == 1
    done(*run, "--retry-failed")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("run none.toml --out x", "expected a specification (a TOML file) at"),
        ("run SPEC --out x --engine slurm", "expected one of processes, ray, dask"),
        ("run none.toml", "expected a specification (a TOML file) at 'none.toml'"),
        ("run SPEC --out SPEC", "is a file"),
        ("status x", "expected the folder of a sweep at 'x'"),
        ("status RESULTS", "write the folder that `lpkernels sweep run` made"),
        ("table SPEC", "is not a JSON record"),
        ("table RESULTS --without fp", "expected one of fp32"),
        ("plot RESULTS --against bits --out x", "field: expected one of"),
        ("plot x", "No such file or directory: 'x'"),
    ],
)
def test_errors_are_messages(arguments, message, spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = {"SPEC": str(spec), "RESULTS": str(RECORDS[0])}
    words = (paths.get(argument, argument) for argument in arguments.split())
    commands.assert_refused(("sweep", *words), message)
    assert not (tmp_path / "x").exists()

"""Sweeps of toy runs: cells that run, sweeps that are refused, cells that fail."""

import errno
import os
import platform
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import lpkernels
from lpkernels import _build
from lpkernels.experiments.records import read_run
from lpkernels.experiments.sweeps import engines, training
from lpkernels.experiments.sweeps.results import read_status
from lpkernels.experiments.sweeps.specification import SweepSpec
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted
from tests.experiments.killing import owned_by_another_thread
from tests.experiments.sweeps import toy


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "book"


@pytest.fixture
def noted(book: Path) -> training.Train:
    """Trains as `toy.fragile`, and notes in `book` what begins."""
    return partial(toy.fragile, book=book)


def test_every_cell_has_a_result_in_the_order_of_the_specification(tmp_path: Path) -> None:
    spec = toy.spec("a", "b", seeds=2, lr=[0.1, 0.2])
    results = toy.run(spec, tmp_path)
    order = [(cell.arm, cell.axes, cell.seed) for cell in spec.cells()]
    assert [(r.arm, r.axes, r.seed) for r in results.runs] == order
    for result in results.runs:
        assert (result.status, result.values["epoch"]) == ("finished", 3)
        assert 0 <= result.values["test_accuracy"] < 1
    assert (results.missing, results.spec) == (0, spec)
    assert not any((tmp_path / "work").iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"sweep.json", "cells", "failed", "work"}


def test_more_cells_run_what_is_missing(tmp_path: Path, noted: training.Train, book: Path) -> None:
    for spec, begun in (
        (toy.spec("a", seeds=2, lr=[0.1]), 2),
        (toy.spec("a", seeds=2, lr=[0.1]), 2),
        (toy.spec("a", "b", seeds=3, lr=[0.1, 0.2]), 12),
    ):
        results = toy.run(spec, tmp_path / "out", train=noted)
        assert (len(toy.starts(book)), results.missing) == (begun, 0)
    assert len(results.runs) == 12


@pytest.mark.parametrize(
    "spec, options, message",
    [
        (toy.spec("a", epochs=4), {}, "holds another sweep; choose another folder"),
        (toy.spec("a", lr=[1]), {}, "holds another sweep; .* of its 1 other cells"),
        (toy.spec("a"), {"jobs": 0}, "jobs: expected at least 1, got 0"),
        (toy.spec("a"), {"engine": "slurm"}, "expected one of processes, ray, dask"),
        (SweepSpec(base={"data": "mnist"}), {"train": None}, "got 'mnist'"),
        (SweepSpec(base={"model": "vgg9"}), {"train": None}, "got 'vgg9'"),
        (SweepSpec(base={"device": "cuda:99"}), {}, "torch finds no CUDA device"),
        (SweepSpec(base={"data": "no_module:f"}), {"train": None}, "no_module"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(tmp_path, spec, options, message):
    toy.run(toy.spec("a", seeds=1), tmp_path)
    before = sorted(tmp_path.rglob("*"))
    log = (tmp_path / "sweep.json").read_bytes()
    with pytest.raises(ValueError, match=message):
        toy.run(spec, tmp_path, **options)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "sweep.json").read_bytes() == log


@pytest.mark.parametrize("engine, extra", [("ray", "ray"), ("dask", "dask"), ("processes", "lab")])
def test_an_engine_that_is_not_installed_says_what_to_install(tmp_path, monkeypatch, engine, extra):
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "lpkernels\[{extra}\]"'):
        toy.run(toy.spec("a"), tmp_path / "out", jobs=2, engine=engine)
    assert not (tmp_path / "out").exists()


def test_a_failed_cell_is_tried_once_more(tmp_path: Path, noted: Any, book: Path) -> None:
    results = toy.run(toy.spec("once", "always", "well", seeds=1), tmp_path / "out", train=noted)
    assert [result.status for result in results.runs] == ["finished", "failed", "finished"]
    always = results.runs[1]
    assert always.error == "ValueError: always cannot train" and always.values == {}
    assert "Traceback" in (tmp_path / "out" / "failed" / always.cell / "error.txt").read_text()
    assert sorted(toy.starts(book)) == ["always", "always", "once", "once", "well"]


def test_failed_cells_run_again_if_asked(tmp_path: Path, noted: training.Train, book: Path) -> None:
    spec, out = toy.spec("always", seeds=1), tmp_path / "out"
    for again, begun in ((False, 2), (False, 2), (True, 4)):
        (result,) = toy.run(spec, out, train=noted, retry_failed=again).runs
        assert (len(toy.starts(book)), result.status) == (begun, "failed")
    assert toy.run(spec, out, retry_failed=True).runs[0].status == "finished"


def test_a_run_that_ends_early_failed(tmp_path: Path) -> None:
    def lazy(config: RunConfig, folder: Path, progress: training.Progress) -> None:
        toy.train(config.replace(epochs=1), folder, progress)
        header, *lines = (folder / "records.jsonl").read_text().splitlines()
        whole = header.replace('"epochs": 1', '"epochs": 3')
        (folder / "records.jsonl").write_text("\n".join([whole, *lines]) + "\n")

    results = toy.run(toy.spec("a", seeds=1), tmp_path, train=lazy)
    assert "the run ended after 1 epochs, before its last" in results.runs[0].error


def test_a_diverged_run_is_a_result(tmp_path: Path) -> None:
    (result,) = toy.run(toy.spec("a", seeds=1), tmp_path, train=toy.diverging).runs
    assert (result.status, result.error) == ("diverged", "")
    assert result.values["train_loss"] is None


def test_cells_of_other_versions_and_commits_are_told_and_stay(
    tmp_path: Path, monkeypatch: Any
) -> None:
    own = toy.run(toy.spec("a", seeds=1), tmp_path)
    ((code, _),) = own.codes.items()
    monkeypatch.setattr(_build, "commit", lambda: "0123456789abcdef+")
    both = toy.run(toy.spec("a", "always", seeds=1), tmp_path, train=toy.failing)
    assert both.runs[0] == own.runs[0]
    assert both.codes == {code: 1, "lpkernels 0.1.0, commit 0123456789ab+": 1}


def test_workers_of_another_version_stop_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(lpkernels, "__version__", "9")
    with pytest.raises(RuntimeError, match=r"process .* has another version of lpkernels"):
        toy.run(toy.spec("a"), tmp_path)


def test_a_folder_belongs_to_one_command(tmp_path: Path) -> None:
    message = rf"{tmp_path}: process {os.getpid()} on {platform.node()} is at work there"
    with owned_by_another_thread(tmp_path):
        with pytest.raises(BlockingIOError, match=message):
            toy.run(toy.spec("a"), tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert toy.run(toy.spec("a", seeds=1), tmp_path).missing == 0


def test_a_full_disk_is_an_error_that_says_so_and_no_cells_failure(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"no room left .* 2 of 4 cells .* none is lost") as full:
        toy.run(toy.spec("a", "b", seeds=2), tmp_path, train=toy.full)
    assert full.value.errno == errno.ENOSPC
    results = toy.run(toy.spec("a", "b", seeds=2), tmp_path)
    assert [r.status for r in results.runs] == ["finished"] * 4


def stopping(config: RunConfig, folder: Path, progress: training.Progress) -> None:
    """Trains until ctrl-C after the second epoch of the cells with seed 1."""

    def signalled(done: int, total: int) -> None:
        if config.seed == 1 and done == 2:
            signal.raise_signal(signal.SIGINT)
        progress(done, total)

    toy.train(config, folder, signalled)


@pytest.fixture
def stopped(tmp_path: Path) -> SweepSpec:
    """A sweep in `out` whose second seed was stopped, undisturbed in `whole`."""
    spec = toy.spec("a", "b", seeds=2, epochs=5)
    toy.run(spec, tmp_path / "whole")
    with pytest.raises(Interrupted, match="stopped; 2 of 4 cells are finished, in"):
        toy.run(spec, tmp_path / "out", train=stopping)
    return spec


def assert_goes_on(stopped: SweepSpec, folder: Path) -> None:
    """Asserts that the same call goes on from the checkpoint to the figures of `whole`."""
    toy.run(stopped, folder / "out")
    assert toy.figures(folder / "out") == toy.figures(folder / "whole")
    text = "".join(p.read_text() for p in (folder / "out").rglob("records.jsonl"))
    assert text.count('{"type": "resume", "epoch": 2}') == 1


def test_ctrl_c_saves_and_the_same_call_goes_on(stopped: SweepSpec, tmp_path: Path) -> None:
    _, begun = read_status(tmp_path / "out")
    assert [(cell.label(), share) for cell, share in begun] == [("a, seed 1", 0.4)]
    assert_goes_on(stopped, tmp_path)


def test_a_cell_does_not_go_on_from_the_checkpoint_of_another(tmp_path: Path) -> None:
    settings = {"data": "tests.experiments.tiny:tiny_workload", "model": "cnn2", "width": 2}
    for seed in (0, 1):
        config = RunConfig.of(**settings, epochs=1, threads=1, seed=seed)
        training.train_cell(config, tmp_path, lambda done, total: None)
        assert read_run(tmp_path).config == config


def test_progress_counts_cells_and_says_the_time_left(tmp_path: Path) -> None:
    console = Console(record=True, width=100, force_terminal=True)
    toy.run(toy.spec("a", "b", seeds=2), tmp_path, console=console)
    text = console.export_text()
    assert "100%" in text and "4 finished, 0 under way" in text and "0:00:00" in text

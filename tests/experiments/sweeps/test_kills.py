"""Sweeps whose commands and workers are killed at any moment, and two sweeps in one folder."""

import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from lpkernels.experiments.sweeps.places import Places
from lpkernels.experiments.sweeps.reading import read_results
from lpkernels.experiments.sweeps.sweep import run_sweep
from tests.experiments.sweeps import toy
from tests.experiments.sweeps.killing import kill_some

EPOCHS, SECONDS, JOBS = 8, 0.02, 2


def start(folder: Path, seeds: int, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.experiments.sweeps.toy_command", str(folder)]
    values = [seeds, EPOCHS, SECONDS, JOBS, *options]
    return subprocess.Popen([*command, *map(str, values)], stderr=subprocess.DEVNULL)


def check_resumes(folder: Path, seeds: int, whole: Path) -> None:
    """The same command, run once more, ends with the results of an undisturbed sweep."""
    assert start(folder, seeds, "again").wait() == 0
    results = read_results(folder)
    assert results.missing == 0 and {r.status for r in results.results} == {"finished"}
    run_sweep(toy.spec("a", "b", seeds=seeds, epochs=EPOCHS), whole, jobs=1, train=toy.train)
    assert toy.figures(folder) == toy.figures(whole)
    assert Places(folder).tries() == {}


def test_a_sweep_killed_at_five_moments_ends_as_one_that_was_not(tmp_path: Path) -> None:
    # This takes 15 seconds: after most kills a command and its two workers import torch anew.
    seeds = 20
    command = partial(start, tmp_path / "out", seeds)
    assert kill_some(command, tmp_path / "out", 5, random.Random(5)).total() >= 4
    check_resumes(tmp_path / "out", seeds, tmp_path / "whole")


@pytest.mark.slow
def test_a_sweep_killed_at_fifty_moments_ends_as_one_that_was_not(tmp_path: Path) -> None:
    seeds = 200
    command = partial(start, tmp_path / "out", seeds)
    assert kill_some(command, tmp_path / "out", 50, random.Random(50)).total() >= 45
    check_resumes(tmp_path / "out", seeds, tmp_path / "whole")


def test_two_sweeps_in_one_folder_run_no_cell_twice(tmp_path: Path) -> None:
    book = tmp_path / "book"
    train = partial(toy.noted, book=book)
    spec = toy.spec("a", "b", seeds=10, epochs=5)
    other = start_noted(tmp_path / "out", book)
    results = run_sweep(spec, tmp_path / "out", jobs=1, train=train)
    assert other.wait() == 0
    assert results.missing == 0
    starts = book.read_text().splitlines()
    assert sorted(starts) == sorted(f"{cell.arm} {cell.seed}" for cell in spec.cells())


def start_noted(folder: Path, book: Path) -> "subprocess.Popen[bytes]":
    """Starts another command in the same folder, which is at work when this returns."""
    code = (
        "import sys; from functools import partial; from pathlib import Path\n"
        "from lpkernels.experiments.sweeps.sweep import run_sweep\n"
        "from tests.experiments.sweeps import toy\n"
        "train = partial(toy.noted, book=Path(sys.argv[2]))\n"
        "spec = toy.spec('a', 'b', seeds=10, epochs=5)\n"
        "run_sweep(spec, sys.argv[1], jobs=1, train=train)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder), str(book)])
    while not book.is_file():
        time.sleep(0.01)
    return process


@pytest.mark.slow
def test_a_thousand_cells_of_nothing_take_a_minute_at_most(tmp_path: Path) -> None:
    begin = time.monotonic()
    spec = toy.spec("a", "b", seeds=500, epochs=1)
    assert run_sweep(spec, tmp_path, jobs=2, train=toy.train).missing == 0
    assert time.monotonic() - begin < 60

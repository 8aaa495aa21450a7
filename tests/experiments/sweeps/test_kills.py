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

EPOCHS = 8


def start(folder: Path, seeds: int, *options: object, jobs: int = 2) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.experiments.sweeps.toy_command", str(folder)]
    values = [seeds, EPOCHS, jobs, *options]
    return subprocess.Popen([*command, *map(str, values)], stderr=subprocess.DEVNULL)


# A kill with signal 9 concerns a process: after most kills a command and its two workers import
# torch anew.
@pytest.mark.parametrize(
    ("kills", "seeds"), [(3, 16), pytest.param(50, 200, marks=pytest.mark.slow)]
)
def test_a_sweep_killed_at_any_moments_ends_as_one_that_was_not(
    tmp_path: Path, kills: int, seeds: int
) -> None:
    folder, whole = tmp_path / "out", tmp_path / "whole"
    killed = kill_some(partial(start, folder, seeds), folder, kills, random.Random(kills))
    assert killed.total() >= kills * 9 // 10
    # The same command, run once more, ends with the results of an undisturbed sweep.
    assert start(folder, seeds, "again").wait() == 0
    results = read_results(folder)
    assert results.missing == 0 and {r.status for r in results.results} == {"finished"}
    toy.run(toy.spec("a", "b", seeds=seeds, epochs=EPOCHS), whole)
    assert toy.figures(folder) == toy.figures(whole)
    assert Places(folder).tries() == {}


def test_two_sweeps_in_one_folder_run_no_cell_twice(tmp_path: Path) -> None:
    book, out, seeds = tmp_path / "book", tmp_path / "out", 8
    spec = toy.spec("a", "b", seeds=seeds, epochs=EPOCHS)
    other = start(out, seeds, book, jobs=1)
    while not book.is_file() and other.poll() is None:
        time.sleep(0.01)
    results = run_sweep(spec, out, jobs=1, train=partial(toy.noted, book=book))
    assert other.wait() == 0
    assert results.missing == 0
    starts = book.read_text().splitlines()
    assert sorted(starts) == sorted(f"{cell.arm} {cell.seed}" for cell in spec.cells())


@pytest.mark.slow
def test_a_thousand_cells_of_nothing_take_a_minute_at_most(tmp_path: Path) -> None:
    begin = time.monotonic()
    spec = toy.spec("a", "b", seeds=500, epochs=1)
    assert run_sweep(spec, tmp_path, jobs=2, train=toy.train).missing == 0
    assert time.monotonic() - begin < 60

"""Sweeps that are killed at any moment, two in one folder, and one in a folder full to the brim."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from lpkernels.experiments.sweeps.places import Places
from lpkernels.experiments.sweeps.reading import read_results
from lpkernels.experiments.sweeps.sweep import run_sweep
from lpkernels.experiments.sweeps.worker import is_full
from lpkernels.experiments.training.checkpoints import read_checkpoint, write_checkpoint
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
    ("kills", "seeds"), [(2, 12), pytest.param(50, 200, marks=pytest.mark.slow)]
)
def test_a_killed_sweep_ends_as_one_that_was_not(tmp_path: Path, kills: int, seeds: int) -> None:
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


_ROOM = "600k"
# A checkpoint has 100 kB, and there is a copy of it while it is replaced. Two workers and the
# finished cells leave no room for a third of the cells' records.
_BALLAST = 100_000


def _mount(*arguments: object) -> str:
    """Runs `mount`; returns why it was not possible, or an empty string if it was."""
    try:
        command = ["mount", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True).stderr.strip()
    except OSError as error:
        return str(error)


@pytest.fixture
def brim(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "brim"
    folder.mkdir()
    reason = _mount("-t", "tmpfs", "-o", f"size={_ROOM}", "tmpfs", folder)
    if reason:
        pytest.skip(f"no small file system can be mounted here: {reason}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_folder_loses_nothing(brim: Path, tmp_path: Path) -> None:
    spec = toy.spec("a", "b", seeds=3)
    toy.run(spec, tmp_path / "whole")
    room = brim / "sweep"
    run_sweep(toy.spec("a", "b", seeds=1), room, jobs=1, train=toy.slow(0, _BALLAST))
    filler = brim / "filler"
    with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    for jobs in (2, 1):
        with pytest.raises(OSError, match=r"[Nn]o (room|space) left"):
            run_sweep(spec, room, jobs=jobs, train=toy.slow(0, _BALLAST))
    before = toy.figures(room)
    assert len(before) == 2
    filler.unlink()
    results = run_sweep(spec, room, jobs=1, train=toy.slow(0, _BALLAST))
    assert {result.status for result in results.results} == {"finished"} and results.missing == 0
    assert toy.figures(room) == toy.figures(tmp_path / "whole")


def test_a_checkpoint_that_does_not_fit_is_a_full_folder(brim: Path) -> None:
    with pytest.raises(OSError, match=r"no room left in .*: .*No space left.* 0 of 6 cells"):
        run_sweep(toy.spec(seeds=3), brim / "sweep", jobs=1, train=toy.slow(0, 700_000))


def test_torchs_own_error_is_one_too(brim: Path) -> None:
    path = brim / "checkpoint.pt"
    write_checkpoint(path, {"step": 3})
    with pytest.raises(OSError, match="No space left on device") as full:
        write_checkpoint(path, {"step": torch.zeros(1_000_000)})
    assert is_full(full.value)
    assert read_checkpoint(path).state == {"step": 3} and len(list(brim.iterdir())) == 1

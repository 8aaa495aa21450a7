"""Sweeps that are killed at any moment, and one in a folder full to the brim."""

import random
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from lpkernels.experiments.sweeps.results import read_results
from lpkernels.experiments.sweeps.sweep import run_sweep
from lpkernels.experiments.sweeps.training import is_full
from lpkernels.experiments.training.checkpoints import read_checkpoint, write_checkpoint
from tests.experiments.killing import forked, kill_sweep
from tests.experiments.sweeps import toy

KILLS = 8


def test_a_killed_sweep_ends_as_one_that_was_not(tmp_path: Path) -> None:
    spec, out = toy.spec("a", "b", seeds=12, epochs=8), tmp_path / "out"
    start = partial(forked, partial(toy.run, train=toy.slow(0.01)), spec, out)
    assert kill_sweep(start, out, KILLS, random.Random(1)) == KILLS
    # The same command, run once more, ends with the results of an undisturbed sweep.
    results = toy.run(spec, out)
    assert results.missing == 0 and {r.status for r in results.runs} == {"finished"}
    toy.run(spec, tmp_path / "whole")
    assert toy.figures(out) == toy.figures(tmp_path / "whole")
    text = "".join(path.read_text() for path in out.rglob("records.jsonl"))
    assert '"type": "resume"' in text
    assert not any((out / "work").iterdir())


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
    assert {result.status for result in results.runs} == {"finished"} and results.missing == 0
    assert toy.figures(room) == toy.figures(tmp_path / "whole")
    assert read_results(room) == results


def test_a_checkpoint_that_does_not_fit_is_a_full_folder(brim: Path) -> None:
    with pytest.raises(OSError, match=r"no room left in .*: .*No space left.* 0 of 6 cells"):
        run_sweep(toy.spec(seeds=3), brim / "sweep", jobs=1, train=toy.slow(0, 700_000))
    path = brim / "checkpoint.pt"
    write_checkpoint(path, {"step": 3})
    with pytest.raises(OSError, match="No space left on device") as full:
        write_checkpoint(path, {"step": torch.zeros(1_000_000)})
    assert is_full(full.value)
    assert read_checkpoint(path).state == {"step": 3}

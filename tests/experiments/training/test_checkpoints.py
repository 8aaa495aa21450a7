"""Checkpoints: whole at any moment, and data alone."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lpkernels.experiments.training import checkpoints
from lpkernels.experiments.training.checkpoints import (
    has_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from lpkernels.experiments.training.trainer import Trainer
from tests.experiments.killing import forked, random_moment
from tests.experiments.tiny import tiny_workload
from tests.support.trainings import SMALL, assert_same_end, tiny_trainer


def test_what_is_written_is_read_and_the_one_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with pytest.raises(FileNotFoundError, match=r"expected a checkpoint at .*a\.pt"):
        read_checkpoint(path)
    write_checkpoint(path, {"step": 3, "weight": torch.arange(4.0)})
    found = read_checkpoint(path).state
    assert found["step"] == 3 and torch.equal(found["weight"], torch.arange(4.0))
    assert torch.load(path, weights_only=True)["step"] == 3, "torch reads it by itself"
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt"]
    for step in range(2):
        write_checkpoint(path, {"step": step})
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.pt", checkpoints.PREVIOUS]
    assert read_checkpoint(path) == ({"step": 1}, path)
    path.unlink()
    assert read_checkpoint(path) == ({"step": 0}, checkpoints.previous(path))


def damages(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """Files that are not `whole`: every bit of every 29th byte, holes, ends and other files."""
    for at in range(0, len(whole), 29):
        for bit in range(8):
            flipped = bytes([whole[at] ^ 1 << bit])
            yield f"bit {bit} of byte {at}", whole[:at] + flipped + whole[at + 1 :]
    for at in range(0, len(whole), 512):
        end = min(at + 512, len(whole))
        yield f"a hole at {at}", whole[:at] + bytes(end - at) + whole[end:]
    for size in (0, 1, 64, len(whole) // 2, len(whole) - 1):
        yield f"{size} bytes", whole[:size]
    yield "a byte more", whole + b"0"
    yield "text", b"not a checkpoint" * 100


def test_no_damage_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_checkpoint(path, {"step": 3, "weight": torch.arange(300.0)})
    whole = path.read_bytes()
    for name, damaged in damages(whole):
        if damaged == whole:
            continue
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.pt is damaged, cut short or something else"):
            pytest.fail(f"{name}: {read_checkpoint(path)}")
    write_checkpoint(path, {"step": 4})
    path.write_bytes(whole[:-1])
    checkpoints.previous(path).write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"but a\.pt and checkpoint\.previous\.pt are damaged"):
        read_checkpoint(path)


def test_half_a_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pt"
    write_checkpoint(path, {"step": 3})

    def stop(number: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(path, {"step": 4})
    assert read_checkpoint(path).state == {"step": 3}
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt"]


class Running:
    """Runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return print, ("a checkpoint ran code",)


def test_a_checkpoint_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pt"
    write_checkpoint(path, {"step": Running()})
    with pytest.raises(Exception, match="Weights only load failed"):
        read_checkpoint(path)
    assert capsys.readouterr().out == ""


# The bits of this run depend on all that a checkpoint holds: draws, masters and a loss scale.
LONG = SMALL.replace(
    epochs=12, master="e8m10:stochastic", dynamic_scale=True, scale_interval=5, augment=True
)


def train(folder: Path) -> None:
    workload = tiny_workload(LONG.workload)
    begun = has_checkpoint(folder)
    trainer = Trainer.resume(folder, workload=workload) if begun else tiny_trainer(LONG, folder)
    trainer.fit()


def test_a_run_killed_at_any_moment_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, killed, chance = tmp_path / "whole", tmp_path / "killed", random.Random(1)
    train(whole)
    for _ in range(3):
        process = forked(train, killed)
        random_moment(killed, process, chance)
        process.kill()
        process.join()
    train(killed)
    assert_same_end(killed, whole)

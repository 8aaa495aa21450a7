"""A rank of a run under torchrun is killed with -9, and the resumed run ends with the same bits.

The runs train on masters in a narrow format under a dynamic loss scale: two and four processes that
hold all weights (DDP), and two that hold shards (FSDP2).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lpkernels.experiments import records
from lpkernels.experiments.processes.leases import process_start
from lpkernels.experiments.training.checkpoints import CHECKPOINT, read_checkpoint
from tests.distributed.launch import environment, torchrun
from tests.techniques.loss_scaling.optimizers import assert_same

#: How the weights lie, how many processes train, and how often one of them is killed.
RUNS = (("ddp", 2, 3), ("ddp", 4, 3), ("fsdp", 2, 3))
EPOCHS = 10
# The first scale overflows in e5m2, and it doubles a few times afterwards.
TRAIN = f"""
    --data digits --model cnn2 --width 4 --batch 100 --epochs {EPOCHS} --threads 1
    --recipe fp8_wang2018 --masters e6m9:stochastic --working fp8_e4m3
    --opt-state momentum_buffer=e5m7:stochastic --opt-grad e5m2
    --dynamic-scale --scale-start 1073741824 --scale-interval 10
""".split()
# torchrun looks after its processes ten times a second and gives survivors 30 s to end.
PATIENCE_S = 60.0


def run(seed: int = 0) -> dict[str, Any]:
    """Figures of each run; AssertionError where something was lost or is different."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        found = [
            _killed_run(Path(folder) / f"{way}-{count}", way, count, kills, chance)
            for way, count, kills in RUNS
        ]
    return {"kills": sum(row["kills"] for row in found), "runs": found}


def _killed_run(
    folder: Path, way: str, count: int, kills: int, chance: random.Random
) -> dict[str, Any]:
    """A run whose ranks are killed, against one that is left alone."""
    whole, killed = folder / "whole", folder / "killed"
    flags = ["--fsdp"] if way == "fsdp" else []
    with _started(count, "--out", whole, *flags, *TRAIN) as alone:
        assert alone.wait() == 0, f"{way} {count}: the run that is left alone failed"
    ends = []
    for number in range(kills):
        how = ["--resume"] if number else TRAIN
        epoch = 1 + number * (EPOCHS - 2) // kills
        with _started(count, "--out", killed, *flags, *how) as launcher:
            ends.append(_kill(launcher, killed, epoch, count, chance))
    with _started(count, "--out", killed, *flags, "--resume") as last:
        assert last.wait() == 0, f"{way} {count}: the resumed run failed"
    steps = _compare(killed, whole)
    return {
        "way": way, "processes": count, "kills": kills, "victims": [rank for rank, _ in ends],
        "slowest_end_s": round(max(seconds for _, seconds in ends), 1), **steps,
    }  # fmt: skip


@contextmanager
def _started(count: int, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """`lpkernels train` under torchrun, which is told to end at the end of the block."""
    command = torchrun("-m", "lpkernels", "train", *arguments, processes=count)
    quiet = subprocess.DEVNULL
    launcher = subprocess.Popen(command, env=environment(), stdout=quiet, stderr=quiet)
    try:
        yield launcher
    finally:
        launcher.terminate()
        launcher.wait()


def _kill(
    launcher: subprocess.Popen[bytes], folder: Path, epoch: int, count: int, chance: random.Random
) -> tuple[int, float]:
    """Kills one rank while the epoch after the number `epoch` is under way; returns the rank, and
    the seconds until all processes had ended."""
    while _epochs(folder) < epoch:
        assert launcher.poll() is None, f"{folder}: the run ended before epoch {epoch}"
        time.sleep(0.01)
    time.sleep(chance.uniform(0, 0.3))
    ranks = _ranks(launcher.pid)
    assert sorted(ranks) == list(range(count)), f"{folder}: found the ranks {sorted(ranks)}"
    victim = chance.randrange(count)
    os.kill(ranks[victim], signal.SIGKILL)
    start = time.monotonic()
    try:
        status = launcher.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{folder}: rank {victim} was killed, the others live on") from None
    alive = [rank for rank, pid in ranks.items() if process_start(pid)]
    assert not alive, f"{folder}: rank {victim} was killed, ranks {alive} outlived the launcher"
    assert status != 0, f"{folder}: rank {victim} was killed, and the command ended as a success"
    assert not records.read_run(folder).finished, f"{folder}: the kill came too late"
    return victim, time.monotonic() - start


def _epochs(folder: Path) -> int:
    path = folder / records.RECORDS
    return len(records.read_run(folder).epochs) if path.is_file() and path.stat().st_size else 0


def _ranks(launcher: int) -> dict[int, int]:
    """The process of each rank."""
    found = {}
    for pid in map(int, Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()):
        for setting in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if setting.startswith(b"RANK="):
                found[int(setting.removeprefix(b"RANK="))] = pid
    return found


def _compare(killed: Path, whole: Path) -> dict[str, Any]:
    """AssertionError unless two runs ended alike; returns what the scaler and the masters did."""
    states = [read_checkpoint(folder / CHECKPOINT).state for folder in (killed, whole)]
    lines = [state.pop("records") for state in states]
    resumed, expected = states
    assert_same(resumed, expected, "checkpoint")
    one, two = (_figures(folder) for folder in (killed, whole))
    assert one == two, f"{killed}: the records differ from those of a run that was left alone"
    assert len(one) == EPOCHS and len(lines[1]) == EPOCHS + 1
    skipped = sum(epoch["skipped_steps"] for epoch in one)
    scale = resumed["parts"]["loss_scale"]["scaler"]["scale"]
    assert skipped, f"{whole}: the loss scale never overflowed, so that nothing was shown"
    tensors = [
        value
        for state in resumed["optimizer"]["state"].values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return {"skipped_steps": skipped, "scale": scale, "state_tensors": len(tensors)}


def _figures(folder: Path) -> list[dict[str, Any]]:
    """The epochs of a run without the seconds, which no two runs share."""
    epochs = records.read_run(folder).epochs
    return [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in epochs]

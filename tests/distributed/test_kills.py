"""A rank of a run under torchrun is killed with -9, and the resumed run ends with the same bits."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from lpkernels.experiments import records
from lpkernels.experiments.training.checkpoints import CHECKPOINT, has_checkpoint, read_checkpoint
from tests.distributed.launch import epochs, finished, ranks_of, started, torchrun
from tests.experiments.killing import is_alive
from tests.support.trainings import assert_same_end, figures

pytestmark = pytest.mark.slow

KILLS, EPOCHS = 2, 10
# Masters in a narrow format. The first loss scale overflows in e5m2, and it doubles a few times
# afterwards.
TRAIN = f"""
    --data digits --model cnn2 --width 4 --batch 100 --epochs {EPOCHS} --threads 1
    --recipe fp8_wang2018 --masters e6m9:stochastic --working fp8_e4m3
    --opt-state momentum_buffer=e5m7:stochastic --opt-grad e5m2
    --dynamic-scale --scale-start 1073741824 --scale-interval 10
""".split()
# torchrun looks after its processes ten times a second and gives survivors 30 s to end.
PATIENCE_S = 60.0


def train(folder: Path, *options: str) -> list[str]:
    return torchrun("-m", "lpkernels", "train", "--out", folder, *options)


def kill_one(command: list[str], folder: Path, epoch: int, chance: random.Random) -> None:
    """Kills a rank while the epoch after the number `epoch` is under way; the others end."""
    with started(command) as launcher:
        # An epoch's record is written just before its checkpoint, without which no run goes on.
        while epochs(folder) < epoch or not has_checkpoint(folder):
            assert launcher.poll() is None, f"the run ended before epoch {epoch}"
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        ranks = ranks_of(launcher.pid)
        os.kill(chance.choice(ranks), signal.SIGKILL)
        launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode != 0 and not any(map(is_alive, ranks))
    assert not records.read_run(folder).finished, "the kill came too late"


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_run_that_loses_a_rank_goes_on_to_the_same_bits(way: str, tmp_path: Path) -> None:
    whole, killed, chance = tmp_path / "whole", tmp_path / "killed", random.Random(way)
    flags = ["--fsdp"] if way == "fsdp" else []
    finished(train(whole, *flags, *TRAIN))
    for number in range(KILLS):
        how = ["--resume"] if number else TRAIN
        epoch = 1 + number * (EPOCHS - 2) // KILLS
        kill_one(train(killed, *flags, *how), killed, epoch, chance)
    finished(train(killed, *flags, "--resume"))
    assert_same_end(killed, whole)
    assert sum(epoch["skipped_steps"] for epoch in figures(whole)), "the scale never overflowed"
    state = read_checkpoint(killed / CHECKPOINT).state
    assert state["optimizer"]["state"] and state["callbacks"]["loss_scale"]

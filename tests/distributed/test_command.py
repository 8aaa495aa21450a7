"""`lpkernels train` under torchrun: the page's commands, which are told to stop or lose a rank."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from lpkernels.experiments import records
from lpkernels.experiments.training.trainer import Trainer
from tests.distributed.launch import ROOT, epochs, ranks_of, started
from tests.experiments.killing import is_alive
from tests.support import commands

# The digits would cost every process an import of scikit-learn.
DATA = "--data tests.experiments.tiny:tiny_workload"
TINY = f"{DATA} --model cnn1 --width 1 --batch 10 --threads 1 --epochs 100000"
LINE = re.compile(r"^    (torchrun --standalone .*? train .*?)(?:\s+#.*)?$", re.MULTILINE)


@contextmanager
def training(command: str, folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """A command of the page, which has trained another epoch of the run in `folder`/results/two."""
    out = folder / "results" / "two"
    before = epochs(out)
    words = [sys.executable, "-m", "torch.distributed.run", *command.split()[1:]]
    with started(words, folder) as process:
        deadline = time.monotonic() + 240
        while epochs(out) == before:
            assert time.monotonic() < deadline and process.poll() is None, f"no epoch in {out}"
            time.sleep(0.05)
        yield process


def test_ctrl_c_saves_and_survivors_of_a_dead_process_end_without_a_save(tmp_path: Path) -> None:
    # Ctrl-C and a death concern processes: a launcher and two of them start, twice. The launcher
    # kills after 30 seconds a process that its SIGTERM does not end.
    begin, go_on = LINE.findall((ROOT / "docs" / "experiments.md").read_text())
    out = tmp_path / "results" / "two"
    with training(f"{begin} {TINY}", tmp_path) as process:
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=120)
    command = "torchrun --standalone --nproc-per-node 2 -m lpkernels train --resume"
    assert printed.count(f"resume with: {command} --out results/two\n") == 1, printed
    trainer = Trainer.resume(out)
    assert trainer.position.epoch == len(records.read_run(out).epochs) >= 1

    with training(f"{go_on} {DATA}", tmp_path) as process:
        first, second = ranks_of(process.pid)
        os.kill(second, signal.SIGKILL)
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 1, printed
    # The survivor ended, by its broken connection or by SIGTERM, and did not save and say how to
    # resume.
    assert "forcefully exiting" not in printed and "resume with" not in printed
    assert not is_alive(first)


def test_torchrun_takes_no_option_of_train_for_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    taken = []
    for parameter in commands.command("train").params:
        for name in parameter.opts:
            own = ["train", name, *([] if parameter.is_flag else ["1"])]
            rest = None
            with suppress(SystemExit):
                command = ["--nproc-per-node", "2", "-m", "lpkernels", *own]
                rest = get_args_parser().parse_args(command).training_script_args
            taken += [name] * (rest != own)
    # It has another name too: --masters.
    assert taken == ["--master"]
    assert "ambiguous option: --master" in capsys.readouterr().err

"""`lpkernels train` under torchrun: the commands of the page on training, and ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from lpkernels.cli import app
from lpkernels.experiments import records
from lpkernels.experiments.processes.leases import process_start
from lpkernels.experiments.training.trainer import Trainer
from tests.distributed.launch import ROOT, environment, torchrun

TINY = ["--model", "cnn1", "--width", "1", "--batch", "500", "--threads", "1"]
LINE = re.compile(r"^    (torchrun --standalone .*? train .*?)(?:\s+#.*)?$", re.MULTILINE)


def test_commands_of_the_page_run(tmp_path: Path) -> None:
    # This takes 20 seconds, as each of two commands starts a launcher and two processes.
    lines = LINE.findall((ROOT / "docs" / "training.md").read_text())
    assert len(lines) == 2
    for line in lines:
        _, *arguments = line.split()
        if "--resume" not in arguments:
            arguments += [*TINY, "--epochs", "1"]
        command = [sys.executable, "-m", "torch.distributed.run", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
        # Only one of the processes speaks.
        assert done.stdout.count("records in results/") == 1
    (folder,) = (tmp_path / "results").iterdir()
    assert records.read_run(folder).finished


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    # This takes 10 seconds, in which a launcher and two processes start, and are told to stop.
    out = tmp_path / "run"
    arguments = ["train", "--fsdp", "--out", out, "--epochs", "100000", *TINY]
    process = subprocess.Popen(
        torchrun("-m", "lpkernels", *arguments),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        _wait_for_an_epoch(out, process)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    command = "torchrun --standalone --nproc-per-node 2 -m lpkernels train --resume"
    assert printed.count(f"resume with: {command} --out {out} --fsdp") == 1, printed
    trainer = Trainer.resume(out)
    assert trainer.position.epoch == len(records.read_run(out).epochs) >= 1


def test_the_survivors_of_a_dead_process_end_without_a_save(tmp_path: Path) -> None:
    # This takes 10 seconds, in which a launcher and two processes start. The launcher kills after
    # 30 seconds a process that its SIGTERM does not end.
    out = tmp_path / "run"
    process = subprocess.Popen(
        torchrun("-m", "lpkernels", "train", "--out", out, "--epochs", "100000", *TINY),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        _wait_for_an_epoch(out, process)
        first, second = _ranks(process.pid)
        os.kill(second, signal.SIGKILL)
        printed, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1, printed
    # The survivor ended, by its broken connection or by SIGTERM, and did not save and say how to
    # resume.
    assert "forcefully exiting" not in printed and "resume with" not in printed
    assert not process_start(first)


def _ranks(launcher: int) -> list[int]:
    """The processes of a launcher by their ranks."""
    found = {}
    for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        values = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        found.update({value: int(pid) for value in values if value.startswith(b"RANK=")})
    return [found[rank] for rank in sorted(found)]


def _wait_for_an_epoch(folder: Path, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (folder / records.RECORDS).is_file() and records.read_run(folder).epochs:
            return
        time.sleep(0.05)
    pytest.fail(f"no epoch in {folder}")


def test_torchrun_takes_no_option_of_train_for_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    from torch.distributed.run import get_args_parser

    taken = []
    for parameter in typer.main.get_command(app).commands["train"].params:
        for name in parameter.opts:
            value = [] if parameter.is_flag else ["1"]
            command = ["--nproc-per-node", "2", "-m", "lpkernels", "train", name, *value]
            try:
                rest = get_args_parser().parse_args(command).training_script_args
            except SystemExit:
                rest = []
            if rest != ["train", name, *value]:
                taken.append(name)
    # These have another name too: --masters, --log-to.
    assert taken == ["--master", "--log"]
    assert "ambiguous option: --master" in capsys.readouterr().err

"""`lpkernels train`: its folder, errors of the system, code of others, a page's command."""

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from lpkernels.experiments.records import read_run
from lpkernels.experiments.training import checkpoints
from lpkernels.experiments.training.trainer import Trainer
from tests.experiments.killing import owned_by_another_thread
from tests.support.commands import call, done, sentence, wide  # noqa: F401 (a fixture)

TINY = ("--data", "iris", "--width", 4, "--epochs", 1, "--batch", 60)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    done("train", "--out", folder, *TINY)
    assert {path.name for path in folder.iterdir()} == {"records.jsonl", "checkpoint.pt"}
    return folder


def test_a_run_s_folder_has_one_process(tmp_path: Path, trained: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    for folder, options in ((begun, TINY), (trained, ("--resume",))):
        with owned_by_another_thread(folder):
            before = sorted(folder.iterdir())
            said = sentence(call("train", "--out", folder, *options), 1)
            assert sorted(folder.iterdir()) == before
        assert f"{folder}: process {os.getpid()} on " in said and "is at work there" in said


def test_a_run_that_cannot_begin_leaves_no_folder_nor_one_in_a_files_place(tmp_path: Path) -> None:
    assert call("train", "--out", tmp_path / "a" / "b", "--data", "mnist").exit_code == 2
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "file"
    file.touch()
    said = sentence(call("train", "--out", file, *TINY), 2)
    assert "is a file" in said
    said = sentence(call("train", "--out", file / "run", *TINY), 1)
    assert "Not a directory; choose a folder that is not below a file" in said


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "make room"), (errno.EROFS, "choose a folder that can be written")],
)
def test_what_the_system_refuses_is_one_sentence(tmp_path, monkeypatch, number, advice):
    def refuse(path: Path, state: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(checkpoints, "write_checkpoint", refuse)
    said = sentence(call("train", "--out", tmp_path, *TINY), 1)
    assert f"checkpoint.pt: {os.strerror(number)}; {advice}; what was saved goes" in said
    assert f"lpkernels train --resume --out {tmp_path}" in said


def test_a_foreign_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"something else" * 100)
    said = sentence(call("train", "--resume", "--out", tmp_path), 2)
    assert "but checkpoint.pt is damaged, cut short or something else; start the run again" in said
    assert "weights_only" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_sigterm_stops_as_ctrl_c_does(number: int, tmp_path: Path, monkeypatch: Any) -> None:
    test, out = Trainer.evaluate, tmp_path / str(number)

    def test_and_signal(trainer: Trainer) -> dict[str, float]:
        signal.raise_signal(number)
        return test(trainer)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", test_and_signal)
        said = sentence(call("train", "--out", out, *TINY, "--epochs", 2), 130)
    assert f"resume with: lpkernels train --resume --out {out}" in said
    assert signal.getsignal(number) is before
    done("train", "--resume", "--out", out)
    assert read_run(out).finished


CODE = """
from pathlib import Path
from tests.experiments.tiny import tiny_workload
from lpkernels.experiments.workloads.config import WorkloadConfig
Path(__file__).with_name("imported").touch()
def make():
    return tiny_workload(WorkloadConfig(model="cnn2", width=2))
"""


def test_a_folder_alone_chooses_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    out, own = tmp_path / "run", ("--data", "theirs:make")
    done("train", "--out", out, *own, "--epochs", 1, "--batch", 8)
    (tmp_path / "imported").unlink()
    monkeypatch.delitem(sys.modules, "theirs")
    said = sentence(call("train", "--resume", "--out", out), 2)
    assert "this run trains theirs:make, code that the folder alone must not choose" in said
    said = sentence(call("train", "--resume", "--out", out, "--data", "others:make"), 2)
    assert "the run was started with 'theirs:make', got 'others:make'" in said
    assert not (tmp_path / "imported").exists()
    done("train", "--resume", "--out", out, *own)


def test_brackets_and_escape_sequences_of_a_name_are_text(tmp_path: Path) -> None:
    done("train", "--out", tmp_path, "--name", "[/] [red]\x1b[31m:smile:", *TINY)
    said = done("report", tmp_path, "--plot", tmp_path / "a.png")
    assert "[/] [red]\N{REPLACEMENT CHARACTER}[31m:smile:" in said
    assert "\x1b" not in said

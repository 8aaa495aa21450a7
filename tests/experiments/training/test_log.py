"""The log of a run: what TensorBoard reads, after a resume too, and what is said without it."""

import sys
from pathlib import Path

import pytest

from lpkernels.experiments.records import header, read_run, write_records
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from tests.experiments.tiny import tiny_workload
from tests.loops import each
from tests.support.trainings import SMALL, stop_after, tiny_trainer


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reading.EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.slow
def test_the_log_has_every_figure_of_the_records(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = tiny_trainer(SMALL, tmp_path / "run", log=f"tensorboard:{tmp_path / 'log'}").fit()
    found = scalars(tmp_path / "log")
    assert set(found) == set(run.epochs[0]) - {"type", "epoch"}
    for name, points in found.items():
        assert points == [
            (number, pytest.approx(value)) for number, value in enumerate(run.curve(name), start=1)
        ]


@pytest.mark.slow
def test_a_resumed_run_has_each_epoch_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    trainer = tiny_trainer(SMALL, tmp_path / "run", log=f"tensorboard:{tmp_path / 'log'}")
    stop_after(trainer, 7)
    workload = tiny_workload(trainer.config.workload)
    Trainer.resume(tmp_path / "run", workload=workload).fit()
    epochs = [step for step, _ in scalars(tmp_path / "log")["test_loss"]]
    assert epochs == [1, 2]


@each("log", ["wandb:a", "tensorboard", "tensorboard:"])
def test_another_log_is_refused(log: str) -> None:
    with pytest.raises(ValueError, match="log: expected tensorboard:DIR, the folder of a log, got"):
        RunConfig.of(log=log)


@pytest.fixture
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)


def test_without_tensorboard_the_error_says_what_to_install_and_records_are_read(
    tmp_path: Path, no_tensorboard: None
) -> None:
    with pytest.raises(ModuleNotFoundError, match=r'needs tensorboard: pip install "lpkernels\[fr'):
        tiny_trainer(SMALL, tmp_path / "run", log="tensorboard:log")
    assert not (tmp_path / "run").exists()
    write_records(tmp_path / "records.jsonl", [header(SMALL.replace(log="tensorboard:a"), "fp32")])
    assert read_run(tmp_path).config.flat()["log"] == "tensorboard:a"


def test_the_command_ends_with_one_sentence_without_tensorboard(
    tmp_path: Path, no_tensorboard: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lpkernels import cli

    options = ["train", "--data", "mnist1d", "--log", "tensorboard:a", "--out", str(tmp_path / "a")]
    monkeypatch.setattr(sys, "argv", ["lpkernels", *options])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 'lpkernels: log needs tensorboard: pip install "lpkernels[frameworks]"'
    assert not (tmp_path / "a").exists()

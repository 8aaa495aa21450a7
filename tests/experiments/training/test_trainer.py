"""The trainer: same bits on every run, after a resume and after ctrl-C; records and checkpoints."""

import json
import shutil
import signal
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import lpkernels as lp
from lpkernels.experiments import records
from lpkernels.experiments.processes.torchrun import Processes
from lpkernels.experiments.training.checkpoints import CHECKPOINT
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted, InterruptRequest
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads.streams import stream_seed
from tests.experiments.tiny import tiny_workload
from tests.support.trainings import assert_same_end, stop_after

# The weights are rounded stochastically, so that the random state matters. An epoch has four steps,
# and the last one is short.
CONFIG = RunConfig.of(
    name="tiny", model="cnn2", width=2, recipe="fp8_wang2018", edge="e6m9", epochs=2, batch=8,
    weight_update="e6m9:stochastic", loss_scale=1024.0, augment=True, threads=1,
)  # fmt: skip
STEPS = 4


def trainer_in(folder: Path, config: RunConfig = CONFIG) -> Trainer:
    return Trainer(config, folder, workload=tiny_workload(config.workload))


def resume(folder: Path) -> Trainer:
    return Trainer.resume(folder, workload=tiny_workload(CONFIG.workload))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = trainer_in(tmp_path_factory.mktemp("run"))
    trainer.fit()
    return trainer


def test_a_rank_draws_from_a_stream_of_its_own(tmp_path: Path) -> None:
    trainer, x = trainer_in(tmp_path), torch.randn(64)

    def drawn(around: AbstractContextManager[None]) -> torch.Tensor:
        torch.manual_seed(5)
        with around:
            return lp.quantize(x, "e5m2", rounding="stochastic")

    assert torch.equal(drawn(trainer._draws()), drawn(nullcontext()))
    trainer.processes = Processes(rank=1, count=2)
    trainer.position.epoch, trainer.position.step = 3, 4
    seed = stream_seed(CONFIG.seed, "rank", 1, 3, 4)
    want = drawn(lp.functional.seed_from(torch.tensor(seed)))
    assert torch.equal(drawn(trainer._draws()), want)


def interrupt_in_test(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    """Makes the test after an epoch, from 1, begin with ctrl-C."""
    evaluate = trainer.evaluate

    def interrupted() -> dict[str, float]:
        if trainer.position.epoch + 1 == epoch:
            signal.raise_signal(signal.SIGINT)
        return evaluate()

    monkeypatch.setattr(trainer, "evaluate", interrupted)


def test_fit_gives_the_same_bits_twice_and_leaves_the_callers_state(uninterrupted, tmp_path):
    torch.manual_seed(77)
    before = torch.get_rng_state(), torch.get_num_threads()
    console = Console(record=True, width=100, force_terminal=True)
    trainer = trainer_in(tmp_path / "again")
    trainer.fit(console=console)
    assert "tiny" in console.export_text()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]
    assert_same_end(trainer.folder, uninterrupted.folder)


@pytest.mark.parametrize(
    "step, place",
    [
        (1, "epoch 1 of 2 after step 1"), (STEPS, "epoch 1 of 2 after step 4"),
        (None, "epoch 2 of 2 after step 0"),
        (STEPS + 2, "epoch 2 of 2 after step 2"),
    ],
)  # fmt: skip
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    uninterrupted: Trainer, tmp_path: Path, monkeypatch: Any, step: int | None, place: str
) -> None:
    """Ctrl-C comes after so many steps, or, where that is None, in the test of the first epoch."""
    stopped = trainer_in(tmp_path)
    if step is None:
        interrupt_in_test(stopped, monkeypatch, 1)
    handler = signal.getsignal(signal.SIGINT)
    stop_after(stopped, step or 0, match=rf"stopped in {place} of 4; saved to .*checkpoint\.pt")
    assert signal.getsignal(signal.SIGINT) is handler
    torch.manual_seed(123)
    resume(tmp_path).fit()
    assert_same_end(tmp_path, uninterrupted.folder)
    kinds = [record["type"] for record in records.read_records(tmp_path / records.RECORDS)]
    assert (kinds.count("resume"), kinds.count("epoch")) == (1, CONFIG.epochs)


def test_ctrl_c_in_the_last_test_stops_and_a_second_one_at_once(tmp_path, monkeypatch):
    trainer = trainer_in(tmp_path)
    interrupt_in_test(trainer, monkeypatch, CONFIG.epochs)
    with pytest.raises(Interrupted, match="stopped after the last epoch; saved to"):
        trainer.fit()
    assert records.read_run(tmp_path).finished
    with pytest.raises(KeyboardInterrupt), InterruptRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        signal.raise_signal(signal.SIGINT)


def test_a_finished_run_stays_as_it_is_unasked(uninterrupted: Trainer, tmp_path: Path) -> None:
    before = (uninterrupted.folder / records.RECORDS).read_bytes()
    assert resume(uninterrupted.folder).fit().finished
    assert (uninterrupted.folder / records.RECORDS).read_bytes() == before
    message = r"holds a run already; resume it \(option --resume\)"
    with pytest.raises(FileExistsError, match=message):
        trainer_in(uninterrupted.folder)
    with pytest.raises(FileNotFoundError, match="expected a checkpoint at"):
        Trainer.resume(tmp_path)


def test_resume_drops_epochs_the_checkpoint_does_not_hold(tmp_path: Path) -> None:
    stop_after(trainer_in(tmp_path), STEPS + 1)
    # The records look as if the process had been killed between the record of epoch 2 and its
    # checkpoint, and while it wrote another record.
    extra = dict(records.read_run(tmp_path).epochs[0], epoch=2)
    records.append_record(tmp_path / records.RECORDS, extra)
    with (tmp_path / records.RECORDS).open("a") as file:
        file.write('{"type": "epo')
    resume(tmp_path)
    assert [e["epoch"] for e in records.read_run(tmp_path).epochs] == [1]


def test_a_damaged_checkpoint_changes_no_bits(uninterrupted: Trainer, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted.folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / CHECKPOINT
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    resumed = resume(tmp_path)
    said = "checkpoint.pt was damaged or lost: going on from checkpoint.previous.pt, epoch 2, st"
    lines = records.read_records(tmp_path / records.RECORDS)
    assert [line["type"] for line in lines] == ["header", "epoch", "resume"]
    assert resumed.notices == lines[-1]["notices"] == [f"{said}ep 0"]
    resumed.fit()
    assert_same_end(tmp_path, uninterrupted.folder)
    assert resume(tmp_path).notices == []


@pytest.mark.parametrize(
    "name, spoil",
    [
        ("no file", lambda lines: None),
        ("no header", lambda lines: lines[1:]),
        ("an epoch less", lambda lines: [lines[0], lines[2]]),
        ("half a line", lambda lines: [lines[0], lines[1][:20], lines[2]]),
        ("another header", lambda lines: ["[]", *lines[1:]]),
    ],
)
def test_resume_writes_the_records_that_the_checkpoint_holds(uninterrupted, tmp_path, name, spoil):
    path = shutil.copytree(uninterrupted.folder, tmp_path / name) / records.RECORDS
    whole = path.read_text()
    spoiled = spoil(whole.splitlines())
    path.unlink() if spoiled is None else path.write_text("\n".join(spoiled) + "\n")
    resumed = resume(tmp_path / name)
    assert resumed.notices == []
    assert resumed.fit().finished and path.read_text() == whole


def test_records_have_a_header_and_epochs_and_weights_a_grid(uninterrupted: Trainer) -> None:
    lines = (uninterrupted.folder / records.RECORDS).read_text().splitlines()
    first, *epochs = [json.loads(line) for line in lines]
    fields = "type kind schema config accumulator metric environment processes"
    assert set(first) == set(fields.split())
    assert first["processes"] == {"count": 1, "sharded": False}
    assert set(first["environment"]) == {"versions", "device", "platform", "commit"}
    assert set(first["environment"]["versions"]) == {"lpkernels", "python", "torch", "numpy"}
    assert first["config"] == CONFIG.to_dict()
    assert [e["epoch"] for e in epochs] == [1, 2]
    figures = "train_loss train_accuracy test_loss test_accuracy lr updates skipped_steps seconds"
    for epoch in epochs:
        assert set(epoch) == {"type", "epoch", *figures.split()}
        assert 0 <= epoch["test_accuracy"] <= 1
        assert epoch["seconds"] > 0
    state = torch.load(uninterrupted.checkpoint, weights_only=True)
    assert RunConfig.from_dict(state["config"]) == CONFIG
    for parameter in uninterrupted.model.parameters():
        assert torch.equal(lp.quantize(parameter.detach(), "e6m9"), parameter)

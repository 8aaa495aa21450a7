"""A schedule of precisions in the trainer: bits of every step, tests, resume, refusals."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lpkernels.experiments import records
from lpkernels.experiments.training.callbacks import precision_schedule
from lpkernels.experiments.training.callbacks.precision_schedule import PrecisionScheduleConfig
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.techniques.cpt import bitops, bits_at
from tests.experiments.tiny import Rounded, made, scheduled_layers, trained_with
from tests.support.trainings import goes_on_alike
from tests.techniques.loss_scaling.optimizers import assert_same

# Four steps an epoch.
BASE = RunConfig.of(epochs=3, batch=10, threads=1, lr=0.05)
PLAN = [bits_at(step, 12, bits=(3, 8), cycles=2) for step in range(12)]


@pytest.fixture(autouse=True)
def as_made() -> Iterator[None]:
    with scheduled_layers():
        yield


def trainer_in(folder: Path, schedule: str, **values: Any) -> Trainer:
    return Trainer(BASE.replace(schedule=schedule, **values), folder, workload=made())


def layer_of(trainer: Trainer) -> Rounded:
    layer = trainer.model[0]
    assert isinstance(layer, Rounded)
    return layer


def test_every_step_has_the_bits_of_the_plan(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, "cpt:3-8/8,cycles=2")
    run = trainer.fit()
    assert trained_with(trainer) == PLAN
    (used,) = run.header["config"]["callbacks"].values()
    assert used == {"schedule": "cpt:3-8/8,cycles=2"}
    assert [epoch["bits"] for epoch in run.epochs] == PLAN[3::4]
    costs = [bitops(bits, 8) for bits in PLAN]
    means = [sum(costs[:n]) / n for n in (4, 8, 12)]
    assert [epoch["bitops"] for epoch in run.epochs] == pytest.approx(means, abs=1e-6)
    assert run.epochs[0]["grad_bits"] == 8


def test_tests_are_at_the_highest_and_the_last_epoch_has_two_more(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, "fall:8-3/8")
    run = trainer.fit()
    tested = [bits for bits, training in layer_of(trainer).seen if not training]
    # Each epoch has a test of one batch. Then come a test in the bits of the last step, the four
    # batches of recalibration, and the test after it.
    assert tested == [8, 8, 8, 3, 8, 8, 8, 8, 8]
    last = run.epochs[-1]
    names = [f"test_{f}{n}" for f in ("loss", "accuracy") for n in ("_last_bits", "_recalibrated")]
    assert all(name in last and name not in run.epochs[0] for name in names)
    losses = {last["test_loss"], last["test_loss_last_bits"], last["test_loss_recalibrated"]}
    assert len(losses) == 3


def test_further_tests_leave_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_tests = trainer_in(tmp_path / "with", "cpt:3-8/8,cycles=2")
    with_tests.fit()
    monkeypatch.setattr(precision_schedule.PrecisionSchedule, "further_tests", lambda callback: {})
    without = trainer_in(tmp_path / "without", "cpt:3-8/8,cycles=2")
    without.fit()
    assert_same(*(dict(trainer.model.state_dict()) for trainer in (with_tests, without)))
    assert layer_of(with_tests).bits == layer_of(without).bits


SCHEDULES = [
    "cpt:3-8/8,cycles=2",
    "shuffled:3-8/8,cycles=2",
    # It stops in the middle of a period, and rises after the fifth.
    "pfq:3-8/8,period=2,eps=9",
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stopped_run_goes_on_to_the_same_bits(schedule: str, tmp_path: Path) -> None:
    make = partial(trainer_in, schedule=schedule)
    whole, stopped, resumed = goes_on_alike(make, tmp_path, 7, workload=made())
    assert trained_with(stopped) + trained_with(resumed) == trained_with(whole)


def test_stages_rise_where_the_mean_loss_is_flat(tmp_path: Path) -> None:
    # No loss moves by nine times its mean: every fifth period is a turning point.
    trainer = trainer_in(tmp_path / "a", "pfq:3-8/6-8,eps=9,period=2")
    run = trainer.fit()
    assert trained_with(trainer) == [3] * 10 + [8] * 2
    assert [epoch["grad_bits"] for epoch in run.epochs] == [6, 6, 8]
    cost = (10 * bitops(3, 6) + 2 * bitops(8, 8)) / 12
    assert run.epochs[-1]["bitops"] == pytest.approx(cost, abs=1e-6)
    # A run of 12 steps has periods of one.
    by_step = trainer_in(tmp_path / "b", "pfq:3-4-6/8,eps=9")
    by_step.fit()
    assert trained_with(by_step) == [3] * 5 + [4] * 5 + [6] * 2


def test_stages_see_the_means_that_the_record_has(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, "pfq:3-8/8,period=4", loss_scale=64.0)
    losses = [epoch["train_loss"] for epoch in trainer.fit().epochs]
    state = trainer.callbacks[0].state_dict()["scheduler"]
    # The run ends before the third look.
    assert state["window"] == pytest.approx(losses[:2])
    assert state["period_steps"] == 4 and state["sum"] / 4 == pytest.approx(losses[2])


def test_others_checkpoints_and_schedules_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for schedule, match in (
        ("cpt:3-8/8,cycles=13", "schedule: total: expected at least as many steps as cycles"),
        ("cpt:none,acc=4-8,cycles=1", "schedule: .*no attribute 'set_accumulator'"),
        ("pfq:3-8/8,period=13", "schedule: period: expected at most the 12 steps of the run"),
    ):
        with pytest.raises(ValueError, match=match):
            trainer_in(tmp_path, schedule)
        assert not (tmp_path / records.RECORDS).exists()
    with pytest.raises(ValueError, match="PrecisionScheduleConfig: schedule: cannot read the sch"):
        PrecisionScheduleConfig(schedule="cpt:8-3")

"""A schedule of precisions in the trainer: bits of every step, of every test, refusals."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from lpkernels.experiments import records
from lpkernels.experiments.training.callbacks import precision_schedule
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads.workload import Batch
from lpkernels.techniques.cpt import bitops, bits_at
from tests.experiments.tiny import bits_of_steps, tiny_workload
from tests.support.refusals import rejects
from tests.support.trainings import SMALL, tiny_trainer
from tests.techniques.loss_scaling.optimizers import assert_same

# Four steps an epoch.
BASE = SMALL.replace(epochs=3, recipe="cpt_fu2021", lr=0.05)
CYCLES = "cpt:3-8/8,cycles=2"
PLAN = [bits_at(step, 12, bits=(3, 8), cycles=2) for step in range(12)]
trainer_in = partial(tiny_trainer, BASE)


def test_every_step_has_the_bits_of_the_plan(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, schedule=CYCLES)
    assert bits_of_steps(trainer) == PLAN
    run = records.read_run(tmp_path)
    assert run.header["config"]["callbacks"] == {"precision_schedule": {"schedule": CYCLES}}
    assert [epoch["bits"] for epoch in run.epochs] == PLAN[3::4]
    costs = [bitops(bits, 8) for bits in PLAN]
    means = [sum(costs[:n]) / n for n in (4, 8, 12)]
    assert [epoch["bitops"] for epoch in run.epochs] == pytest.approx(means, abs=1e-6)
    assert run.epochs[0]["grad_bits"] == 8


def test_tests_are_at_the_highest_bits_and_the_last_epoch_has_two_more(tmp_path: Path) -> None:
    config, tested = BASE.replace(schedule="fall:8-3/8"), list[int]()
    workload = tiny_workload(config.workload)

    def measure(model: nn.Module, batch: Batch) -> Any:
        tested.append(model.stem.recipe.input.fmt.bits)
        return workload.measure(model, batch)

    run = Trainer(config, tmp_path, workload=replace(workload, measure=measure)).fit()
    # Each epoch has a test of one batch; then come those of the last step's bits, and of the
    # highest ones with statistics of these bits.
    assert tested == [8, 8, 8, 3, 8]
    last = run.epochs[-1]
    names = [f"test_{f}{n}" for f in ("loss", "accuracy") for n in ("_last_bits", "_recalibrated")]
    assert all(name in last and name not in run.epochs[0] for name in names)
    assert len({last["test_loss"], *(last[name] for name in names[:2])}) == 3


def test_further_tests_leave_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def state(folder: str) -> dict[str, Tensor]:
        trainer = trainer_in(tmp_path / folder, schedule=CYCLES)
        trainer.fit()
        return dict(trainer.model.state_dict())

    expected = state("with")
    monkeypatch.setattr(precision_schedule.PrecisionSchedule, "further_tests", lambda callback: {})
    assert_same(state("without"), expected)


# No loss moves by nine times its mean: every fifth period is a turning point.
STAGES = {
    "pfq:3-8/6-8,eps=9,period=2": [3] * 10 + [8] * 2,
    "pfq:3-4-6/8,eps=9": [3] * 5 + [4] * 5 + [6] * 2,
}


@pytest.mark.parametrize("schedule", STAGES)
def test_stages_rise_where_the_mean_loss_is_flat(schedule: str, tmp_path: Path) -> None:
    assert bits_of_steps(trainer_in(tmp_path, schedule=schedule)) == STAGES[schedule]


def test_records_have_the_bits_and_the_mean_cost_of_stages(tmp_path: Path) -> None:
    epochs = trainer_in(tmp_path, schedule=next(iter(STAGES))).fit().epochs
    assert [epoch["grad_bits"] for epoch in epochs] == [6, 6, 8]
    cost = (10 * bitops(3, 6) + 2 * bitops(8, 8)) / 12
    assert epochs[-1]["bitops"] == pytest.approx(cost, abs=1e-6)


def test_stages_see_the_means_that_the_record_has(tmp_path: Path) -> None:
    # Three steps an epoch, of as many images each.
    trainer = trainer_in(tmp_path, schedule="pfq:3-8/8,period=3", loss_scale=64.0, batch=10)
    losses = [epoch["train_loss"] for epoch in trainer.fit().epochs]
    state = trainer.callbacks[0].state_dict()["scheduler"]
    # The run ends before the third look.
    assert state["window"] == pytest.approx(losses[:2])
    assert state["period_steps"] == 3 and state["sum"] / 3 == pytest.approx(losses[2])


test_schedules_that_do_not_fit_are_refused = rejects(
    lambda schedule: Trainer(
        BASE.replace(schedule=schedule), "nowhere", workload=tiny_workload(BASE.workload)
    ),
    [
        ("cpt:3-8/8,cycles=13", "schedule: total: expected at least as many steps as cycles"),
        ("pfq:3-8/8,period=13", "schedule: period: expected at most the 12 steps of the run"),
        ("cpt:8-3", "PrecisionScheduleConfig: schedule: cannot read the sch"),
    ],
)

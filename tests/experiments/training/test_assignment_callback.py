"""A precision assignment in the trainer: bits, tests, promotions, resume, refusals."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments import records
from lpkernels.experiments.training.callbacks.assignment import (
    AssignedTraining,
    AssignmentConfig,
    parse_assignment,
)
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.techniques.assignment import (
    Assignment,
    Formats,
    assign,
    demote,
    group,
    operator_based,
    trace,
    uniform,
)
from lpkernels.techniques.loss_scaling import LossScaler
from tests.experiments.tiny import tiny_workload
from tests.support.refusals import rejects
from tests.support.trainings import SMALL, tiny_trainer
from tests.techniques.assignment.networks import chain_batch, chain_model
from tests.techniques.loss_scaling.optimizers import assert_same

BASE = SMALL.replace(width=4, lr=0.1, loss_scale=256.0)
# The largest value of this low format is 1.75, so that results overflow.
NARROW = "ratio=1,low=e2m2none_b3_sat"
trainer_in = partial(tiny_trainer, BASE)


def callback_of(trainer: Trainer) -> AssignedTraining:
    callback = trainer.callbacks[0]
    assert isinstance(callback, AssignedTraining)
    return callback


def mean_of_losses(output: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
    return cross_entropy(output, batch[1], reduction="none").mean()


def test_it_trains_as_a_loop_of_ones_own(tmp_path: Path) -> None:
    trainer, other = (
        trainer_in(tmp_path / name, assignment="ratio=0.6", epochs=1) for name in ("run", "other")
    )
    plan = trainer.workload.train.plan(trainer.config.seed, 0)
    pairs = [(batch[0], batch) for batch in (plan(step, 8) for step in range(4))]
    model, optimizer = other.model, other.optimizer
    groups = group(trace(model, mean_of_losses, pairs[0]))
    made = assign(model, mean_of_losses, demote(groups, 0.6))
    model.train()
    losses, seen = list[float](), list[float]()
    trainer.fit(on_progress=lambda *_: seen.append(trainer.optimizer.param_groups[0]["lr"]))
    rates = iter(seen)
    optimizer.param_groups[0]["lr"] = next(rates)
    scaler = LossScaler(static=256.0)
    for pair in pairs:
        optimizer.zero_grad()
        loss = made(*pair)
        losses.append(float(loss.detach()))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        made.step()
        optimizer.param_groups[0]["lr"] = next(rates, 0.0)
    assert_same(dict(trainer.model.named_parameters()), dict(model.named_parameters()))
    mean = sum(w * loss for w, loss in zip([8, 8, 8, 6], losses, strict=True)) / 30
    assert records.read_run(tmp_path / "run").epochs[0]["train_loss"] == pytest.approx(mean)


def test_records_tell_of_ratios_and_promotions(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, assignment=NARROW, epochs=3)
    epochs = trainer.fit().epochs
    assigned = callback_of(trainer).assigned
    assert epochs[-1]["promotions"] == len(assigned.promotions) > 0
    assert epochs[-1]["low_ratio"] == pytest.approx(assigned.assignment.ratio, abs=1e-6)
    assert 1 > epochs[0]["low_ratio"] >= epochs[-1]["low_ratio"]
    assert epochs[0]["bit_ratio"] > epochs[-1]["bit_ratio"] > assigned.assignment.bit_ratio
    lines = [json.loads(x) for x in (tmp_path / "promotions.jsonl").read_text().splitlines()]
    assert lines[0]["assignment"] == NARROW
    assert lines[0]["config"]["callbacks"]["assignment"]["assignment"] == NARROW
    assert [(x["step"], x["key"], x["value"]) for x in lines[1:]] == assigned.promotions


def test_without_promotion_tests_are_in_the_formats_the_last_in_float32_too(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, assignment=f"{NARROW},promote=none")
    first, last = trainer.fit().epochs
    assigned = callback_of(trainer).assigned
    assert (last["promotions"], last["low_ratio"]) == (0, 1.0)
    assert last["bit_ratio"] == pytest.approx(assigned.assignment.bit_ratio, abs=1e-6)
    assert "test_loss_float32" not in first
    model, batch = trainer.model.eval(), trainer.workload.test[0]
    assert "forward" not in vars(model)
    with torch.no_grad():
        plain = model(batch[0])
        with assigned.evaluating():
            outputs = plain, model(batch[0])
        losses = [float(cross_entropy(output, batch[1])) for output in outputs]
    assert losses[0] != losses[1]
    assert [last["test_loss_float32"], last["test_loss"]] == pytest.approx(losses)


def test_settings_are_checked_and_make_the_callback() -> None:
    with pytest.raises(ValueError, match="assignment: ratio: expected a finite number"):
        RunConfig.of(assignment="ratio=2")
    assert RunConfig.of(assignment="").callbacks == ()
    assert isinstance(RunConfig.of(assignment="uniform").callbacks[0], AssignmentConfig)


@pytest.mark.parametrize(
    "text, message",
    [("bits=5", "demote: bits=5 cannot be met"), ("file=missing.json", r".*missing\.json")],
    ids=["bits", "file"],
)
def test_an_assignment_that_the_network_cannot_have_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"assignment: {message}"):
        trainer_in(tmp_path, assignment=text)


def test_several_processes_are_refused() -> None:
    callback: Any = AssignmentConfig(assignment="ratio=0.5").build()
    several: Any = SimpleNamespace(processes=SimpleNamespace(count=2), sample=None)
    with pytest.raises(ValueError, match="assignment: trains in one process, got 2"):
        callback.prepare(several)


def test_a_network_that_reads_values_is_refused(tmp_path: Path) -> None:
    config = BASE.replace(assignment="ratio=0.5")
    workload = replace(tiny_workload(config.workload), model=strange)
    with pytest.raises(ValueError, match=r"assignment: trace: .*reads a value"):
        Trainer(config, tmp_path, workload=workload)


class Strange(nn.Sequential):
    """A network whose output depends on a value that it reads."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 2 if y.sum() > 0 else y


def strange() -> nn.Module:
    return Strange(nn.Flatten(), nn.Linear(36, 3))


@pytest.mark.parametrize(
    "text, options",
    [
        ("ratio=0.6", {}),
        ("ratio=0.6, promote=0.1 ", {"promote": 0.1}),
        ("uniform,promote=none", {"promote": None}),
        ("operator_based,fan_out=branches", {"fan_out": "branches"}),
    ],
)
def test_a_text_has_options_of_assign(text: str, options: dict[str, Any]) -> None:
    assert parse_assignment(text).options == options


WRONG = [
    ("", "cannot read '' in ''; expected uniform, operator_based or .*ratio=<value>"),
    ("ratio=0.5,ratio=0.6", "gives its ratio twice"),
    ("ratio=1.5", "ratio: expected a finite number .* most 1, got 1.5"),
    ("promote=0.01", "give ratio or bits, one of them"),
    ("ratio=0.5,order=random", "order='random' takes an int as seed"),
    ("uniform,ratio=0.5", "uniform takes no ratio, bits, order or seed, and no other rule; leave"),
    ("uniform,file=a.json", "uniform takes .* no other rule"),
    ("ratio=0.5,fan_out=all", "fan_out: expected one of sum, branches"),
    ("ratio=0.5,promote=2", "promote: expected a finite number .* most 1, got 2"),
    ("ratio=0.5,low=e9m9", "weight: .*exp_bits must be in 1..8, got 9"),
    ("ratio=0.5,low=fp32", "more than the 16"),
]
test_wrong_texts_are_refused = rejects(parse_assignment, WRONG)


LOW = ("fp_6_9_0:nearest_away", "e3m2none_sat:nearest_away")
LOW_GRADIENTS = ("fp_6_9_0_backward:nearest_away", "e4m1none:toward_zero")
NARROWER = Formats(weight=LOW, activation=LOW, grad_activation=LOW_GRADIENTS)
RULES: dict[str, Callable[[Any], Assignment]] = {
    "ratio=0.6": lambda ops: demote(group(ops), 0.6),
    "ratio=0.6,order=random,seed=2": lambda ops: demote(group(ops), 0.6, order="random", seed=2),
    "bits=130000,order=increasing": lambda ops: demote(group(ops), bits=130000, order="increasing"),
    "uniform": uniform,
    "operator_based": operator_based,
    "ratio=1,low=e3m2none_sat,low_grad=e4m1none:toward_zero": (
        lambda ops: demote(group(ops), 1, formats=NARROWER)
    ),
}


@pytest.fixture(scope="module")
def operations() -> Any:
    return trace(chain_model(), cross_entropy, chain_batch())


@pytest.mark.parametrize("text", RULES)
def test_a_text_gives_the_assignment_of_its_function(text: str, operations: Any) -> None:
    assert parse_assignment(text).rule(operations) == RULES[text](operations)


def test_a_file_gives_its_assignment(operations: Any, tmp_path: Path) -> None:
    assignment = demote(group(operations), 0.5)
    assignment.save(tmp_path / "a.json")
    assert parse_assignment(f"file={tmp_path / 'a.json'}").rule(operations) == assignment

"""Two formats for all tensors of a run: a part that trains under their assignment."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.training.parts.every_tensor import EveryTensor, EveryTensorConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.techniques.assignment import audit
from lpkernels.techniques.pareto import TrainingRecipe
from tests.experiments.tiny import tiny_workload
from tests.experiments.training.test_trainer import assert_same_bits, interrupt_at

BASE = RunConfig.of(model="cnn2", width=2, epochs=2, batch=8, threads=1)
LOW, HIGH = "e4m2_sat:stochastic", "e6m9_sat:stochastic"


def trainer_in(folder: Path, **values: Any) -> Trainer:
    config = BASE.replace(**values)
    return Trainer(config, folder, workload=tiny_workload(config.workload))


def part_of(trainer: Trainer) -> EveryTensor:
    part = trainer.parts[0]
    assert isinstance(part, EveryTensor)
    return part


def test_every_tensor_of_a_step_is_rounded_as_the_configuration_says(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, tensors=LOW, ends=HIGH)
    assigned = part_of(trainer).assigned
    batch = trainer.workload.train.plan(0, 0).batch(0, 8)
    found = audit(assigned, (batch[0], batch))
    found.check()
    formats = {str(assigned.assignment.format_of(key)) for key in found.rounded}
    # The gradients of weights are rounded as they enter the optimizer.
    assert formats == {LOW, HIGH, "e8m23"}


def test_layers_have_the_accumulator_of_the_configuration(tmp_path: Path) -> None:
    model = trainer_in(tmp_path, tensors=LOW, ends=HIGH, tensor_sums="e6m5").model
    recipes = {m.recipe for name, m in model.named_modules() if name and hasattr(m, "recipe")}
    assert recipes == {TrainingRecipe("e4m2_sat", "e6m9_sat", "e6m5").sums}


def test_ends_are_as_all_others_unless_said(tmp_path: Path) -> None:
    one = trainer_in(tmp_path / "one", tensors=LOW)
    two = trainer_in(tmp_path / "two", tensors=LOW, ends=LOW)
    one.fit()
    two.fit()
    assert_same_bits(one, two)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"tensors": LOW, "ends": HIGH, "loss_scale": 1000.0}
    whole = trainer_in(tmp_path / "whole", **values)
    whole.fit()
    stopped = trainer_in(tmp_path / "stopped", **values)
    interrupt_at(stopped, monkeypatch, "_train", 5)
    with pytest.raises(Interrupted):
        stopped.fit()
    work = tiny_workload(stopped.config.workload)
    resumed = Trainer.resume(tmp_path / "stopped", workload=work)
    resumed.fit()
    assert_same_bits(whole, resumed)


@pytest.mark.parametrize("field", ["ends", "tensor_sums"])
def test_settings_without_tensors_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: belongs to tensors, got without"):
        EveryTensorConfig(**{field: "e6m9"})


@pytest.mark.parametrize("field", ["tensors", "ends", "tensor_sums"])
def test_what_is_no_format_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"EveryTensorConfig: {field}: "):
        EveryTensorConfig(**{"tensors": LOW, field: "e99"})


def test_nothing_is_drawn_at_random_from_another_stream(tmp_path: Path) -> None:
    """The part changes no weight: runs of all configurations start alike."""
    one = trainer_in(tmp_path / "one", tensors=LOW).model.state_dict()
    two = trainer_in(tmp_path / "two").model.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in two)

"""Two formats for all tensors of a run: a part that gives layers their recipes."""

from pathlib import Path
from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.training.parts.every_tensor import EveryTensorConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.techniques.pareto import TrainingRecipe
from tests.experiments.tiny import tiny_workload
from tests.experiments.training.test_trainer import assert_same_bits, interrupt_at

BASE = RunConfig.of(model="cnn2", width=2, epochs=2, batch=8, threads=1)
LOW, HIGH = "e4m2_sat:stochastic", "e6m9_sat:stochastic"


def trainer_in(folder: Path, **values: Any) -> Trainer:
    config = BASE.replace(**values)
    return Trainer(config, folder, workload=tiny_workload(config.workload))


def test_layers_have_the_recipes_of_the_configuration(tmp_path: Path) -> None:
    model = trainer_in(tmp_path, tensors=LOW, ends=HIGH, tensor_sums="e6m5").model
    policy = TrainingRecipe("e4m2_sat", "e6m9_sat", "e6m5").policy
    recipes = [m.recipe for name, m in model.named_modules() if name and hasattr(m, "recipe")]
    norm = policy[torch.nn.BatchNorm2d]
    assert recipes == [policy[lp.nn.FIRST], norm, policy["*"], norm, policy[lp.nn.LAST]]


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

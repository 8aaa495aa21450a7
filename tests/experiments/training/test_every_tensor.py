"""Two formats for all tensors of a run: a part that trains under their assignment."""

from functools import partial
from pathlib import Path

import pytest
import torch

from lpkernels.experiments.training.parts.every_tensor import EveryTensor, EveryTensorConfig
from lpkernels.techniques.assignment import audit
from lpkernels.techniques.pareto import TrainingRecipe
from tests.support.trainings import SMALL, assert_same_end, goes_on_alike, tiny_trainer

LOW, HIGH = "e4m2_sat:stochastic", "e6m9_sat:stochastic"

trainer_in = partial(tiny_trainer, SMALL)


def test_every_tensor_of_a_step_is_rounded_as_the_configuration_says(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, tensors=LOW, ends=HIGH)
    (part,) = trainer.parts
    assert isinstance(part, EveryTensor)
    batch = trainer.workload.train.plan(0, 0).batch(0, 8)
    found = audit(part.assigned, (batch[0], batch))
    found.check()
    formats = {str(part.assigned.assignment.format_of(key)) for key in found.rounded}
    # The gradients of weights are rounded as they enter the optimizer.
    assert formats == {LOW, HIGH, "e8m23"}


def test_layers_have_the_accumulator_of_the_configuration(tmp_path: Path) -> None:
    model = trainer_in(tmp_path, tensors=LOW, ends=HIGH, tensor_sums="e6m5").model
    recipes = {m.recipe for name, m in model.named_modules() if name and hasattr(m, "recipe")}
    assert recipes == {TrainingRecipe("e4m2_sat", "e6m9_sat", "e6m5").sums}


def test_ends_are_as_all_others_unless_said(tmp_path: Path) -> None:
    one = trainer_in(tmp_path / "one", tensors=LOW, epochs=1)
    two = trainer_in(tmp_path / "two", tensors=LOW, ends=LOW, epochs=1)
    one.fit()
    two.fit()
    assert_same_end(one.folder, two.folder)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    make = partial(trainer_in, tensors=LOW, ends=HIGH, loss_scale=1000.0)
    goes_on_alike(make, tmp_path, 6)


def test_wrong_settings_are_refused() -> None:
    for field in ("ends", "tensor_sums"):
        with pytest.raises(ValueError, match=f"{field}: belongs to tensors, got without"):
            EveryTensorConfig(**{field: "e6m9"})
    for field in ("tensors", "ends", "tensor_sums"):
        with pytest.raises(ValueError, match=f"EveryTensorConfig: {field}: "):
            EveryTensorConfig(**{"tensors": LOW, field: "e99"})


def test_nothing_is_drawn_at_random_from_another_stream(tmp_path: Path) -> None:
    """The part changes no weight: runs of all configurations start alike."""
    one = trainer_in(tmp_path / "one", tensors=LOW).model.state_dict()
    two = trainer_in(tmp_path / "two").model.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in two)

"""The loss scale of a run: constant with the bits of dividing, dynamic, resumed, refused."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpkernels.experiments.training.parts import Part
from lpkernels.experiments.training.parts.loss_scale import LossScaleConfig
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.trainings import SMALL, goes_on_alike, tiny_trainer

trainer_in = partial(tiny_trainer, SMALL.replace(recipe="fp8_wang2018", clip=0.5))


class Dividing(Part):
    """Multiplies the loss by a number and divides the gradients by it, each rounded once."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def prepare(self, model: nn.Module, optimizer: Any, context: Any) -> tuple[nn.Module, Any]:
        self.parameters = list(model.parameters())
        return model, optimizer

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    def after_backward(self) -> None:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_div_(gradients, self.scale)


@pytest.mark.parametrize("scale", [1024.0, 2.0**-3, 1000.0, 2.0**40])
def test_constant_scale_has_the_bits_of_multiplying_and_dividing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    ours = trainer_in(tmp_path / "ours", loss_scale=scale)
    epochs = ours.fit().epochs
    monkeypatch.setattr(LossScaleConfig, "build", lambda config: Dividing(config.loss_scale))
    plain = trainer_in(tmp_path / "plain", loss_scale=scale)
    expected = plain.fit().epochs
    for a, b in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        assert_bit_equal(a.detach(), b.detach())
    assert [e["skipped_steps"] for e in epochs] == [e["skipped_steps"] for e in expected]
    assert (epochs[0]["skipped_steps"] > 0) == (scale == 2.0**40)
    assert "loss_scale" not in epochs[0]


DYNAMIC: dict[str, Any] = {"dynamic_scale": True, "scale_start": 2.0**40, "scale_interval": 2}


def test_dynamic_scale_finds_its_level_and_is_recorded(tmp_path: Path) -> None:
    run = trainer_in(tmp_path, **DYNAMIC).fit()
    assert run.epochs[0]["skipped_steps"] > 0
    assert run.epochs[0]["loss_scale"] < 2.0**40
    assert run.header["config"]["parts"]["loss_scale"]["dynamic_scale"] is True


def test_dynamic_scale_resumes_to_the_same_bits(tmp_path: Path) -> None:
    limits = {"scale_start": 2.0**24, "scale_floor": 2.0, "scale_ceiling": 2.0**30}
    goes_on_alike(partial(trainer_in, **{**DYNAMIC, **limits}), tmp_path, 6)


def test_checkpoint_of_a_part_without_state_is_taken(tmp_path: Path) -> None:
    part = LossScaleConfig(loss_scale=8.0).build()
    part.load_state_dict({})
    part.load_state_dict(part.state_dict())
    with pytest.raises(ValueError, match=r"a static scale stays 8\.0, got a state of 4\.0"):
        part.load_state_dict(LossScaleConfig(loss_scale=4.0).build().state_dict())


@each(
    "values, match",
    [
        ({"dynamic_scale": True, "loss_scale": 8.0}, "loss_scale is the constant scale, got 8.0"),
        ({"scale_interval": 5}, "scale_interval: of a dynamic scale, got without"),
        ({"scale_floor": 1.0, "scale_start": 2.0}, "scale_start, scale_floor: of a dynamic scale"),
        ({"dynamic_scale": True, "scale_interval": 0}, "scale_interval must be at least 1, got 0"),
        ({"dynamic_scale": True, "scale_ceiling": 2.0}, "expected a scale between the floor None"),
        ({"loss_scale": 1e-40}, "static: expected a positive finite scale"),
    ],
)
def test_settings_that_contradict_are_refused(values: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        LossScaleConfig(**values)

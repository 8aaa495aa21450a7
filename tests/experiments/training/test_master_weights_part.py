"""Masters in the trainer: a part whose state is the optimizer's."""

from functools import partial
from pathlib import Path

import pytest
import torch

import lpkernels as lp
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.parts.master_weights import MasterWeightsConfig
from lpkernels.techniques.loss_scaling import MasterWeights
from tests.support.trainings import SMALL, goes_on_alike, tiny_trainer
from tests.techniques.loss_scaling.optimizers import assert_same

BASE = SMALL.replace(optimizer="adam", lr=1e-3)
NARROW = {
    "master": "e6m9:stochastic",
    "working": "fp8_e4m3",
    "opt_state": "exp_avg=e5m7:stochastic,exp_avg_sq=block8_e4m3",
    "opt_grad": "e5m2",
}


trainer_in = partial(tiny_trainer, BASE)


def test_float32_masters_train_to_the_bits_of_no_part(tmp_path: Path) -> None:
    """The part is made by asking for the optimizer's own step; it rounds nothing."""
    one, two = trainer_in(tmp_path / "plain"), trainer_in(tmp_path / "part", opt_pass="general")
    one.fit()
    two.fit()
    assert isinstance(two.optimizer, MasterWeights)
    assert_same(dict(two.model.state_dict()), dict(one.model.state_dict()))


def test_the_model_has_working_copies_and_records_stagnation(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, **NARROW)
    run = trainer.fit()
    for parameter in trainer.model.parameters():
        values = parameter.detach()
        assert torch.equal(values, lp.quantize(values, "fp8_e4m3"))
    shares = [epoch["stagnation"] for epoch in run.epochs]
    assert all(0 < share < 1 for share in shares)
    assert run.header["config"]["parts"]["master_weights"] == {**NARROW, "opt_pass": "fused"}
    # A master too narrow stagnates.
    narrow = trainer_in(tmp_path / "narrow", master="e5m2", working="e5m2", lr=1e-6, epochs=1)
    assert narrow.fit().epochs[-1]["stagnation"] > 0.9


def test_records_without_a_pass_are_read() -> None:
    values = BASE.replace(**NARROW).to_dict()
    del values["parts"]["master_weights"]["opt_pass"]
    assert RunConfig.from_dict(values) == BASE.replace(**NARROW)


@pytest.mark.parametrize(("opt_pass", "fused"), [("fused", None), ("general", False)])
def test_the_pass_is_chosen(opt_pass: str, fused: bool | None, tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, master="fp16", opt_pass=opt_pass)
    assert isinstance(trainer.optimizer, MasterWeights)
    assert trainer.optimizer._fused is fused


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_stopped_run_goes_on_to_the_same_bits(scale: float, tmp_path: Path) -> None:
    """The run stops in the middle of an epoch, and the counts of that epoch go on too."""
    goes_on_alike(partial(trainer_in, **NARROW, loss_scale=scale, clip=1.0), tmp_path, 6)


def test_settings_are_checked() -> None:
    with pytest.raises(
        ValueError, match=r"MasterWeightsConfig: opt_state: expected <format> or <st"
    ):
        MasterWeightsConfig(opt_state="exp_avg=bf16,=fp16")
    with pytest.raises(ValueError, match=r"MasterWeightsConfig: working: .* unknown format 'fp17'"):
        MasterWeightsConfig(working="fp17")
    with pytest.raises(ValueError, match="opt_pass: expected one of fused, general, got 'own'"):
        MasterWeightsConfig(opt_pass="own")
    assert BASE.replace(master="").parts == ()

"""Techniques as callbacks of a run: diagnosis, all tensors rounded, loss scales, and masters."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.techniques.loss_scaling import MasterWeights, Report
from tests.support.refusals import rejects
from tests.support.techniques import roundings
from tests.support.trainings import SMALL, figures, tiny_trainer
from tests.techniques.loss_scaling.optimizers import assert_same

diagnosed_in = partial(tiny_trainer, SMALL.replace(recipe="fp8_wang2018"))


def report_in(folder: Path) -> Report:
    return Report.load(folder / "diagnosis.jsonl")


def test_a_diagnosed_run_has_the_same_bits_and_counts_all_steps_and_no_test(tmp_path: Path) -> None:
    plain, seen = diagnosed_in(tmp_path / "plain"), diagnosed_in(tmp_path / "seen", diagnose="fp16")
    plain.fit()
    seen.fit()
    assert figures(plain.folder) == figures(seen.folder)
    assert_same(dict(seen.model.state_dict()), dict(plain.model.state_dict()))
    assert not (plain.folder / "diagnosis.jsonl").exists()
    assert {row.calls for row in report_in(seen.folder).rows} == {seen.total_steps}
    first = (seen.folder / "diagnosis.jsonl").read_text().splitlines()[0]
    assert all(f'"{name}"' in first for name in ("config", "environment", "schema", "processes"))


def test_every_so_many_steps(tmp_path: Path) -> None:
    trainer = diagnosed_in(tmp_path, diagnose="recipe", diagnose_every=3)
    trainer.fit()
    rows = report_in(tmp_path).rows
    assert {row.calls for row in rows} == {-(-trainer.total_steps // 3)}
    assert {row.kind for row in rows} == {"input", "weight", "grad_output"}


@pytest.mark.parametrize(
    "scale", [{"loss_scale": 1024.0}, {"dynamic_scale": True, "scale_start": 1024.0}]
)
def test_gradients_are_unscaled_by_the_run_s_scale(tmp_path: Path, scale: dict[str, Any]) -> None:
    diagnosed_in(tmp_path, diagnose="fp16", epochs=1, **scale).fit()
    for row in filter(lambda row: row.is_gradient, report_in(tmp_path).rows):
        assert [[e + 10, n] for e, n in row.unscaled.to_pairs()] == row.histogram.to_pairs()


LOW, HIGH = "e4m2_sat:stochastic", "e6m9_sat:stochastic"
tensors_in = partial(tiny_trainer, SMALL)


def test_every_tensor_of_a_step_is_rounded_as_the_configuration_says(tmp_path: Path) -> None:
    trainer = tensors_in(tmp_path, tensors=LOW, ends=HIGH)
    (callback,) = trainer.callbacks
    batch = trainer.workload.train.plan(0, 0)(0, 8)
    keys = roundings(callback.assigned, (batch[0], batch))
    formats = {str(callback.assigned.assignment.format_of(key)) for key in keys}
    # The gradients of weights are rounded as they enter the optimizer.
    assert formats == {LOW, HIGH, "e8m23"}


def test_delayed_scales_are_updated_once_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    formats = {"input": "tensor_e4m3", "weight": "tensor_e4m3", "grad_output": "tensor_e5m2"}
    delayed = lp.Recipe(**formats, scaling="delayed:history=3:max")
    monkeypatch.setattr(f"{Trainer.__module__}.layer_recipes", lambda config, model: {"*": delayed})
    trainer = tiny_trainer(SMALL, tmp_path)
    trainer.fit()
    kept = trainer.model.head.scaling
    # The pass of a step was noted before its update.
    assert not kept.input_history[0] and kept.input_history[1:].all()
    assert not [warning for warning in recwarn if "delayed" in str(warning.message)]
    scales = [v for name, v in trainer.model.state_dict().items() if "_scale" in name]
    assert len(scales) == 9 and all(value != 1 for value in scales)


scaled_in = partial(tiny_trainer, SMALL.replace(recipe="fp8_wang2018", clip=0.5))


DYNAMIC: dict[str, Any] = {"dynamic_scale": True, "scale_start": 2.0**40, "scale_interval": 2}


def test_dynamic_scale_finds_its_level(tmp_path: Path) -> None:
    run = scaled_in(tmp_path, **DYNAMIC).fit()
    assert run.epochs[0]["skipped_steps"] > 0
    assert run.epochs[0]["loss_scale"] < 2.0**40
    assert run.header["config"]["callbacks"]["loss_scale"]["dynamic_scale"] is True


def test_a_scale_that_stays_at_its_floor_is_told_with_the_parameter(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"of parameter '.*\.weight' is not finite"):
        scaled_in(tmp_path, **DYNAMIC, scale_floor=2.0**40, epochs=6).fit()


BASE = SMALL.replace(optimizer="adam", lr=1e-3)
NARROW = {
    "master": "e6m9:stochastic",
    "working": "fp8_e4m3",
    "opt_state": "exp_avg=e5m7:stochastic,exp_avg_sq=block128_linear4_sfp32",
    "opt_grad": "e5m2",
}
masters_in = partial(tiny_trainer, BASE)


def test_float32_masters_train_to_the_bits_of_no_callback(tmp_path: Path) -> None:
    """The callback is made by asking for the optimizer's own step; it rounds nothing."""
    one, two = masters_in(tmp_path / "plain"), masters_in(tmp_path / "callback", opt_pass="general")
    one.fit()
    two.fit()
    assert isinstance(two.optimizer, MasterWeights) and two.optimizer._fused is False
    assert_same(dict(two.model.state_dict()), dict(one.model.state_dict()))


def test_the_model_has_working_copies_and_records_stagnation(tmp_path: Path) -> None:
    trainer = masters_in(tmp_path, **NARROW)
    run = trainer.fit()
    for parameter in trainer.model.parameters():
        values = parameter.detach()
        assert torch.equal(values, lp.quantize(values, "fp8_e4m3"))
    shares = [epoch["stagnation"] for epoch in run.epochs]
    assert all(0 < share < 1 for share in shares)
    assert run.header["config"]["callbacks"]["master_weights"] == {**NARROW, "opt_pass": "fused"}
    # A master too narrow stagnates.
    narrow = masters_in(tmp_path / "narrow", master="e5m2", working="e5m2", lr=1e-6, epochs=1)
    assert narrow.fit().epochs[-1]["stagnation"] > 0.9


def test_records_without_a_pass_are_read() -> None:
    values = BASE.replace(**NARROW).to_dict()
    del values["callbacks"]["master_weights"]["opt_pass"]
    assert RunConfig.from_dict(values) == BASE.replace(**NARROW)
    assert BASE.replace(master="").callbacks == ()


test_settings_are_checked = rejects(
    lambda values: RunConfig.of(**values),
    [
        ({"diagnose": "fp17"}, "DiagnosisConfig: diagnose: diagnose: fmt: .*'fp17'"),
        ({"diagnose_every": 2}, "diagnose_every: belongs to diagnose"),
        ({"ends": "e6m9"}, "ends: belongs to tensors"),
        *(({"tensors": LOW, f: "e99"}, f"EveryTensorConfig: {f}: ") for f in ("tensors", "ends")),
        ({"dynamic_scale": True, "loss_scale": 8.0}, "loss_scale is the constant scale, got 8.0"),
        ({"scale_interval": 5}, "scale_interval: belongs to dynamic_scale"),
        ({"scale_floor": 1.0, "scale_start": 2.0}, "scale_start, scale_floor: belongs to"),
        ({"loss_scale": 1e-40}, "Config: loss_scale: expected a positive finite scale"),
        ({"opt_state": "exp_avg=bf16,=fp16"}, "MasterWeightsConfig: opt_state: expected <format>"),
        ({"working": "fp17"}, r"MasterWeightsConfig: working: .* unknown format 'fp17'"),
    ],
)  # fmt: skip

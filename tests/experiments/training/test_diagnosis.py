"""A run that is diagnosed: its bits, its file, resumed, counted in every so many steps."""

from pathlib import Path
from typing import Any

import pytest

from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.training.parts.diagnosis import DiagnosisConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.techniques.loss_scaling import Report
from tests.compare import assert_bit_equal
from tests.experiments.tiny import tiny_workload
from tests.experiments.training.test_trainer import interrupt_at

BASE = RunConfig.of(model="cnn2", width=2, recipe="fp8_wang2018", epochs=2, batch=8, threads=1)


def trainer_in(folder: Path, **values: Any) -> Trainer:
    config = BASE.replace(**values)
    return Trainer(config, folder, workload=tiny_workload(config.workload))


def report_in(folder: Path) -> Report:
    return Report.load(folder / "diagnosis.jsonl")


def test_a_diagnosed_run_has_the_bits_of_one_that_is_not(tmp_path: Path) -> None:
    plain, seen = trainer_in(tmp_path / "a"), trainer_in(tmp_path / "b", diagnose="fp16")
    curves = [trainer.fit().curve("train_loss") for trainer in (plain, seen)]
    assert curves[0] == curves[1]
    for a, b in zip(plain.model.parameters(), seen.model.parameters(), strict=True):
        assert_bit_equal(a.detach(), b.detach())
    assert not (tmp_path / "a" / "diagnosis.jsonl").exists()
    # The calls of a run's tests are not counted.
    assert {row.calls for row in report_in(tmp_path / "b").rows} == {seen.total_steps}


def test_every_so_many_steps(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, diagnose="recipe", diagnose_every=3)
    trainer.fit()
    rows = report_in(tmp_path).rows
    assert {row.calls for row in rows} == {-(-trainer.total_steps // 3)}
    assert {row.kind for row in rows} == {"input", "weight", "grad_output"}


@pytest.mark.parametrize(
    "scale", [{"loss_scale": 1024.0}, {"dynamic_scale": True, "scale_start": 1024.0}]
)
def test_gradients_are_unscaled_by_the_run_s_scale(tmp_path: Path, scale: dict[str, Any]) -> None:
    trainer_in(tmp_path, diagnose="fp16", **scale).fit()
    rows = [row for row in report_in(tmp_path).rows if row.is_gradient]
    for row in rows:
        assert row.unscaled.shifted(10).to_pairs() == row.histogram.to_pairs()


def test_a_resumed_run_has_counted_all_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer_in(tmp_path / "whole", diagnose="fp16").fit()
    stopped = trainer_in(tmp_path / "stopped", diagnose="fp16")
    interrupt_at(stopped, monkeypatch, "_train", 2)
    with pytest.raises(Interrupted):
        stopped.fit()
    workload = tiny_workload(stopped.config.workload)
    Trainer.resume(tmp_path / "stopped", workload=workload).fit()
    whole, resumed = (report_in(tmp_path / name) for name in ("whole", "stopped"))
    assert resumed.to_dicts() == whole.to_dicts()


def test_the_header_says_what_ran(tmp_path: Path) -> None:
    trainer_in(tmp_path, diagnose="fp16").fit()
    first = (tmp_path / "diagnosis.jsonl").read_text().splitlines()[0]
    assert all(f'"{name}"' in first for name in ("config", "environment", "schema", "processes"))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"diagnose": "fp17"}, "DiagnosisConfig: diagnose: diagnose: fmt: .*'fp17'"),
        ({"diagnose": "affine8"}, "expected a format with an exponent"),
        ({"diagnose_every": 2}, "diagnose_every belongs to diagnose, got 2 without"),
        ({"diagnose": "fp16", "diagnose_every": 0}, "diagnose_every must be at least 1, got 0"),
    ],
)
def test_wrong_settings(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DiagnosisConfig(**values)

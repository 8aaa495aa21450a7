"""A run that is diagnosed: its bits, its file, resumed, counted in every so many steps."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lpkernels.experiments.training.parts.diagnosis import DiagnosisConfig
from lpkernels.techniques.loss_scaling import Report
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.trainings import SMALL, figures, goes_on_alike, tiny_trainer

trainer_in = partial(tiny_trainer, SMALL.replace(recipe="fp8_wang2018"))


def report_in(folder: Path) -> Report:
    return Report.load(folder / "diagnosis.jsonl")


def test_a_diagnosed_run_has_the_bits_of_one_that_is_not_and_counts_all_steps_when_resumed(
    tmp_path: Path,
) -> None:
    plain = trainer_in(tmp_path / "plain")
    plain.fit()
    seen, _, _ = goes_on_alike(partial(trainer_in, diagnose="fp16"), tmp_path, 3)
    assert figures(plain.folder) == figures(seen.folder)
    for a, b in zip(plain.model.parameters(), seen.model.parameters(), strict=True):
        assert_bit_equal(a.detach(), b.detach())
    assert not (plain.folder / "diagnosis.jsonl").exists()
    # The calls of a run's tests are not counted.
    assert {row.calls for row in report_in(seen.folder).rows} == {seen.total_steps}
    first = (seen.folder / "diagnosis.jsonl").read_text().splitlines()[0]
    assert all(f'"{name}"' in first for name in ("config", "environment", "schema", "processes"))


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
    trainer_in(tmp_path, diagnose="fp16", epochs=1, **scale).fit()
    for row in report_in(tmp_path).rows:
        if row.is_gradient:
            assert row.unscaled.shifted(10).to_pairs() == row.histogram.to_pairs()


@each(
    "values, text",
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

"""Pictures of a sweep's figure over another field of its records."""

from pathlib import Path
from typing import Any

import pytest

from lpkernels.experiments.sweeps.results import Result
from lpkernels.experiments.sweeps.statistics import ArmSummary, summarise
from lpkernels.experiments.workloads.workload import ACCURACY
from lpkernels.report import sweep_curves
from lpkernels.report.sweep_curves import plot_against


def results() -> list[Result]:
    """Three seeds each of fp32 without a cost, two ratios of one order, and an arm by itself."""
    arms = {"fp32": (0.95, None), "ratio 0.4": (0.94, 0.4), "ratio 0.8": (0.9, 0.75)}
    arms |= {"uniform": (0.85, 0.9)}
    found = []
    for arm, (figure, cost) in arms.items():
        for seed in range(3):
            values: dict[str, Any] = {"test_accuracy": figure + seed / 100}
            if cost is not None:
                values["bit_ratio"] = cost + seed / 50
            found.append(Result(arm, (), seed, "finished", values))
    return found


def summaries(found: list[Result]) -> list[ArmSummary]:
    return summarise(found, "test_accuracy", reference="fp32")


def axes_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: list[Result]) -> Any:
    figures: list[Any] = []
    save = sweep_curves.save_figure

    def keep(figure: Any, *args: Any, **kwargs: Any) -> Path:
        figures.append(figure)
        return save(figure, *args, **kwargs)

    monkeypatch.setattr(sweep_curves, "save_figure", keep)
    path = tmp_path / "a.png"
    assert plot_against(found, summaries(found), ACCURACY, "bit_ratio", path, title="t") == path
    assert path.stat().st_size > 1000
    return figures[0].axes[0]


def test_means_are_over_the_means_of_the_field(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    axes = axes_of(monkeypatch, tmp_path, results())
    lines = {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}
    assert set(lines) == {"fp32", "ratio", "uniform"}  # fp32 ends in a number, but is alone
    assert list(lines["ratio"].get_xdata()) == pytest.approx([0.42, 0.77])
    assert list(lines["ratio"].get_ydata()) == pytest.approx([95.0, 91.0])
    assert list(lines["uniform"].get_xdata()) == pytest.approx([0.92])
    # The arm that others are compared with lacks the field, so it is a line across.
    assert lines["fp32"].get_color() == "black" and list(lines["fp32"].get_xdata()) == [0, 1]
    assert axes.get_xlabel() == "bit ratio"


def test_an_interval_stands_at_every_mean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    axes = axes_of(monkeypatch, tmp_path, results())
    upright = [line for line in axes.lines if line.get_label()[0] == "_"]
    assert [line.get_xdata()[0] for line in upright] == pytest.approx([0.42, 0.77, 0.92])
    (interval,) = (s.interval for s in summaries(results()) if s.arm == "uniform")
    assert interval is not None
    assert list(upright[-1].get_ydata()) == pytest.approx([100 * end for end in interval])


def test_an_arm_of_which_a_run_lacks_the_field_is_a_line_across(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = results()
    del found[-1].values["bit_ratio"]
    axes = axes_of(monkeypatch, tmp_path, found)
    (line,) = (line for line in axes.lines if line.get_label() == "uniform")
    assert list(line.get_xdata()) == [0, 1]


def test_a_field_that_no_record_has_is_refused_with_those_there_are(tmp_path: Path) -> None:
    found = results()
    with pytest.raises(ValueError, match="got 'bits'; there are bit_ratio, test_accuracy"):
        plot_against(found, summaries(found), ACCURACY, "bits", tmp_path / "a.png")


def test_axes_that_vary_are_refused(tmp_path: Path) -> None:
    found = [Result(r.arm, (("lr", lr),), r.seed, r.status, r.values) for lr in (1, 2)
             for r in results()]  # fmt: skip
    with pytest.raises(ValueError, match="expected arms alone, got axes too: lr"):
        plot_against(found, summaries(found), ACCURACY, "bit_ratio", tmp_path / "a.png")

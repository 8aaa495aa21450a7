"""Tables and pictures of sweeps, and pictures of their figure over another field."""

import re
from pathlib import Path
from typing import Any

import pytest

from lpkernels.experiments.records import Run, table_of
from lpkernels.experiments.sweeps.statistics import summarise
from lpkernels.experiments.workloads.workload import ACCURACY, Metric
from lpkernels.report.figures import save_figure
from lpkernels.report.sweeps import plot_sweep, sweep_table
from tests.report.shown import text

LOSS = Metric("loss", "test loss", higher=False, percent=False)
Axes = dict[str, Any]


def finished(arm: str, seed: int, figure: float, axes: Axes | None = None, **values: Any) -> Run:
    return Run(arm, axes or {}, seed, "finished", [{"test_accuracy": figure, **values}])


def sweep(*places: Axes, seeds: int = 3) -> list[Run]:
    """fp32, a worse arm, and an arm with one run diverged without a figure and one failed."""
    results = []
    for axes in places or ({},):
        for seed in range(seeds):
            figure = 0.9 + seed**2 / 100
            worse, lost = figure - 0.01 * (seed + 1), figure - 0.002 * seed
            for arm, value in (("fp32", figure), ("a [b]", worse), ("e5m2 sums, no chunks", lost)):
                results.append(finished(arm, seed, value, axes, loss=1 - value))
        results.append(Run("e5m2 sums, no chunks", axes, seeds, "diverged", [{"loss": None}]))
        results.append(Run("e5m2 sums, no chunks", axes, seeds + 1, "failed"))
    return results


def shown(results: list[Run], metric: Metric = ACCURACY, width: int = 100) -> str:
    summary = summarise(table_of(results), metric.field, reference="fp32")
    return text(sweep_table(summary, metric, title="title"), width)


def cells(table: str, start: str) -> list[str]:
    """The words of the row that starts with `start`, and of the line below it."""
    lines = table.splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith(start))
    return " ".join(lines[at : at + 2]).split()


def test_a_row_has_mean_difference_intervals_a_corrected_p_and_counts_lost_runs() -> None:
    table = shown(sweep())
    assert cells(table, "fp32") == ["fp32", "0/3", "91.67", "reference", "±", "1.20"]
    expected = "a [b] 0/3 89.67 -2.00 [-4.48, 0.48] 0.15 ± 0.67 3 pairs [-3.00, -1.00]"
    assert cells(table, "a [b]") == expected.split()
    caption = "Holm p: two-sided paired t-test, corrected for the 2 here"
    assert caption in " ".join(table.split())
    row = " ".join(cells(table, "e5m2"))
    assert row.startswith("e5m2 sums, no chunks 1/4 91.47 -0.20 ")
    assert " 1 failed ± 1.09 (3) 3 pairs " in row


def test_one_seed_has_dashes_for_what_it_cannot_tell() -> None:
    table = shown(sweep(seeds=1))
    assert cells(table, "fp32")[:4] == ["fp32", "0/1", "90.00", "reference"]
    assert cells(table, "a [b]")[:7] == ["a", "[b]", "0/1", "89.00", "-1.00", "-", "-"]
    assert "t-test" not in table


def test_a_difference_may_be_a_zero_without_a_sign_or_without_common_seeds() -> None:
    results = [
        finished(arm, s, x) for s in range(2) for arm, x in (("fp32", 0.5), ("a", 0.5 - 1e-9))
    ]
    assert cells(shown(results), "a ")[:6] == ["a", "0/2", "50.00", "0.00", "-", "0.5"]
    results = [*(r for r in sweep() if r.arm == "fp32"), finished("a", 9, 0.5)]
    assert cells(shown(results), "a ")[:6] == ["a", "0/1", "50.00", "no", "pairs", "-"]


def test_a_figure_that_is_no_percentage_and_a_table_without_a_reference() -> None:
    table = shown(sweep(), LOSS)
    assert "lower is better" in table
    assert cells(table, "a [b]")[:5] == ["a", "[b]", "0/3", "0.1033", "+0.0200"]
    table = text(sweep_table(summarise(table_of(sweep()), "test_accuracy"), ACCURACY), 100)
    assert "difference" not in table and "Holm" not in table
    assert "91.67 ± 1.20" in table


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("metric", [ACCURACY, LOSS], ids=lambda metric: metric.field)
def test_the_table_is_whole_in_a_narrow_terminal(width: int, metric: Metric) -> None:
    places = [{"data": "digits", "width": w} for w in (4, 8)]
    table = shown(sweep(*places), metric, width)
    assert max(map(len, table.splitlines())) <= width
    assert "…" not in table
    assert "width" in table and "data" not in table
    for whole in ("reference", "3 pairs", "1 failed", "Holm p", "difference", "t interval"):
        assert whole in table


SWEEPS = {
    "rows": sweep(),
    "one seed": sweep(seeds=1),
    "numbers": sweep(*[{"width": w} for w in (4, 8, 32)]),
    "words": sweep({"data": "digits"}, {"data": "mnist1d"}),
    "two axes": sweep(*[{"width": w, "data": d} for w in (4, 8) for d in ("digits", "text")]),
}


@pytest.mark.parametrize("name", ["rows", "numbers"])
def test_a_picture_without_a_reference_has_one_panel(name: str) -> None:
    cells = table_of(SWEEPS[name])
    assert len(plot_sweep(cells, summarise(cells, "loss"), LOSS).axes) == 1


def test_a_picture_of_no_figures_is_refused() -> None:
    failed = table_of([Run("a", {}, 0, "failed")])
    with pytest.raises(ValueError, match="at least one result with a finite test_accuracy, got no"):
        plot_sweep(failed, summarise(failed, "test_accuracy"), ACCURACY)


def costed() -> list[Run]:
    """Three seeds each of fp32 without a cost, two ratios of one order, and an arm by itself."""
    arms = {"fp32": (0.95, None), "ratio 0.4": (0.94, 0.4), "ratio 0.8": (0.9, 0.75)}
    arms |= {"uniform": (0.85, 0.9)}
    return [
        finished(arm, seed, figure + seed / 100,
                 **({} if cost is None else {"bit_ratio": cost + seed / 50}))
        for arm, (figure, cost) in arms.items() for seed in range(3)
    ]  # fmt: skip


def against(results: list[Run], field: str = "bit_ratio") -> Any:
    cells = table_of(results)
    summary = summarise(cells, "test_accuracy", reference="fp32")
    return plot_sweep(cells, summary, ACCURACY, against=field)


def test_means_over_the_means_of_the_field_have_intervals() -> None:
    results = costed()
    # One run of an arm lacks the field.
    results += [
        finished("own", seed, 0.8, **({"bit_ratio": 0.5} if seed else {})) for seed in (0, 1)
    ]
    (axes,) = against(results).axes
    handles, labels = axes.get_legend_handles_labels()
    marks = dict(zip(labels, handles, strict=True))
    assert set(marks) == {"fp32", "ratio", "uniform", "own"}  # fp32 ends in a number, but is alone
    line, _, (bars,) = marks["ratio"].lines
    assert list(line.get_xdata()) == pytest.approx([0.42, 0.77])
    assert list(line.get_ydata()) == pytest.approx([95.0, 91.0])
    summary = summarise(table_of(results), "test_accuracy", reference="fp32").set_index("arm")
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    for arm, found_ends in zip(("ratio 0.4", "ratio 0.8"), ends, strict=True):
        assert found_ends == pytest.approx([100 * summary.loc[arm, x] for x in ("low", "high")])
    # Arms that lack the field are lines across, black for the one that others are compared with.
    assert marks["fp32"].get_color() == "black" and list(marks["fp32"].get_xdata()) == [0, 1]
    assert list(marks["own"].get_xdata()) == [0, 1]
    assert axes.get_xlabel() == "bit ratio"


def test_another_field_and_axes_that_vary_are_refused() -> None:
    with pytest.raises(ValueError, match="one of test_accuracy, bit_ratio, got 'bits'"):
        against(costed(), "bits")
    results = [finished("fp32", s, 0.5, {"lr": lr}) for lr in (1, 2) for s in (0, 1)]
    with pytest.raises(ValueError, match="expected arms alone, got axes too: lr"):
        against(results)


def test_tiny_differences_have_plain_numbers(tmp_path: Path) -> None:
    near = table_of([
        finished(arm, seed, 0.9 + seed / 10 + shift)
        for seed in range(2)
        for arm, shift in (("fp32", 0.0), ("a", 2e-9 * (1 + seed)))
    ])  # fmt: skip
    figure = plot_sweep(near, summarise(near, "test_accuracy", reference="fp32"), ACCURACY)
    save_figure(figure, tmp_path / "a.png")
    for axes in figure.axes:
        labels = [
            label.get_text().replace("\N{MINUS SIGN}", "-") for label in axes.get_xticklabels()
        ]
        assert all(re.fullmatch(r"-?\d+(\.\d+)?", label) for label in labels), labels
        assert axes.xaxis.get_offset_text().get_text() == ""
    assert any(label.startswith("0.0000") for label in labels)

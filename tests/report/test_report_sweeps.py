"""Tables, files and pictures of sweeps."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from lpkernels.experiments.sweeps.results import Result
from lpkernels.experiments.sweeps.statistics import ArmSummary, summarise
from lpkernels.experiments.workloads.workload import ACCURACY, Metric
from lpkernels.report.sweeps import plot_sweep, sweep_table, write_csv

LOSS = Metric("loss", "test loss", higher=False, percent=False)
Axes = tuple[tuple[str, Any], ...]


def sweep(*places: Axes, seeds: int = 3) -> list[Result]:
    """fp32, a worse arm, and an arm with one run diverged without a figure and one failed."""
    found = []
    for axes in places or ((),):
        for seed in range(seeds):
            figure = 0.9 + seed**2 / 100
            worse, lost = figure - 0.01 * (seed + 1), figure - 0.002 * seed
            for arm, value in (("fp32", figure), ("a [b]", worse), ("e5m2 sums, no chunks", lost)):
                values = {"test_accuracy": value, "loss": 1 - value}
                found.append(Result(arm, axes, seed, "finished", values))
        found.append(Result("e5m2 sums, no chunks", axes, seeds, "diverged", {"loss": None}))
        found.append(Result("e5m2 sums, no chunks", axes, seeds + 1, "failed"))
    return found


def text(table: Table, width: int = 100) -> str:
    console = Console(width=width, record=True)
    console.print(table)
    return console.export_text()


def shown(results: list[Result], metric: Metric = ACCURACY, width: int = 100) -> str:
    summaries = summarise(results, metric.field, reference="fp32")
    return text(sweep_table(summaries, metric, title="title"), width)


def cells(table: str, start: str) -> list[str]:
    """The words of the row that starts with `start`, and of the line below it."""
    lines = table.splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith(start))
    return " ".join(lines[at : at + 2]).split()


def test_a_row_has_the_mean_the_difference_both_intervals_and_a_corrected_p() -> None:
    table = shown(sweep())
    assert cells(table, "fp32") == ["fp32", "0/3", "91.67", "reference", "±", "1.20"]
    expected = "a [b] 0/3 89.67 -2.00 [-4.48, 0.48] 0.148 ± 0.67 3 pairs [-3.00, -1.00]"
    assert cells(table, "a [b]") == expected.split()
    assert "Holm p: two-sided paired t-test, corrected for the 2 in this table" in " ".join(
        table.split()
    )


def test_runs_that_diverged_or_failed_are_counted() -> None:
    row = " ".join(cells(shown(sweep()), "e5m2"))
    assert row.startswith("e5m2 sums, no chunks 1/4 91.47 -0.20 ")
    assert " 1 failed ± 1.09 (3) 3 pairs " in row


def test_one_seed_has_dashes_for_what_it_cannot_tell() -> None:
    table = shown(sweep(seeds=1))
    assert cells(table, "fp32")[:4] == ["fp32", "0/1", "90.00", "reference"]
    assert cells(table, "a [b]")[:7] == ["a", "[b]", "0/1", "89.00", "-1.00", "-", "-"]
    assert "t-test" not in table


def test_a_difference_that_rounds_to_zero_has_no_sign() -> None:
    results = [Result("fp32", (), s, "finished", {"test_accuracy": 0.5}) for s in range(2)]
    results += [Result("a", (), s, "finished", {"test_accuracy": 0.5 - 1e-9}) for s in range(2)]
    assert cells(shown(results), "a ")[:6] == ["a", "0/2", "50.00", "0.00", "-", "0.500"]


def test_arms_without_common_seeds_say_so() -> None:
    results = [r for r in sweep() if r.arm == "fp32"]
    results.append(Result("a", (), 9, "finished", {"test_accuracy": 0.5}))
    assert cells(shown(results), "a ")[:6] == ["a", "0/1", "50.00", "no", "pairs", "-"]


def test_a_figure_that_is_no_percentage_has_two_digits_of_its_error() -> None:
    table = shown(sweep(), LOSS)
    assert "lower is better" in table
    assert cells(table, "a [b]")[:5] == ["a", "[b]", "0/3", "0.1033", "+0.0200"]


def test_without_a_reference_there_are_no_differences() -> None:
    table = text(sweep_table(summarise(sweep(), "test_accuracy"), ACCURACY))
    assert "difference" not in table and "Holm" not in table
    assert "91.67 ± 1.20" in table


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("metric", [ACCURACY, LOSS], ids=["percent", "loss"])
def test_the_table_is_whole_in_a_narrow_terminal(width: int, metric: Metric) -> None:
    places = [(("data", "digits"), ("width", w)) for w in (4, 8)]
    table = shown(sweep(*places), metric, width)
    assert max(map(len, table.splitlines())) <= width
    assert "…" not in table
    assert "width" in table and "data" not in table
    for whole in ("reference", "3 pairs", "1 failed", "Holm p", "difference", "t interval"):
        assert whole in table


def test_the_file_has_plain_numbers_and_empty_cells_for_none(tmp_path: Path) -> None:
    summaries = summarise(
        sweep((("width", 4),), (("width", 8),)), "test_accuracy", reference="fp32"
    )
    path = write_csv(summaries, tmp_path / "deep" / "sweep.csv")
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["width"]) for row in rows[2:4]] == [
        ("e5m2 sums, no chunks", "4"),
        ("fp32", "8"),
    ]
    lost = rows[2]
    counts = ("seeds", "finished", "diverged", "failed", "figures")
    assert [lost[name] for name in counts] == ["5", "3", "1", "1", "3"]
    assert float(lost["mean"]) == summaries[2].mean
    assert summaries[2].difference is not None
    assert float(lost["p_holm"]) == summaries[2].difference.p_holm
    assert [rows[0][name] for name in ("reference", "pairs", "p_holm")] == ["", "", ""]


SWEEPS = {
    "rows": sweep(),
    "one seed": sweep(seeds=1),
    "numbers": sweep(*[(("width", w),) for w in (4, 8, 32)]),
    "words": sweep((("data", "digits"),), (("data", "mnist1d"),)),
    "one number, written twice": sweep((("width", 4),), (("width", 4.0),)),
    "two axes": sweep(*[(("width", w), ("data", d)) for w in (4, 8) for d in ("digits", "text")]),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_the_same_records_give_the_same_picture(name: str, tmp_path: Path) -> None:
    results = SWEEPS[name]
    summaries = summarise(results, "test_accuracy", reference="fp32", resamples=50)
    pictures = [
        plot_sweep(found, summaries, ACCURACY, tmp_path / "deep" / f"{i}.png", title="t")
        for i, found in enumerate((results, results[::-1]))
    ]
    first, second = (path.read_bytes() for path in pictures)
    assert first.startswith(b"\x89PNG")
    assert first == second
    assert b"Software" not in first


@pytest.mark.parametrize("name", ["rows", "numbers"])
def test_a_picture_without_a_reference_has_one_panel(name: str, tmp_path: Path) -> None:
    summaries = summarise(SWEEPS[name], "loss")
    svg = plot_sweep(SWEEPS[name], summaries, LOSS, tmp_path / "a.svg").read_text()
    assert 'id="axes_1"' in svg and 'id="axes_2"' not in svg


def test_a_picture_of_no_figures_is_refused(tmp_path: Path) -> None:
    failed = [Result("a", (), 0, "failed")]
    with pytest.raises(ValueError, match="at least one result with a finite test_accuracy, got no"):
        plot_sweep(failed, summarise(failed, "test_accuracy"), ACCURACY, tmp_path / "a.png")


def test_names_that_a_spreadsheet_would_compute_are_quoted(tmp_path: Path) -> None:
    def named(summary: ArmSummary, arm: str) -> ArmSummary:
        return dataclasses.replace(summary, arm=arm, axes=(("@axis", -1), ("lr", "+1")))

    arms = ("=1+1", "+a", "-a", "@a", "a=1")
    (first, *_) = summarise(sweep(), "test_accuracy")
    path = write_csv([named(first, arm) for arm in arms], tmp_path / "a.csv")
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["arm"] for row in rows] == ["'=1+1", "'+a", "'-a", "'@a", "a=1"]
    assert rows[0]["'@axis"] == "-1" and rows[0]["lr"] == "'+1"

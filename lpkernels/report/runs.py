"""Runs as a table and as curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from lpkernels.report.figures import finish, new_figure, plain_numbers, save_figure, whole_numbers
from lpkernels.report.tables import make_table

if TYPE_CHECKING:
    from lpkernels.experiments.records import Run
    from lpkernels.experiments.workloads.workload import Metric

# The fields in every record of an epoch beside train_... and test_...; all others are the
# callbacks'.
_COMMON = {"type", "epoch", "lr", "updates", "skipped_steps", "seconds"}


def summary(runs: Sequence[Run], *, title: str = "") -> Table:
    """One row per run, the figures after its last epoch.

    A column for the metric of each workload among the runs, and one for each field that the
    callbacks of a run add to its records.
    """
    metrics = list(dict.fromkeys(run.metric for run in runs))
    extra = list(dict.fromkeys(name for run in runs for name in _callback_fields(run)))
    figures = [*(metric.label for metric in metrics), "train loss", "epochs", "skipped steps"]
    names = [*figures, "seconds", *(name.replace("_", " ") for name in extra)]
    rows = []
    for run in runs:
        last = run.epochs[-1] if run.epochs else {}
        cells = [_text(last.get(metric.field), metric) for metric in metrics]
        cells += [*_figures(run), *(str(last.get(name, "-")) for name in extra)]
        rows.append([run.name, *cells, str(run.header["accumulator"])])
    # Two lines each: the table fits a terminal of 80 columns.
    columns = ["run", *(name.replace(" ", "\n", 1) for name in names), "accumulator"]
    return make_table(columns, rows, words=("run", "accumulator"), title=title)


def _callback_fields(run: Run) -> list[str]:
    """The fields of the last record that the run's callbacks added."""
    last = run.epochs[-1] if run.epochs else {}
    return [n for n in last if n not in _COMMON and not n.startswith(("train_", "test_"))]


def _text(value: float | None, metric: Metric) -> str:
    """A figure as tables show it: 99.15%, 1.8342, or - for none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.2%}" if metric.percent else f"{value:.4f}"


def _figures(run: Run) -> list[str]:
    planned = run.config.epochs
    if not run.epochs:
        return ["-", f"0/{planned}", "-", "-"]
    done = str(planned) if run.finished else f"{len(run.epochs)}/{planned}"
    skipped = sum(int(epoch["skipped_steps"]) for epoch in run.epochs)
    loss = run.curve("train_loss")[-1]
    text = f"{loss:.4f}" if math.isfinite(loss) else "not finite"
    return [text, done, str(skipped), f"{run.seconds:.1f}"]


def plot_curves(runs: Sequence[Run], path: str | Path, *, title: str = "") -> Path:
    """Draws the metric and the training loss per epoch, a curve per run, into `path`.

    A curve is called as its run is, with its forward accumulator.

    The metric is the first run's; a run without that figure has no curve of it.

    Raises: ValueError: no run has a finished epoch, or matplotlib does not write files with that
        ending.
    """
    runs = [run for run in runs if run.epochs]
    if not runs:
        raise ValueError("plot_curves: expected at least one run with a finished epoch, got none")
    metric, figure = runs[0].metric, new_figure((9.5, 4.0))
    figures, loss = figure.subplots(1, 2)
    for run in runs:
        epochs = [record["epoch"] for record in run.epochs]
        loss.plot(epochs, run.curve("train_loss"), marker=".")
        if metric.field in run.epochs[0]:
            values = [(100 if metric.percent else 1) * value for value in run.curve(metric.field)]
            label = f"{run.name} ({run.header['accumulator']})"
            figures.plot(epochs, values, marker=".", label=label)
    finish(figures, xlabel="epoch", ylabel=metric.label + " (%)" * metric.percent)
    finish(loss, xlabel="epoch", ylabel="training loss", yscale="log")
    for axes in (figures, loss):
        whole_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
    return save_figure(figure, path, title, dpi=130)

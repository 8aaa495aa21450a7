"""Runs as a table and as curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lpkernels.experiments.records import figure_names, table_of
from lpkernels.report.figures import finish, panels, whole_numbers
from lpkernels.report.tables import make_table

if TYPE_CHECKING:
    from lpkernels.experiments.records import Run
    from lpkernels.experiments.workloads.workload import Metric

# The fields in every record of an epoch beside train_... and test_...; all others are the
# callbacks'.
_COMMON = {"epoch", "lr", "updates", "skipped_steps", "seconds"}


def summary(runs: Sequence[Run], *, title: str = "") -> Table:
    """One row per run, the figures after its last epoch.

    A column for the metric of each workload among the runs, and one for each field that the
    callbacks of a run add to its records.
    """
    metrics, table = list(dict.fromkeys(run.metric for run in runs)), table_of(runs)
    extra = [
        name
        for name in figure_names(table)
        if name.removesuffix("_figure") not in _COMMON and not name.startswith(("train_", "test_"))
    ]
    figures = [*(metric.label for metric in metrics), "train loss", "epochs", "skipped steps"]
    names = [*figures, "seconds", *(name.replace("_", " ") for name in extra)]
    rows = []
    for run, row in zip(runs, table.to_dict("records"), strict=True):
        cells = [_text(row.get(metric.field), metric) for metric in metrics]
        cells += [*_figures(run), *(_text(row[name]) for name in extra)]
        rows.append([run.arm, *cells, str(run.header["accumulator"])])
    # Two lines each: the table fits a terminal of 80 columns.
    columns = ["run", *(name.replace(" ", "\n", 1) for name in names), "accumulator"]
    return make_table(columns, rows, words=("run", "accumulator"), title=title)


def _text(value: Any, metric: Metric | None = None) -> str:
    """A figure as tables show it: 99.15%, 1.8342, or - for none; without a metric as it is."""
    if value is None or value != value:
        return "-"
    if metric is None:
        return str(value)
    return f"{value:.2%}" if metric.percent else f"{value:.4f}"


def _figures(run: Run) -> list[str]:
    planned = run.header["config"]["epochs"]
    if not run.epochs:
        return ["-", f"0/{planned}", "-", "-"]
    done = str(planned) if run.finished else f"{len(run.epochs)}/{planned}"
    skipped = sum(int(epoch["skipped_steps"]) for epoch in run.epochs)
    loss = run.epochs[-1]["train_loss"]
    loss_text = "not finite" if loss is None else f"{loss:.4f}"
    return [loss_text, done, str(skipped), f"{run.seconds:.1f}"]


def plot_curves(runs: Sequence[Run], fields: Sequence[str] = ()) -> Any:
    """A figure of the runs' epochs: a panel for each field, a curve for each run that has it, a
    colour for each name and forward accumulator.

    fields: of the records; (): the first run's metric, and the training loss.

    Raises: ValueError: no run has a finished epoch.
    """
    runs = [run for run in runs if run.epochs]
    if not runs:
        raise ValueError("plot_curves: expected at least one run with a finished epoch, got none")
    metric, table = runs[0].metric, table_of(runs, epochs=True)
    labels = [f"{run.arm} ({run.header['accumulator']})" for run in runs]
    colours = {label: f"C{place % 10}" for place, label in enumerate(dict.fromkeys(labels))}
    fields = fields or [metric.field, "train_loss"]
    grid = panels(len(fields), (4.7, 3.6))
    for axes, field in zip(grid, fields, strict=True):
        column = f"{field}_figure" if f"{field}_figure" in table else field
        percent = field == metric.field and metric.percent
        for number, epochs in table.groupby("run"):
            label = labels[number]
            values = (100 if percent else 1) * epochs[column].astype(float)
            shown = label if labels.index(label) == number else None
            axes.plot(epochs["epoch"], values, marker=".", color=colours[label], label=shown)
        name = metric.label if field == metric.field else field.replace("_", " ")
        scale = "log" if field.endswith("_loss") else "linear"
        legend = "" if axes is grid[0] else None
        finish(axes, legend=legend, xlabel="epoch", ylabel=name + " (%)" * percent, yscale=scale)
        whole_numbers(axes.xaxis)
    return grid[0].figure

"""Runs as a table and as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

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
    metrics = list(dict.fromkeys(run.metric for run in runs))
    lasts = [run.values for run in runs]
    extra = [
        name
        for name in dict.fromkeys(name for last in lasts for name in last)
        if name not in _COMMON and not name.startswith(("train_", "test_"))
    ]
    figures = [*(metric.label for metric in metrics), "train loss", "epochs", "skipped steps"]
    names = [*figures, "seconds", *(name.replace("_", " ") for name in extra)]
    rows = []
    for run, last in zip(runs, lasts, strict=True):
        cells = [_text(last.get(metric.field), metric) for metric in metrics]
        cells += [*_figures(run), *(str(last.get(name, "-")) for name in extra)]
        rows.append([run.arm, *cells, str(run.header["accumulator"])])
    # Two lines each: the table fits a terminal of 80 columns.
    columns = ["run", *(name.replace(" ", "\n", 1) for name in names), "accumulator"]
    return make_table(columns, rows, words=("run", "accumulator"), title=title)


def _text(value: float | None, metric: Metric) -> str:
    """A figure as tables show it: 99.15%, 1.8342, or - for none."""
    if value is None:
        return "-"
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


def by_name(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by their name and their forward accumulator."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(f"{run.arm} ({run.header['accumulator']})", []).append(run)
    return groups


def plot_curves(runs: Mapping[str, Sequence[Run]], fields: Sequence[str] = ()) -> Any:
    """A figure of the runs' epochs: a panel for each field, a curve for each run that has it, a
    colour for each label of `runs`.

    fields: of the records; (): the first run's metric, and the training loss.

    Raises: ValueError: no run has a finished epoch.
    """
    groups = {label: [run for run in group if run.epochs] for label, group in runs.items()}
    first = next((group[0] for group in groups.values() if group), None)
    if first is None:
        raise ValueError("plot_curves: expected at least one run with a finished epoch, got none")
    fields = fields or [first.metric.field, "train_loss"]
    grid = panels(len(fields), (4.7, 3.6))
    for axes, field in zip(grid, fields, strict=True):
        percent = field == first.metric.field and first.metric.percent
        for colour, (label, group) in enumerate(groups.items()):
            for run in group:
                curve = run.curve(field)
                values = [(100 if percent else 1) * value for value in curve.values()]
                style = {"color": f"C{colour % 10}", "label": label if run is group[0] else None}
                axes.plot(list(curve), values, marker=".", **style)
        name = first.metric.label if field == first.metric.field else field.replace("_", " ")
        scale = "log" if field.endswith("_loss") else "linear"
        legend = "" if axes is grid[0] else None
        finish(axes, legend=legend, xlabel="epoch", ylabel=name + " (%)" * percent, yscale=scale)
        whole_numbers(axes.xaxis)
    return grid[0].figure

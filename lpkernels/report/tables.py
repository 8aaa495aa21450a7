"""Tables for the terminal, from result records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from lpkernels.experiments.records import Run
    from lpkernels.experiments.workloads.workload import Metric

# The fields in every record of an epoch beside train_... and test_...; all others are of callbacks.
_COMMON = {"type", "epoch", "lr", "updates", "skipped_steps", "seconds"}


def add_numbers(table: Table, *names: str) -> None:
    """Adds columns of numbers, which stand at the right of their cells."""
    for name in names:
        table.add_column(name, justify="right")


def summary(runs: Sequence[Run], *, title: str = "") -> Table:
    """One row per run, the figures after its last epoch.

    A column for the metric of each workload among the runs, and one for each field that the
    callbacks of a run add to its records.
    """
    metrics = list(dict.fromkeys(run.metric for run in runs))
    extra = list(dict.fromkeys(name for run in runs for name in callback_fields(run)))
    table = Table("run", title=title or None)
    # two lines each: the table fits a terminal of 80 columns
    labels = [_two_lines(metric.label) for metric in metrics]
    add_numbers(table, *labels, "train\nloss", "epochs", "skipped\nsteps", "seconds")
    add_numbers(table, *(_two_lines(name.replace("_", " ")) for name in extra))
    table.add_column("accumulator", no_wrap=True)
    for run in runs:
        figures = [value_text(last_value(run, metric.field), metric) for metric in metrics]
        added = [str(run.epochs[-1].get(name, "-")) if run.epochs else "-" for name in extra]
        table.add_row(run.name, *figures, *_figures(run), *added, str(run.header["accumulator"]))
    return table


def callback_fields(run: Run) -> list[str]:
    """The fields of the last record that the run's callbacks added."""
    last = run.epochs[-1] if run.epochs else {}
    return [n for n in last if n not in _COMMON and not n.startswith(("train_", "test_"))]


def last_value(run: Run, field: str) -> float | None:
    """The value of a field after the last epoch; None where there is none or it is not finite."""
    return run.epochs[-1].get(field) if run.epochs else None


def value_text(value: float | None, metric: Metric) -> str:
    """A figure as tables show it: 99.15%, 1.8342, or - for none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.2%}" if metric.percent else f"{value:.4f}"


def _two_lines(label: str) -> str:
    first, _, rest = label.partition(" ")
    return f"{first}\n{rest}" if rest else first


def _figures(run: Run) -> list[str]:
    planned = run.config.epochs
    if not run.epochs:
        return ["-", f"0/{planned}", "-", "-"]
    done = str(planned) if run.finished else f"{len(run.epochs)}/{planned}"
    skipped = sum(int(epoch["skipped_steps"]) for epoch in run.epochs)
    loss = run.curve("train_loss")[-1]
    return [
        f"{loss:.4f}" if math.isfinite(loss) else "not finite",
        done,
        str(skipped),
        f"{run.seconds:.1f}",
    ]

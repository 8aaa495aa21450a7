"""Pictures from result records. matplotlib is imported when one is drawn, and needs no display."""

from collections.abc import Sequence
from pathlib import Path

from lpkernels.experiments.records import Run
from lpkernels.report.figures import new_figure, plain_numbers, save_figure, whole_numbers


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
    figure = new_figure((9.5, 4.0))
    metric = runs[0].metric
    scale = 100 if metric.percent else 1
    accuracy, loss = figure.subplots(1, 2)
    for run in runs:
        epochs = [record["epoch"] for record in run.epochs]
        if metric.field in run.epochs[0]:
            values = [scale * value for value in run.curve(metric.field)]
            label = f"{run.name} ({run.header['accumulator']})"
            accuracy.plot(epochs, values, marker=".", label=label)
        loss.plot(epochs, run.curve("train_loss"), marker=".")
    accuracy.set(xlabel="epoch", ylabel=metric.label + " (%)" * metric.percent)
    loss.set(xlabel="epoch", ylabel="training loss", yscale="log")
    for axes in (accuracy, loss):
        axes.grid(alpha=0.3)
        whole_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
    accuracy.legend(fontsize="small")
    return save_figure(figure, path, title, dpi=130)

"""Frontiers of memory and error: tables, and pictures of matrices, frontiers and choices."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lpkernels.experiments.sweeps.frontiers.choosing import Frontier, best
from lpkernels.report.figures import new_figure, save_figure
from lpkernels.report.sizes import bytes_text
from lpkernels.report.tables import add_numbers
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace, pareto_front
from lpkernels.techniques.pareto.evaluation import FIGURES

# An axis with more marks than this names no tasks or configurations.
_MOST_NAMES = 40
# This many panels stand side by side at most.
_ACROSS = 3
#: The names of ways of choosing in pictures; other ways have their own names.
LABELS = {
    "greedy": "D-optimal",
    "column_mean": "mean of the other tasks",
    "cold_start": "cold start",
}


def frontier_table(frontier: Frontier, space: FormatSpace, *, title: str = "") -> Table:
    """The configurations on the frontier, the cheapest first."""
    caption = {
        "measured": "every configuration is measured",
        "known": "predicted from other tasks",
        "alone": "predicted from the task's own measurements",
    }[frontier.how]
    share = f"{frontier.band.level:.0%}"
    table = Table(title=title or None, caption=f"{caption}; band: {share} of the draws")
    add_numbers(table, "memory", "error", "band")
    table.add_column("")
    table.add_column("configuration")
    for index in pareto_front(frontier.memory, frontier.predicted):
        known = not np.isnan(frontier.measured[index])
        low, high = frontier.band.error_low[index], frontier.band.error_high[index]
        table.add_row(
            bytes_text(frontier.memory[index]),
            f"{frontier.predicted[index]:.4f}",
            "" if known else f"{low:.4f} .. {high:.4f}",
            "measured" if known else "predicted",
            space.name(int(index)),
        )
    return table


def matrix_table(matrix: ErrorMatrix, *, title: str = "") -> Table:
    """A table of each task's measurements, with the least and the largest error."""
    table = Table("task", title=title or None)
    add_numbers(table, "measured", "of", "least error", "largest")
    for task, errors in zip(matrix.tasks, matrix.mean, strict=True):
        seen = errors[~np.isnan(errors)]
        ends = (f"{seen.min():.4f}", f"{seen.max():.4f}") if len(seen) else ("", "")
        table.add_row(task, str(len(seen)), str(len(errors)), *ends)
    return table


def choices_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each way of choosing and number of measurements: the mean of each figure over tasks
    and its standard error. rows: as `averages` makes them."""
    table = Table("way")
    add_numbers(table, "measured", *FIGURES)
    for row in rows:
        found = [(row[name], row[f"{name}_error"]) for name in FIGURES]
        cells = ["" if mean is None else f"{mean:.4f} ± {error or 0:.4f}" for mean, error in found]
        table.add_row(LABELS.get(row["method"], row["method"]), str(row["count"]), *cells)
    return table


def plot_error_matrix(
    matrices: Mapping[str, ErrorMatrix], path: str | Path, *, title: str = ""
) -> Path:
    """Draws errors of tasks x configurations as colours, a panel for each label; white: missing.

    Raises: ValueError: no error at all, or a file of a kind that matplotlib does not know.
    """
    _check_some("plot_error_matrix", [matrix.mean for matrix in matrices.values()])
    sizes = [matrix.mean.shape for matrix in matrices.values()]
    width = sum(3.0 + 0.11 * columns for _, columns in sizes)
    height = 2.2 + 0.14 * max(rows for rows, _ in sizes)
    figure = new_figure((width, height))
    panels = figure.subplots(1, len(matrices), squeeze=False)[0]
    top = max(float(np.nanmax(matrix.mean)) for matrix in matrices.values())
    for axes, (label, matrix) in zip(panels, matrices.items(), strict=True):
        drawn = axes.imshow(matrix.mean, aspect="auto", vmin=0, vmax=top, interpolation="nearest")
        _names(axes.set_yticks, axes.set_ylabel, matrix.tasks, "task", 0)
        _names(axes.set_xticks, axes.set_xlabel, _short(matrix.names), "configuration", 90)
        axes.set_title(label, fontsize="small")
    figure.colorbar(drawn, ax=list(panels), label="error")
    return save_figure(figure, path, title)


def _short(names: Sequence[str]) -> list[str]:
    """Names of configurations for pictures: all formats of a study saturate."""
    return [name.replace("_sat", "") for name in names]


def _names(ticks: Any, label: Any, names: Sequence[str], what: str, rotation: int) -> None:
    if len(names) <= _MOST_NAMES:
        ticks(range(len(names)), names, rotation=rotation, fontsize=5)
    label(what)


def plot_singular_values(
    matrices: Mapping[str, ErrorMatrix], path: str | Path, *, title: str = ""
) -> Path:
    """Draws the singular values of error matrices, as shares of the largest; a line for each label.

    Tasks that lack an error are left out: completing a matrix would choose its singular values.

    Raises: ValueError: a matrix without a whole row, none at all, or a file of a kind that
        matplotlib does not know.
    """
    _check_some("plot_singular_values", [matrix.mean for matrix in matrices.values()])
    figure = new_figure((6.0, 4.0))
    axes = figure.subplots()
    for label, matrix in matrices.items():
        whole = matrix.mean[~np.isnan(matrix.mean).any(axis=1)]
        if not len(whole):
            raise ValueError(
                f"plot_singular_values: {label}: expected a task with all errors, got none; "
                "`lpkernels frontier run --all` measures them"
            )
        values = np.linalg.svd(whole, compute_uv=False)
        text = f"{label}, {len(whole)} tasks"
        axes.plot(range(1, len(values) + 1), values / values[0], "o-", ms=3, lw=1, label=text)
    axes.set(xlabel="number", ylabel="singular value over the first", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return save_figure(figure, path, title)


def plot_frontiers(
    frontiers: Mapping[str, Frontier],
    path: str | Path,
    *,
    truth: Mapping[str, np.ndarray] | None = None,
    cap: float | None = None,
    title: str = "",
) -> Path:
    """Draws frontiers of memory and error, a panel for each label.

    A panel shows the predicted frontier with its band and the names of its configurations, the
    measurements as points, the true frontier where it is known, and the cap with the configuration
    that it leaves to choose, the one of least error below it.

    truth: (configurations,) errors by label, where they are known; NaN is left out.

    Raises: ValueError: no frontier, or a file of a kind that matplotlib does not know.
    """
    if not frontiers:
        raise ValueError("plot_frontiers: expected at least one frontier, got none")
    across = min(_ACROSS, len(frontiers))
    down = -(-len(frontiers) // across)
    figure = new_figure((4.4 * across + 0.6, 3.4 * down + 0.4))
    panels = figure.subplots(down, across, squeeze=False)
    for axes, (label, frontier) in zip(panels.flat, frontiers.items(), strict=False):
        _draw_frontier(axes, frontier, (truth or {}).get(label), cap)
        axes.set_title(label, fontsize="small")
    for axes in panels.flat[len(frontiers) :]:
        axes.set_visible(False)
    panels.flat[0].legend(fontsize="x-small")
    return save_figure(figure, path, title)


def _draw_frontier(
    axes: Any, frontier: Frontier, truth: np.ndarray | None, cap: float | None
) -> None:
    band, unit = frontier.band, 1024.0
    at, every = band.memory / unit, frontier.memory / unit
    if frontier.how != "measured":
        axes.fill_between(at, band.low, band.high, step="post", alpha=0.25, lw=0, label="band")
    name = "frontier" if frontier.how == "measured" else "predicted frontier"
    axes.step(at, band.error, where="post", lw=1.5, label=name)
    if truth is not None:
        seen = ~np.isnan(truth)
        front = pareto_front(frontier.memory[seen], truth[seen])
        x, y = every[seen][front], truth[seen][front]
        ends = np.append(x, at[-1]), np.append(y, y[-1])
        axes.step(*ends, where="post", lw=1.2, ls="--", color="k", label="true frontier")
    axes.plot(every, frontier.measured, "o", ms=4, label="measured")
    chosen = None
    if cap is not None:
        axes.axvline(cap / unit, color="0.4", ls=":", label="cap")
        if cap >= frontier.memory.min():
            chosen = best(frontier, cap)
            style = {"ms": 10, "mfc": "none", "color": "C3", "ls": "", "label": "chosen"}
            axes.plot([every[chosen]], [frontier.predicted[chosen]], "o", **style)
    for index in pareto_front(frontier.memory, frontier.predicted) if frontier.names else ():
        style = {"fontsize": 5, "fontweight": "bold" if index == chosen else "normal"}
        place, text = (every[index], frontier.predicted[index]), _short(frontier.names)[index]
        axes.annotate(text, place, (2, 4), textcoords="offset points", rotation=55, **style)
    axes.set(xlabel="memory of a step, KiB", ylabel="error")
    axes.grid(alpha=0.3)


def plot_counts(
    studies: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, *, title: str = ""
) -> Path:
    """Draws how far off predictions are against the number of measurements, with standard errors, a
    line for each way of choosing; the noise of the seeds as a line across. A panel for each study.

    studies: rows as `averages` makes them, by label.

    Raises: ValueError: no row has an rmse, or matplotlib does not write files of that ending.
    """
    if not any(row.get("rmse") is not None for rows in studies.values() for row in rows):
        raise ValueError("plot_counts: expected rows with 'rmse', got none")
    figure = new_figure((4.8 * len(studies) + 0.6, 4.0))
    panels = figure.subplots(1, len(studies), squeeze=False, sharey=True)[0]
    for axes, (label, rows) in zip(panels, studies.items(), strict=True):
        for number, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
            own = [r for r in rows if r["method"] == method and r["rmse"] is not None]
            _draw_method(axes, method, own, f"C{number}")
        noise = [row["noise"] for row in rows if row.get("noise") is not None]
        if noise:
            axes.axhline(float(np.mean(noise)), color="0.5", ls=":", label="noise of the seeds")
        axes.set_title(label, fontsize="small")
        axes.set(xlabel="measurements", yscale="log")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("rmse")
    panels[0].legend(fontsize="x-small")
    return save_figure(figure, path, title)


def _draw_method(axes: Any, method: str, rows: Sequence[Mapping[str, Any]], colour: str) -> None:
    if not rows:
        return
    label = LABELS.get(method, method)
    means = [row["rmse"] for row in rows]
    spread = [row["rmse_error"] or 0.0 for row in rows]
    if len(rows) == 1 and rows[0]["count"] == 0:
        axes.axhline(means[0], color=colour, ls="--", lw=1.2, label=label)
        return
    counts = [row["count"] for row in rows]
    axes.errorbar(counts, means, spread, color=colour, marker="o", ms=3, lw=1.2, label=label)


def _check_some(function: str, matrices: Sequence[np.ndarray]) -> None:
    if not matrices or all(np.isnan(matrix).all() for matrix in matrices):
        raise ValueError(f"{function}: expected a matrix with at least one error, got none")

"""Frontiers of memory and error: tables, and pictures of matrices, frontiers and choices."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lpkernels.experiments.sweeps.frontiers.choosing import Frontier, best
from lpkernels.report.figures import finish, new_figure, panels, save_figure
from lpkernels.report.sizes import bytes_text
from lpkernels.report.tables import make_table
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace, pareto_front

# An axis with more marks than this names no tasks or configurations.
_MOST_NAMES = 40
# The names of ways of choosing in pictures; other ways have their own names.
_LABELS = {
    "greedy": "D-optimal",
    "column_mean": "mean of the other tasks",
    "cold_start": "cold start",
}


def frontier_table(frontier: Frontier, space: FormatSpace, *, title: str = "") -> Table:
    """The configurations on the frontier, the cheapest first."""
    source = {
        "measured": "every configuration is measured",
        "known": "predicted from other tasks",
        "alone": "predicted from the task's own measurements",
    }[frontier.how]
    rows = []
    for index in pareto_front(frontier.memory, frontier.predicted):
        measured = not np.isnan(frontier.measured[index])
        low, high = frontier.band.error_low[index], frontier.band.error_high[index]
        band = "" if measured else f"{low:.4f} .. {high:.4f}"
        size, error = bytes_text(frontier.memory[index]), f"{frontier.predicted[index]:.4f}"
        kind = "measured" if measured else "predicted"
        rows.append((size, error, band, kind, space.name(int(index))))
    columns = ("memory", "error", "band", "", "configuration")
    caption = f"{source}; band: {frontier.band.level:.0%} of the draws"
    return make_table(columns, rows, words=columns[3:], title=title, caption=caption)


def matrix_table(matrix: ErrorMatrix, *, title: str = "") -> Table:
    """A table of each task's measurements, with the least and the largest error."""
    rows = []
    for task, errors in zip(matrix.tasks, matrix.mean, strict=True):
        seen = errors[~np.isnan(errors)]
        ends = (f"{seen.min():.4f}", f"{seen.max():.4f}") if len(seen) else ("", "")
        rows.append((task, str(len(seen)), str(len(errors)), *ends))
    columns = ("task", "measured", "of", "least error", "largest")
    return make_table(columns, rows, words=columns[:1], title=title)


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
    grid = figure.subplots(1, len(matrices), squeeze=False)[0]
    top = max(float(np.nanmax(matrix.mean)) for matrix in matrices.values())
    for axes, (label, matrix) in zip(grid, matrices.items(), strict=True):
        drawn = axes.imshow(matrix.mean, aspect="auto", vmin=0, vmax=top, interpolation="nearest")
        _names(axes.set_yticks, axes.set_ylabel, matrix.tasks, "task", 0)
        _names(axes.set_xticks, axes.set_xlabel, _short(matrix.names), "configuration", 90)
        axes.set_title(label, fontsize="small")
    figure.colorbar(drawn, ax=list(grid), label="error")
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
    axes = new_figure((6.0, 4.0)).subplots()
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
    finish(axes, xlabel="number", ylabel="singular value over the first", yscale="log")
    return save_figure(axes.figure, path, title)


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
    grid = panels(len(frontiers), (4.4, 3.4), across=3)
    for axes, (label, frontier) in zip(grid, frontiers.items(), strict=True):
        _draw_frontier(axes, frontier, (truth or {}).get(label), cap)
        finish(axes, fontsize="x-small", xlabel="memory of a step, KiB", ylabel="error")
        axes.set_title(label, fontsize="small")
    return save_figure(grid[0].figure, path, title)


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


def plot_counts(
    studies: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, *, title: str = ""
) -> Path:
    """Draws how far off predictions are against the number of measurements, with standard errors, a
    line for each way of choosing; the noise of the seeds as a line across. A panel for each study.

    studies: the rows of `read_choices`, by label.

    Raises: ValueError: no row has an rmse, or matplotlib does not write files of that ending.
    """
    if not any(row.get("rmse") is not None for rows in studies.values() for row in rows):
        raise ValueError("plot_counts: expected rows with 'rmse', got none")
    grid = panels(len(studies), (4.8, 3.6), across=len(studies), sharey=True)
    for axes, (label, rows) in zip(grid, studies.items(), strict=True):
        for number, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
            own = [r for r in rows if r["method"] == method and r["rmse"] is not None]
            _draw_method(axes, method, own, f"C{number}")
        noise = [row["noise"] for row in rows if row.get("noise") is not None]
        if noise:
            axes.axhline(float(np.mean(noise)), color="0.5", ls=":", label="noise of the seeds")
        finish(axes, fontsize="x-small", xlabel="measurements", ylabel="rmse", yscale="log")
        axes.set_title(label, fontsize="small")
    return save_figure(grid[0].figure, path, title)


def _draw_method(axes: Any, method: str, rows: Sequence[Mapping[str, Any]], colour: str) -> None:
    if not rows:
        return
    label = _LABELS.get(method, method)
    means, spread = zip(*((row["rmse"], row["rmse_error"] or 0.0) for row in rows), strict=True)
    if len(rows) == 1 and rows[0]["count"] == 0:
        axes.axhline(means[0], color=colour, ls="--", lw=1.2, label=label)
        return
    counts = [row["count"] for row in rows]
    axes.errorbar(counts, means, spread, color=colour, marker="o", ms=3, lw=1.2, label=label)


def _check_some(function: str, matrices: Sequence[np.ndarray]) -> None:
    if not matrices or all(np.isnan(matrix).all() for matrix in matrices):
        raise ValueError(f"{function}: expected a matrix with at least one error, got none")

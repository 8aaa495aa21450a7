"""Frontiers of memory and error, as tables and as a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from lpkernels.experiments.sweeps.frontiers import Frontier
from lpkernels.report.figures import finish, panels
from lpkernels.report.tables import bytes_text, make_table
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace, choose, pareto_front


def frontier_table(frontier: Frontier, space: FormatSpace, *, title: str = "") -> Table:
    """The configurations on the frontier, the cheapest first."""
    whole = "every configuration is measured"
    source = whole if frontier.is_measured else "predicted from other tasks"
    rows = []
    for index in pareto_front(frontier.memory, frontier.predicted):
        measured = not np.isnan(frontier.measured[index])
        size, error = bytes_text(frontier.memory[index]), f"{frontier.predicted[index]:.4f}"
        kind = "measured" if measured else "predicted"
        rows.append((size, error, kind, space.names[index]))
    columns = ("memory", "error", "", "configuration")
    return make_table(columns, rows, words=columns[2:], title=title, caption=source)


def matrix_table(matrix: ErrorMatrix, *, title: str = "") -> Table:
    """A table of each task's measurements, with the least and the largest error."""
    rows = []
    for task, errors in zip(matrix.tasks, matrix.mean, strict=True):
        seen = errors[~np.isnan(errors)]
        ends = (f"{seen.min():.4f}", f"{seen.max():.4f}") if len(seen) else ("", "")
        rows.append((task, str(len(seen)), str(len(errors)), *ends))
    columns = ("task", "measured", "of", "least error", "largest")
    return make_table(columns, rows, words=columns[:1], title=title)


def plot_frontiers(
    frontiers: Mapping[str, Frontier], names: Sequence[str], *, cap: float | None = None
) -> Any:
    """A figure of frontiers of memory and error, a panel for each label.

    A panel shows the predicted frontier with the names of its configurations, the measurements as
    points, and the cap with the configuration of least error below it.

    names: of the configurations.
    """
    grid = panels(len(frontiers), (4.4, 3.4), across=3)
    for axes, (label, frontier) in zip(grid, frontiers.items(), strict=True):
        _draw_frontier(axes, frontier, names, cap)
        finish(axes, fontsize="x-small", xlabel="memory of a step, KiB", ylabel="error")
        axes.set_title(label, fontsize="small")
    return grid[0].figure


def _draw_frontier(axes: Any, frontier: Frontier, names: Sequence[str], cap: float | None) -> None:
    unit, front = 1024.0, pareto_front(frontier.memory, frontier.predicted)
    every = frontier.memory / unit
    # The last step goes on to the dearest configuration.
    at, errors = np.append(every[front], every.max()), frontier.predicted[[*front, front[-1]]]
    name = "frontier" if frontier.is_measured else "predicted frontier"
    axes.step(at, errors, where="post", lw=1.5, label=name)
    axes.plot(every, frontier.measured, "o", ms=4, label="measured")
    chosen = None
    if cap is not None:
        axes.axvline(cap / unit, color="0.4", ls=":", label="cap")
        if cap >= frontier.memory.min():
            chosen = choose(frontier.memory, frontier.predicted, cap)
            style = {"ms": 10, "mfc": "none", "color": "C3", "ls": "", "label": "chosen"}
            axes.plot([every[chosen]], [frontier.predicted[chosen]], "o", **style)
    for index in front:
        style = {"fontsize": 5, "fontweight": "bold" if index == chosen else "normal"}
        place = every[index], frontier.predicted[index]
        # All formats of a study saturate.
        text = names[index].replace("_sat", "")
        axes.annotate(text, place, (2, 4), textcoords="offset points", rotation=55, **style)

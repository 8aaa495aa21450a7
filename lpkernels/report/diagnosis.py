"""The table and the picture of a diagnosis: underflow and overflow, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lpkernels.report.figures import new_figure, save_figure
from lpkernels.report.tables import make_table
from lpkernels.techniques.loss_scaling import Report
from lpkernels.techniques.loss_scaling.rows import TensorRow

__all__ = ["plot_exponents"]

_CAPTION = (
    "count: elements; zeros: of all of them; < normal, < least: of those finite and not zero, "
    "below the format's least normal and least value; over: elements that it rounds beyond its "
    "largest; exponents: of the least and the largest number, without the loss scale"
)
_TEXTS = 3
# The limits of a format, and how they are drawn.
_LINES = {"least value": ":", "least normal": "--", "largest": "-"}
# Limits that are more than so many binades away from all numbers are not shown; numbers that are
# further below all limits stand in one column.
_NEAR = 16
# A row of a panel holds its name.
_INCHES_PER_ROW = 0.17


def diagnosis_table(report: Report, *, title: str = "") -> Table:
    """A table for rich's console, under `title`: a row for every tensor of each layer of a report.

    Args: report: of `lpkernels.techniques.loss_scaling.diagnose`.
    """
    head, *lines = report.cells()
    # Each head has two lines, so that the table fits a terminal of 80 columns.
    columns = [column.replace(" ", "\n") for column in head]
    layers = [line[0] for line in lines]
    rows = [
        ("" if layer == before else layer, *line[1:])
        for layer, before, line in zip(layers, ["", *layers], lines, strict=False)
    ]
    style: Any = {"box": SIMPLE_HEAD, "padding": 0, "caption": _CAPTION}
    table = make_table(columns, rows, words=columns[:_TEXTS], title=title, **style)
    table.caption_justify = "left"
    # Layers are folded, not cut.
    for column in table.columns[1:]:
        column.no_wrap = True
    return table


def plot_exponents(report: Report, path: str | Path, *, title: str = "") -> Path:
    """A heat map of exponents: a column for each binade, a row for each tensor, in the order of the
    network; forward left, backward right. The darker, the larger the part of the tensor's numbers.

    Gradients stand where they are under the loss scale, as the layers see them. Each row shows the
    limits of its format: the least value, the least normal value and the largest. Numbers left of
    the first underflow, and numbers right of the last overflow. Numbers that are more than 16
    binades below all limits stand in the first column.

    Args:
        report: of `lpkernels.techniques.loss_scaling.diagnose`.
        path: the file; its ending says which kind.
        title: above the picture.
    Returns: the path.
    Raises: ValueError: there is no number to draw, or matplotlib does not write such files.
    """
    rows = [row for row in report.rows if row.histogram.numbers]
    if not rows:
        raise ValueError("plot_exponents: expected a tensor with a number in it, got none")
    panels = [
        ("forward", [row for row in rows if not row.is_gradient]),
        ("backward", [row for row in rows if row.is_gradient]),
    ]
    panels = [(name, of) for name, of in panels if of]
    most = max(len(of) for _, of in panels)
    figure = new_figure((6.2 * len(panels), 1.6 + _INCHES_PER_ROW * most))
    low, high = _span(rows)
    every = figure.subplots(1, len(panels), squeeze=False, sharex=True)[0]
    for axes, (name, of) in zip(every, panels, strict=True):
        _panel(axes, of, low, high)
        axes.set_title(name, fontsize="medium")
    drawn = _LINES if any(row.float_format for row in rows) else {}
    handles = [every[0].plot([], [], style, color="tab:red", lw=1)[0] for style in drawn.values()]
    if drawn:
        figure.legend(
            handles, [f"{name} of the format" for name in drawn], loc="outside lower center",
            ncols=len(drawn), fontsize="small", frameon=False,
        )  # fmt: skip
    return save_figure(figure, path, title)


def _span(rows: Sequence[TensorRow]) -> tuple[int, int]:
    """The binades to show: all with numbers but for a long tail, and near limits."""
    found = [row.histogram.exponents or (0, 0) for row in rows]
    low, high = min(f[0] for f in found), max(f[1] for f in found)
    limits = [limit for row in rows for limit in _limits(row)]
    near = [limit for limit in limits if low - _NEAR <= limit <= high + _NEAR]
    low = math.floor(min([low, *near])) - 1
    if near:
        low = max(low, math.floor(min(near)) - _NEAR)
    return low, math.ceil(max([high + 1, *near])) + 1


def _limits(row: TensorRow) -> tuple[float, ...]:
    """Log2 of the least value, the least normal one and the largest."""
    fmt = row.float_format
    return (
        () if fmt is None else tuple(map(math.log2, (fmt.min_subnormal, fmt.min_normal, fmt.max)))
    )


def _panel(axes: Any, rows: Sequence[TensorRow], low: int, high: int) -> None:
    shares = np.full((len(rows), high - low), np.nan)
    for at, row in enumerate(rows):
        for exponent, count in row.histogram.to_pairs():
            column = max(0, exponent - low)
            shares[at, column] = np.nansum([shares[at, column], count / row.histogram.numbers])
    image = axes.imshow(
        np.log10(shares), aspect="auto", interpolation="nearest", cmap="Blues", vmin=-6, vmax=0,
        extent=(low, high, len(rows), 0),
    )  # fmt: skip
    for at, row in enumerate(rows):
        for limit, style in zip(_limits(row), _LINES.values(), strict=False):
            axes.plot([limit, limit], [at, at + 1], style, color="tab:red", lw=1)
    names = [f"{row.layer} {row.name}" for row in rows]
    axes.set_yticks([at + 0.5 for at in range(len(rows))], names, fontsize="x-small")
    axes.set(xlabel="exponent of 2", xlim=(low, high), ylim=(len(rows), 0))
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01)
    bar.set_label("log10 of the part of the tensor", fontsize="x-small")
    bar.ax.tick_params(labelsize="x-small")

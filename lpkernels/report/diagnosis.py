"""The picture of a diagnosis: underflow and overflow, tensor by tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lpkernels.report.figures import finish, panels
from lpkernels.techniques.loss_scaling import Report
from lpkernels.techniques.loss_scaling.rows import TensorRow

__all__ = ["plot_exponents"]

# The limits of a format, and their marks.
_LIMITS = {"least value": ":", "least normal": "--", "largest": "-"}
# The inner interval of a row leaves out so much of its numbers at either end.
_TAIL = 0.01
# Numbers that are so many binades below all limits are not shown.
_NEAR = 16
# A row of a panel holds its name.
_INCHES_PER_ROW = 0.2


def plot_exponents(report: Report) -> Any:
    """A figure of exponents: a row for each tensor, in the order of the network; forward left,
    backward right.

    A point is the median of a tensor's numbers, the thin line goes from the least to the largest,
    the thick one from 1% to 99% of them. Gradients stand where they are under the loss scale, as
    the layers see them. Each row shows the limits of its format: the least value, the least normal
    value and the largest. Numbers left of the first underflow, those right of the last overflow;
    the picture ends 16 binades below the first of all.

    Args: report: of `lpkernels.techniques.loss_scaling.diagnose`.
    Returns: matplotlib's figure; its `savefig` writes it.
    Raises: ValueError: there is no number to draw.
    """
    rows = [row for row in report.rows if row.histogram.numbers]
    if not rows:
        raise ValueError("plot_exponents: expected a tensor with a number in it, got none")
    groups = {
        "forward": [row for row in rows if not row.is_gradient],
        "backward": [row for row in rows if row.is_gradient],
    }
    groups = {name: group for name, group in groups.items() if group}
    height = 1.2 + _INCHES_PER_ROW * max(map(len, groups.values()))
    left = min((row.histogram.exponents or (0, 0))[0] for row in rows) - 1.0
    least = [math.log2(row.float_format.min_subnormal) for row in rows if row.float_format]
    left = max(left, min(least, default=left + _NEAR) - _NEAR)
    grid = panels(len(groups), (6.2, height), sharex=True)
    for axes, (name, group) in zip(grid, groups.items(), strict=True):
        for at, row in enumerate(group):
            _draw_row(axes, at, row)
        names = [f"{row.layer} {row.name}" for row in group]
        axes.set_yticks(range(len(group)), names, fontsize="x-small")
        axes.set(xlim=(left, None), ylim=(len(group) - 0.4, -0.6))
        finish(axes, xlabel="exponent of 2", title=name)
    if any(row.float_format for row in rows):
        handles = [grid[0].plot([], [], style, color="tab:red")[0] for style in _LIMITS.values()]
        labels = [f"{name} of the format" for name in _LIMITS]
        grid[0].figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return grid[0].figure


def _draw_row(axes: Any, at: int, row: TensorRow) -> None:
    exponents, counts = np.array(row.histogram.to_pairs()).T
    shares = counts.cumsum() / counts.sum()
    low, median, high = exponents[np.searchsorted(shares, (_TAIL, 0.5, 1 - _TAIL))]
    axes.plot([exponents[0], exponents[-1] + 1], [at, at], color="tab:blue", lw=1)
    axes.plot([low, high + 1], [at, at], color="tab:blue", lw=5, alpha=0.4, solid_capstyle="butt")
    axes.plot([median + 0.5], [at], "o", color="tab:blue", ms=4)
    fmt = row.float_format
    limits = [] if fmt is None else [fmt.min_subnormal, fmt.min_normal, fmt.max]
    for limit, style in zip(limits, _LIMITS.values(), strict=False):
        axes.plot([math.log2(limit)] * 2, [at - 0.5, at + 0.5], style, color="tab:red", lw=1)

"""A sweep as a table and as a picture."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lpkernels.experiments.sweeps.statistics import axes_of, figures_of, varied_axes
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.report.figures import finish, panels
from lpkernels.report.tables import fixed, interval, p_text, signed

if TYPE_CHECKING:
    import pandas

__all__ = ["plot_sweep", "sweep_table"]

# Where a terminal is narrow, words of the names of arms are whole up to that length.
_WHOLE_WORD = 12
# A number at the end of an arm's name; arms whose names differ in nothing else are joined.
_NUMBER = re.compile(r"[ ,:=]*-?\d+(\.\d+)?$")
_SEED: dict[str, Any] = {"marker": "o", "ms": 4, "alpha": 0.4, "mew": 0, "ls": ""}
_DIVERGED: dict[str, Any] = {"marker": "x", "ms": 6, "mew": 1.5, "ls": ""}
_POINT: dict[str, Any] = {"marker": "D", "ms": 6, "mec": "white", "mew": 0.8, "lw": 1.5}
_BOOTSTRAP: dict[str, Any] = {"lw": 5.5, "alpha": 0.3, "solid_capstyle": "butt"}
# The columns of a figure and its interval.
_MEAN = ("mean", "low", "high")
_DIFFERENCE = ("difference", "difference_low", "difference_high")


def sweep_table(summary: pandas.DataFrame, metric: Metric, *, title: str = "") -> Table:
    """A row for each row of a summary; an axis with a single value has no column.

    Where there are differences a row has two lines, so that nothing is cut in 80 columns: the error
    is below the mean, the number of pairs below the difference, the bootstrap interval below
    Student's t interval. Names of arms fold.
    """
    axes, compared = varied_axes(summary), "pairs" in summary
    places, scale = _places_of(summary, metric), _scale(metric)
    separator = "\n" if compared else " "
    rows = summary.to_dict("records")
    means = [_mean_text(row, places, scale, separator) for row in rows]
    table = Table(title=title or None, box=SIMPLE_HEAD, padding=0)
    table.caption, table.caption_justify = _caption(summary, metric), "left"
    words = [len(word) for arm in summary["arm"] for word in arm.split()]
    table.add_column("arm", overflow="fold", min_width=min(_WHOLE_WORD, max(words)))
    for name in axes:
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("diverged", justify="right", no_wrap=True)
    widest = max(len(line) for mean in means for line in mean.split("\n"))
    table.add_column(_label(metric), justify="right", min_width=widest)
    for name in ("difference", "t interval\nbootstrap", "Holm p") if compared else ():
        table.add_column(name, justify="right", no_wrap=True)
    for row, after, mean in zip(rows, [*rows[1:], None], means, strict=True):
        runs = f"{row['diverged']}/{row['finished'] + row['diverged']}"
        if row["failed"]:
            runs += ("\n" if compared else ", ") + f"{row['failed']} failed"
        cells = [row["arm"], *(_axis_text(row[name]) for name in axes), runs, mean]
        cells += _difference_texts(row, places, scale) if compared else []
        ends = after is not None and any(after[name] != row[name] for name in axes)
        # A Text shows brackets in names as they are; a string would take them for markup.
        table.add_row(*map(Text, cells), end_section=ends)
    return table


def _scale(metric: Metric) -> float:
    return 100.0 if metric.percent else 1.0


def _label(metric: Metric) -> str:
    return f"{metric.label} (%)" if metric.percent else metric.label


def _axis_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _places_of(summary: pandas.DataFrame, metric: Metric) -> int:
    """Decimal places that show two digits of the smallest standard error, or four of the smallest
    mean where there is none. Percentages have two: a test set has a few hundred to ten thousand
    examples."""
    if metric.percent:
        return 2
    errors = [x for x in summary["standard_error"] if x > 0]
    means = [abs(x) for x in summary["mean"] if abs(x) > 0]
    smallest, digits = (min(errors), 2) if errors else (min(means, default=1.0), 4)
    # More than six places are wider than their column.
    return min(6, max(0, digits - 1 - math.floor(math.log10(smallest))))


def _mean_text(row: dict[str, Any], places: int, scale: float, separator: str) -> str:
    """Mean and error, and the number of seeds in them if a run that ended is missing."""
    if not row["figures"]:
        return "-"
    text = fixed(row["mean"], places, scale)
    if row["figures"] > 1:
        text += f"{separator}± {fixed(row['standard_error'], places, scale)}"
    missing = row["figures"] < row["finished"] + row["diverged"]
    return f"{text} ({row['figures']})" if missing else text


def _difference_texts(row: dict[str, Any], places: int, scale: float) -> list[str]:
    """The cells of a difference; the reference has empty ones."""
    if math.isnan(row["pairs"]):
        return ["reference", "", ""]
    if not row["pairs"]:
        return ["no pairs", "-", "-"]
    plural = "s" if row["pairs"] > 1 else ""
    difference = f"{signed(row['difference'], places, scale)}\n{row['pairs']:.0f} pair{plural}"
    intervals = "\n".join(
        interval(row[f"{name}_low"], row[f"{name}_high"], places, scale)
        for name in ("difference", "bootstrap")
    )
    return [difference, intervals.strip() or "-", p_text(row["p_holm"]) or "-"]


def _caption(summary: pandas.DataFrame, metric: Metric) -> Text:
    parts = [
        "diverged: of the runs that came to a result",
        f"{metric.label}: mean ± standard error over seeds, "
        f"{'higher' if metric.higher else 'lower'} is better",
    ]
    if (summary["figures"] < summary["finished"] + summary["diverged"]).any():
        parts.append("(n): seeds in the mean, where others ended without a figure")
    if "pairs" in summary:
        parts.append(
            f"difference: arm minus {_reference(summary)}, paired by seed, with its 95% intervals "
            "by Student's t and bootstrap over seeds"
        )
        if tests := summary["p_holm"].count():
            parts.append(f"Holm p: two-sided paired t-test, corrected for the {tests} here")
        parts.append("-: too few seeds, or all alike")
    return Text("; ".join(parts))


def _reference(summary: pandas.DataFrame) -> str:
    """The arm that the others are compared with; "" where there is none."""
    return str(summary["reference"].dropna().iloc[0]) if "reference" in summary else ""


def plot_sweep(
    cells: pandas.DataFrame, summary: pandas.DataFrame, metric: Metric, *, against: str = ""
) -> Any:
    """A figure of the means with their t intervals; where the summary has a reference, beside them
    the paired differences with their intervals.

    If a single axis varies and its values are numbers, it is the x axis, with a curve for each arm.
    Else each row of the summary is a row of the picture, with a point for every seed, a cross for a
    diverged one, and the intervals of differences by Student's t (thin) and bootstrap (thick). The
    label of an arm counts its diverged and failed runs; the arm that all are compared with is
    black. The same records give the same picture.

    Args:
        cells: `Results.table`.
        summary: of it, by the metric's field.
        metric: that figure.
        against: another field, such as a cost: its mean is the place of an arm on the x axis, and
            there are no differences. Arms whose names differ in a number at the end are joined by
            a line; an arm is a dotted line across where one of its runs lacks the field.
    Returns: matplotlib's figure.
    Raises: ValueError: no cell has a figure; with `against`, axes vary or no arm has the field.
    """
    if not summary["figures"].any():
        raise ValueError(
            f"plot_sweep: expected at least one result with a finite {metric.field}, got none"
        )
    kinds = [_MEAN, _DIFFERENCE] if "pairs" in summary and not against else [_MEAN]
    table, label = _placed(cells, summary, against)
    if table is None:
        grid = panels(len(kinds), (4.7, 1.1 + 0.42 * len(summary)), sharey=True)
        handles = _draw_rows(grid, cells, summary, kinds, metric)
    else:
        grid = panels(len(kinds), (4.7, 4.2))
        families = (
            summary["arm"].str.replace(_NUMBER, "", regex=True) if against else summary["arm"]
        )
        for axes, columns in zip(grid, kinds, strict=True):
            _draw_curves(axes, table.sort_values("at"), families, columns, metric)
            axes.set_xlabel(label)
        handles = grid[0].get_legend_handles_labels()[0]
    unit = " (percentage points)" if metric.percent else ""
    labels = [_label(metric), f"difference to {_reference(summary)}{unit}"]
    for axes, columns, text in zip(grid, kinds, labels, strict=False):
        finish(axes, legend=None, **{"xlabel" if table is None else "ylabel": text})
        if columns is _DIFFERENCE:
            (axes.axvline if table is None else axes.axhline)(0.0, color="0.5", lw=1, zorder=0)
    style = {"ncols": 3, "frameon": False, "fontsize": "small"}
    grid[0].figure.legend(handles=handles, loc="outside lower center", **style)
    return grid[0].figure


def _placed(
    cells: pandas.DataFrame, summary: pandas.DataFrame, against: str
) -> tuple[pandas.DataFrame | None, str]:
    """The summary with the places on the x axis in the column "at", and the axis' label; None where
    the picture has a row for each arm."""
    names, label = varied_axes(summary), against.replace("_", " ")
    if not against:
        if len(names) != 1 or not all(type(value) in (int, float) for value in summary[names[0]]):
            return None, ""
        return summary.assign(at=summary[names[0]].astype(float)), names[0]
    if names:
        raise ValueError(
            f"against: expected arms alone, got axes too: {', '.join(names)}; without it the "
            "picture shows them"
        )
    finished = cells[cells["status"] == "finished"]
    figures = figures_of(finished, against).groupby(finished["arm"])
    means = figures.agg(lambda values: values.mean(skipna=False))
    return summary.assign(at=summary["arm"].map(means))[summary["figures"] > 0], label


def _colours(summary: pandas.DataFrame, families: pandas.Series[str]) -> dict[str, str]:
    """A colour for each family of arms, in the order they appear; the reference is black."""
    reference = set(families[summary["arm"] == _reference(summary)])
    others = [family for family in families.unique() if family not in reference]
    colours = {family: f"C{number % 10}" for number, family in enumerate(others)}
    return colours | dict.fromkeys(reference, "black")


def _draw_curves(
    axes: Any,
    table: pandas.DataFrame,
    families: pandas.Series[str],
    columns: Sequence[str],
    metric: Metric,
) -> None:
    """A curve of figures with their intervals over the column "at" for each family of arms; a line
    across for an arm without a place."""
    colours, scale = _colours(table, families.loc[table.index]), _scale(metric)
    for number, (family, own) in enumerate(table.groupby(families, sort=False)):
        figures = own[["at"]].join(scale * own[list(columns)].astype(float))
        placed = figures.dropna(subset=["at", columns[0]])
        value, low, high = (placed[name] for name in columns)
        if len(placed):
            arm = own["arm"].iloc[0]
            label = (family if own["arm"].nunique() > 1 else arm) + _losses(own, " ")
            axes.errorbar(
                placed["at"], value, [value - low, high - value], color=colours[family],
                lw=1.2, elinewidth=1, ms=5, mec="white", mew=0.6, label=label,
                fmt="-" + "os^vD"[number // 10 % 5],
            )  # fmt: skip
        for _, row in own[own["at"].isna()].iterrows():
            style = {"color": colours[family], "ls": ":", "lw": 1.2}
            axes.axhline(scale * row[columns[0]], label=row["arm"], **style)
    ticks = table["at"].dropna().unique()
    if len(ticks) and ticks[0] > 0 and ticks[-1] > 4 * ticks[0]:
        axes.set_xscale("log", base=2)


def _draw_rows(
    grid: Sequence[Any],
    cells: pandas.DataFrame,
    summary: pandas.DataFrame,
    kinds: Sequence[Sequence[str]],
    metric: Metric,
) -> list[Any]:
    """A row for each row of the summary; returns a grey example of each mark, for the legend."""
    from matplotlib.lines import Line2D

    axes, scale, colours = axes_of(summary), _scale(metric), _colours(summary, summary["arm"])
    groups = dict(iter(cells.sort_values("seed").groupby([*axes, "arm"], sort=False)))
    for at, row in enumerate(summary.to_dict("records")):
        own, style = groups[(*(row[name] for name in axes), row["arm"])], {"c": colours[row["arm"]]}
        for diverged, mark in ((False, _SEED), (True, _DIVERGED)):
            figures = figures_of(own[(own["status"] == "diverged") == diverged], metric.field)
            grid[0].plot(scale * figures, [at - 0.17] * len(figures), **mark, **style)
        for panel, columns in zip(grid, kinds, strict=True):
            value, low, high = (scale * row[name] for name in columns)
            place = at + 0.17 if columns is _MEAN else at
            panel.errorbar(
                [value], [place], xerr=[[value - low], [high - value]], **_POINT, **style
            )
        if len(grid) > 1:
            ends = [scale * row["bootstrap_low"], scale * row["bootstrap_high"]]
            grid[1].plot(ends, [at, at], **_BOOTSTRAP, **style)
    labels = [
        ", ".join([row["arm"], *(f"{k} {_axis_text(row[k])}" for k in varied_axes(summary))])
        + _losses(summary.iloc[[at]], "\n")
        for at, row in summary.iterrows()
    ]
    grid[0].set_yticks(range(len(summary)), labels)
    grid[0].set_ylim(len(summary) - 0.4, -0.6)
    marks = {
        "a seed": _SEED,
        **({"diverged": _DIVERGED} if summary["diverged"].any() else {}),
        "mean, 95% t interval": _POINT,
        **({"95% bootstrap interval": _BOOTSTRAP} if len(grid) > 1 else {}),
    }
    return [Line2D([], [], color="0.35", label=label, **style) for label, style in marks.items()]


def _losses(rows: pandas.DataFrame, separator: str) -> str:
    """How many runs diverged or failed; empty if none did."""
    finished, diverged, failed = rows[["finished", "diverged", "failed"]].sum()
    parts = [f"{diverged}/{finished + diverged} diverged"] if diverged else []
    parts += [f"{failed} failed"] if failed else []
    return f"{separator}({', '.join(parts)})" if parts else ""

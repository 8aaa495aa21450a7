"""A sweep as a table, as a file for other programs, and as a picture."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lpkernels.experiments.sweeps.statistics import axes_of, figures_of, varied_axes
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.report.figures import finish, new_figure, panels, plain_numbers, save_figure

if TYPE_CHECKING:
    import pandas

__all__ = ["plot_against", "plot_sweep", "sweep_table", "write_csv"]

# Where a terminal is narrow, words of the names of arms are whole up to that length.
_WHOLE_WORD = 12
# A number at the end of an arm's name; arms whose names differ in nothing else are joined.
_NUMBER = re.compile(r"[ ,:=]*-?\d+(\.\d+)?$")
_SEED: dict[str, Any] = {"marker": "o", "ms": 4, "alpha": 0.4, "mew": 0, "ls": ""}
_DIVERGED: dict[str, Any] = {"marker": "x", "ms": 6, "mew": 1.5, "ls": ""}
_POINT: dict[str, Any] = {"fmt": "D", "ms": 6, "mec": "white", "mew": 0.8, "lw": 1.5}
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
    axes, compared, places = varied_axes(summary), "pairs" in summary, _places(summary, metric)
    break_ = "\n" if compared else " "
    rows = summary.to_dict("records")
    means = [_mean_text(row, metric, places, break_) for row in rows]
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
        cells += _difference_texts(row, metric, places) if compared else []
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


def _places(summary: pandas.DataFrame, metric: Metric) -> int:
    """The decimal places of figures: two digits of the smallest standard error, four of the
    smallest mean where there is none. Percentages have two: a test set has a few hundred to ten
    thousand examples."""
    if metric.percent:
        return 2
    errors = [x for x in summary["standard_error"] if x > 0]
    means = [abs(x) for x in summary["mean"] if abs(x) > 0]
    smallest, digits = (min(errors), 2) if errors else (min(means, default=1.0), 4)
    # More than six places are wider than their column.
    return min(6, max(0, digits - 1 - math.floor(math.log10(smallest))))


def _number(value: float, metric: Metric, places: int) -> str:
    # Adding zero takes the sign from a number that rounds to -0.
    return f"{round(_scale(metric) * value, places) + 0.0:.{places}f}"


def _mean_text(row: dict[str, Any], metric: Metric, places: int, separator: str) -> str:
    """Mean and error, and the number of seeds in them if a run that ended is missing."""
    if not row["figures"]:
        return "-"
    text = _number(row["mean"], metric, places)
    if row["figures"] > 1:
        text += f"{separator}± {_number(row['standard_error'], metric, places)}"
    missing = row["figures"] < row["finished"] + row["diverged"]
    return f"{text} ({row['figures']})" if missing else text


def _difference_texts(row: dict[str, Any], metric: Metric, places: int) -> list[str]:
    """The cells of a difference; the reference has empty ones."""
    if math.isnan(row["pairs"]):
        return ["reference", "", ""]
    if not row["pairs"]:
        return ["no pairs", "-", "-"]
    mean = _number(row["difference"], metric, places)
    sign, plural = "+" if float(mean) > 0.0 else "", "s" if row["pairs"] > 1 else ""
    intervals = "\n".join(
        f"[{', '.join(_number(row[f'{name}_{end}'], metric, places) for end in ('low', 'high'))}]"
        for name in ("difference", "bootstrap")
        if not math.isnan(row[f"{name}_low"])
    )
    p = "-" if math.isnan(row["p_holm"]) else f"{row['p_holm']:.3f}"
    p = "< 0.001" if row["p_holm"] < 0.001 else p
    return [f"{sign}{mean}\n{row['pairs']:.0f} pair{plural}", intervals or "-", p]


def _caption(summary: pandas.DataFrame, metric: Metric) -> Text:
    better = "higher" if metric.higher else "lower"
    parts = [
        "diverged: of the runs that came to a result",
        f"{metric.label}: mean ± standard error over seeds, {better} is better",
    ]
    if (summary["figures"] < summary["finished"] + summary["diverged"]).any():
        parts.append("(n): seeds in the mean, where others ended without a figure")
    if "pairs" in summary:
        parts.append(
            f"difference: arm minus {summary['reference'].dropna().iloc[0]}, paired by seed, with "
            f"its {100 * summary['level'].iloc[0]:g}% intervals by Student's t and bootstrap over "
            "seeds"
        )
        tests = summary["p_holm"].count()
        if tests:
            parts.append(
                f"Holm p: two-sided paired t-test, corrected for the {tests} in this table"
            )
        parts.append("-: too few seeds, or all alike")
    return Text("; ".join(parts))


def write_csv(summary: pandas.DataFrame, path: str | Path) -> Path:
    """Writes a summary as it is, a missing number as an empty cell. A name that a spreadsheet
    would take for a formula has an apostrophe before it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    summary.map(_harmless).rename(columns=_harmless).to_csv(path, index=False)
    return path


def _harmless(value: Any) -> Any:
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value


def plot_sweep(
    cells: pandas.DataFrame,
    summary: pandas.DataFrame,
    metric: Metric,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Draws means with their t intervals; where the summary has a reference, beside them the paired
    differences with their intervals.

    If a single axis varies and its values are numbers, it is the x axis, with a curve for each arm.
    Else each row of the summary is a row of the picture, with a point for every seed, a cross for a
    diverged one, and the intervals of differences by Student's t (thin) and bootstrap (thick). The
    label of an arm counts its diverged and failed runs. The same records give the same picture.

    Args:
        cells: `Results.table`.
        summary: of it, by the metric's field.
        metric: that figure.
        path: the file; its ending says which kind.
        title: above the picture.
    Returns: the path.
    Raises: ValueError: no cell has a figure, or matplotlib does not write files of that ending.
    """
    if not summary["figures"].any():
        raise ValueError(
            f"plot_sweep: expected at least one result with a finite {metric.field}, got none"
        )
    names, kinds = varied_axes(summary), [_MEAN, _DIFFERENCE][: 1 + ("pairs" in summary)]
    lines = len(names) == 1 and all(type(value) in (int, float) for value in summary[names[0]])
    size = (4.7, 4.2) if lines else (4.7, 1.1 + 0.42 * len(summary))
    grid = panels(len(kinds), size, **({} if lines else {"sharey": True}))
    figure = grid[0].figure
    if lines:
        for axes, columns in zip(grid, kinds, strict=True):
            table = summary.assign(at=summary[names[0]].astype(float)).sort_values("at")
            _draw_curves(axes, table, table["arm"], columns, metric)
            if table["at"].iloc[0] > 0 and table["at"].iloc[-1] > 4 * table["at"].iloc[0]:
                axes.set_xscale("log", base=2)
            ticks = table["at"].unique()
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
            axes.set_xlabel(names[0])
        handles = grid[0].get_legend_handles_labels()[0]
    else:
        handles = _draw_rows(grid, cells, summary, kinds, metric)
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
    labels = [_label(metric)]
    if "pairs" in summary:
        (grid[1].axhline if lines else grid[1].axvline)(0.0, color="0.5", lw=1, zorder=0)
        unit = " (percentage points)" if metric.percent else ""
        labels.append(f"difference to {summary['reference'].dropna().iloc[0]}{unit}")
    for axes, label in zip(grid, labels, strict=True):
        axes.set(**{"ylabel" if lines else "xlabel": label})
        plain_numbers(axes.yaxis if lines else axes.xaxis)
        axes.grid(alpha=0.3, axis="both" if lines else "x")
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize="small"
    )
    return save_figure(figure, path, title, dpi=130)


def _colours(summary: pandas.DataFrame, families: pandas.Series[str]) -> dict[str, str]:
    """A colour for each family of arms, in the order they appear; the reference is black."""
    references = set(summary["reference"].dropna()) if "pairs" in summary else set()
    reference = set(families[summary["arm"].isin(references)])
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
    colours, scale = _colours(table, families), _scale(metric)
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
        for crosses, mark in ((False, _SEED), (True, _DIVERGED)):
            figures = figures_of(own[(own["status"] == "diverged") == crosses], metric.field)
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
    percent = f"{100 * summary['level'].iloc[0]:g}%"
    marks = {
        "a seed": _SEED,
        **({"diverged": _DIVERGED} if summary["diverged"].any() else {}),
        f"mean, {percent} t interval": {"marker": "D", "lw": 1.5, "mec": "white"},
        **({f"{percent} bootstrap interval": _BOOTSTRAP} if len(grid) > 1 else {}),
    }
    return [Line2D([], [], color="0.35", label=label, **style) for label, style in marks.items()]


def _losses(rows: pandas.DataFrame, separator: str) -> str:
    """How many runs diverged or failed; empty if none did."""
    finished, diverged, failed = rows[["finished", "diverged", "failed"]].sum()
    parts = [f"{diverged}/{finished + diverged} diverged"] if diverged else []
    parts += [f"{failed} failed"] if failed else []
    return f"{separator}({', '.join(parts)})" if parts else ""


def plot_against(
    cells: pandas.DataFrame,
    summary: pandas.DataFrame,
    metric: Metric,
    field: str,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Draws the mean of every arm, with its t interval, over the mean of another field.

    Arms whose names differ in a number at the end are joined by a line. The arm that all are
    compared with is black. An arm of which a run lacks the field is a dotted line across.

    Args:
        cells: `Results.table`.
        summary: of it, by the metric's field.
        metric: that figure.
        field: the other field.
        path: the file; its ending says which kind.
        title: above the picture.
    Returns: the path.
    Raises: ValueError: axes vary, no arm has the field, or matplotlib does not write files of that
        ending.
    """
    names = varied_axes(summary)
    if names:
        raise ValueError(
            f"plot_against: expected arms alone, got axes too: {', '.join(names)}; without "
            "--against the picture shows them"
        )
    finished = cells[cells["status"] == "finished"]
    places = (
        figures_of(finished, field).groupby(finished["arm"]).agg(lambda x: x.mean(skipna=False))
    )
    table = summary.assign(at=summary["arm"].map(places))[summary["figures"] > 0].sort_values("at")
    axes = new_figure((8.6, 5.0)).subplots()
    _draw_curves(axes, table, table["arm"].str.replace(_NUMBER, "", regex=True), _MEAN, metric)
    finish(axes, xlabel=field.replace("_", " "), ylabel=_label(metric))
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small")
    return save_figure(axes.figure, path, title, dpi=130)

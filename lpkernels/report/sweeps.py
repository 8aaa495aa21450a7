"""A sweep as a table, as a file for other programs, and as a picture."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lpkernels.experiments.sweeps.statistics import axes_of, figures_of, varied_axes
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.report.figures import new_figure, plain_numbers, save_figure

if TYPE_CHECKING:
    import pandas

__all__ = ["plot_against", "plot_sweep", "sweep_table", "write_csv"]

# Where a terminal is narrow, words of the names of arms are whole up to that length.
_WHOLE_WORD = 12
# A number at the end of an arm's name; arms whose names differ in nothing else are joined.
_NUMBER = re.compile(r"[ ,:=]*-?\d+(\.\d+)?$")
_SEED: dict[str, Any] = {"marker": "o", "ms": 4, "alpha": 0.4, "mew": 0, "ls": ""}
_DIVERGED: dict[str, Any] = {"marker": "x", "ms": 6, "mew": 1.5, "ls": ""}
_MEAN: dict[str, Any] = {"fmt": "D", "ms": 6, "mec": "white", "mew": 0.8, "lw": 1.5}
_BOOTSTRAP: dict[str, Any] = {"lw": 5.5, "alpha": 0.3, "solid_capstyle": "butt"}


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


@dataclass(frozen=True)
class _Panel:
    """Axes on which figures run along y, where positions are values of an axis of the sweep, or
    along x, where they are rows."""

    axes: Any
    upright: bool
    scale: float

    def plot(self, at: Sequence[float], figures: Sequence[float], **style: Any) -> None:
        scaled = [self.scale * figure for figure in figures]
        self.axes.plot(*((at, scaled) if self.upright else (scaled, at)), **style)

    def point(self, at: float, value: float, low: float, high: float, **style: Any) -> None:
        """A figure with its interval."""
        figure = self.scale * value
        spread = [[figure - self.scale * low], [self.scale * high - figure]]
        if self.upright:
            self.axes.errorbar([at], [figure], yerr=spread, **_MEAN, **style)
        else:
            self.axes.errorbar([figure], [at], xerr=spread, **_MEAN, **style)

    def finish(self, label: str) -> None:
        """Names the figures and leaves only what helps to read them."""
        self.axes.set(**{"ylabel" if self.upright else "xlabel": label})
        plain_numbers(self.axes.yaxis if self.upright else self.axes.xaxis)
        self.axes.grid(alpha=0.3, axis="y" if self.upright else "x")
        self.axes.spines[["top", "right"]].set_visible(False)


def plot_sweep(
    cells: pandas.DataFrame,
    summary: pandas.DataFrame,
    metric: Metric,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Draws every seed, and means with their t intervals; where the summary has a reference, beside
    them the paired differences with their intervals, by Student's t (thin) and bootstrap (thick).

    If a single axis varies and its values are numbers, it is the x axis, with a line for each arm;
    else each row of the summary is a row of the picture. Diverged runs are crosses; the label of an
    arm counts them, and failed ones. The same records give the same picture.

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
    axes, names, colours = axes_of(summary), varied_axes(summary), _colours(summary)
    upright = len(names) == 1 and all(type(x) in (int, float) for x in summary[names[0]])
    height = 4.2 + 0.2 * len(colours) if upright else 1.4 + 0.42 * len(summary)
    figure = new_figure((9.5, height))
    share: Any = {"sharex": True} if upright else {"sharey": True}
    grid = figure.subplots(1, 1 + ("pairs" in summary), squeeze=False, **share)[0]
    panels = [_Panel(axes, upright, _scale(metric)) for axes in grid]
    summary = summary.assign(at=_positions(summary, names[0]) if upright else range(len(summary)))
    groups = dict(iter(cells.sort_values("seed").groupby([*axes, "arm"], sort=False)))
    for row in summary.to_dict("records"):
        group = groups[(*(row[name] for name in axes), row["arm"])]
        _draw_arm(panels, group, row, metric, colours[row["arm"]])
    for arm, own in summary.sort_values("at").groupby("arm") if upright else ():
        for panel, field in zip(panels, ("mean", "difference"), strict=False):
            panel.plot(own["at"], own[field], color=colours[arm], lw=1, alpha=0.6)
    if upright:
        shown = summary.groupby(names[0])["at"].mean()
        shown = shown.iloc[:: math.ceil(len(shown) / 10)]
        for axes in grid:
            axes.set_xticks(shown, list(map(_axis_text, shown.index)))
            axes.set_xlabel(names[0])
    else:
        labels = [
            ", ".join([row["arm"], *(f"{name} {_axis_text(row[name])}" for name in names)])
            + _losses([row], "\n")
            for row in summary.to_dict("records")
        ]
        grid[0].set_yticks(summary["at"], labels)
        grid[0].set_ylim(len(summary) - 0.4, -0.6)
    panels[0].finish(_label(metric))
    if "pairs" in summary:
        line = grid[1].axhline if upright else grid[1].axvline
        line(0.0, color="0.5", lw=1, zorder=0)
        unit = " (percentage points)" if metric.percent else ""
        panels[1].finish(f"difference to {summary['reference'].dropna().iloc[0]}{unit}")
    _add_legend(figure, summary, colours if upright else {})
    return save_figure(figure, path, title, dpi=130)


def _colours(summary: pandas.DataFrame) -> dict[str, str]:
    """A colour for each arm, in the order they appear; the reference is black."""
    references = set(summary["reference"].dropna()) if "pairs" in summary else set()
    numbers = itertools.count()
    return {
        arm: "black" if arm in references else f"C{next(numbers)}"
        for arm in summary["arm"].unique()
    }


def _positions(summary: pandas.DataFrame, axis: str) -> list[float]:
    """Positions in proportion to the values of an axis or to their logarithms, whichever are more
    even; the arms at one value stand side by side."""
    values, arms = sorted(set(summary[axis])), list(summary["arm"].unique())
    scales = [list(map(float, values))]
    if values[0] > 0:
        scales.append([math.log2(value) for value in values])
    gaps = [[b - a for a, b in itertools.pairwise(scale)] for scale in scales]
    best = min(range(len(scales)), key=lambda i: statistics.pstdev(gaps[i]) / sum(gaps[i]))
    places = dict(zip(values, scales[best], strict=True))
    slot = 0.5 * min(gaps[best]) / len(arms)
    return [
        places[value] + slot * (arms.index(arm) - (len(arms) - 1) / 2)
        for value, arm in zip(summary[axis], summary["arm"], strict=True)
    ]


def _draw_arm(
    panels: Sequence[_Panel],
    cells: pandas.DataFrame,
    row: dict[str, Any],
    metric: Metric,
    colour: str,
) -> None:
    """The seeds and the mean of an arm in the first panel, its difference in the second."""
    at, figures = row["at"], figures_of(cells, metric.field)
    aside = 0.0 if panels[0].upright else 0.17
    for diverged, style in ((False, _SEED), (True, _DIVERGED)):
        found = figures[(cells["status"] == "diverged") == diverged]
        panels[0].plot([at - aside] * len(found), found, color=colour, **style)
    panels[0].point(at + aside, row["mean"], row["low"], row["high"], color=colour)
    if len(panels) > 1 and row["pairs"] > 0:
        ends = row["bootstrap_low"], row["bootstrap_high"]
        panels[1].plot([at, at], ends, color=colour, **_BOOTSTRAP)
        names = ("difference", "difference_low", "difference_high")
        panels[1].point(at, *(row[name] for name in names), color=colour)


def _losses(rows: Sequence[dict[str, Any]], separator: str) -> str:
    """How many runs diverged or failed; empty if none did."""
    finished, diverged, failed = (
        sum(row[name] for row in rows) for name in ("finished", "diverged", "failed")
    )
    parts = [f"{diverged}/{finished + diverged} diverged"] if diverged else []
    parts += [f"{failed} failed"] if failed else []
    return f"{separator}({', '.join(parts)})" if parts else ""


def _add_legend(figure: Any, summary: pandas.DataFrame, colours: dict[str, str]) -> None:
    """The arms that have colours, and a grey example of each mark."""
    from matplotlib.lines import Line2D

    percent = f"{100 * summary['level'].iloc[0]:g}%"
    marks = [("a seed", _SEED)]
    if summary["diverged"].any():
        marks.append(("diverged", _DIVERGED))
    marks.append((f"mean, {percent} t interval", {"marker": "D", "lw": 1.5, "mec": "white"}))
    if "pairs" in summary and summary["bootstrap_low"].notna().any():
        marks.append((f"{percent} bootstrap interval", _BOOTSTRAP))
    handles = [
        Line2D([], [], color=colour, lw=2, label=arm + _losses(own.to_dict("records"), " "))
        for arm, colour in colours.items()
        for own in [summary[summary["arm"] == arm]]
    ]
    handles += [Line2D([], [], color="0.35", label=label, **style) for label, style in marks]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=2 if colours else len(marks),
        frameon=False, fontsize="small",
    )  # fmt: skip


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
    compared with is black, and a dotted line where it lacks the field.

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
    # The place of an arm is missing where one of its runs lacks the field.
    places = (
        figures_of(finished, field).groupby(finished["arm"]).agg(lambda x: x.mean(skipna=False))
    )
    table = summary.assign(at=summary["arm"].map(places))[summary["figures"] > 0]
    scaled = table.assign(
        **{name: _scale(metric) * table[name] for name in ("mean", "low", "high")}
    )
    references = set(summary["reference"].dropna()) if "pairs" in summary else set()
    axes, colours = new_figure((8.6, 5.0)).subplots(), itertools.count()
    for family, own in scaled.groupby(
        scaled["arm"].str.replace(_NUMBER, "", regex=True), sort=False
    ):
        number = None if own["arm"].iloc[0] in references else next(colours)
        style = {"color": "black" if number is None else f"C{number % 10}"}
        placed = own.dropna(subset="at").sort_values("at")
        if len(placed):
            spread = [placed["mean"] - placed["low"], placed["high"] - placed["mean"]]
            axes.errorbar(
                placed["at"], placed["mean"], spread, lw=1.2, elinewidth=1, ms=5, mec="white",
                mew=0.6, fmt="-" + "os^vD"[(number or 0) // 10 % 5],
                label=family if len(own) > 1 else own["arm"].iloc[0], **style,
            )  # fmt: skip
        for _, row in own[own["at"].isna()].iterrows():
            axes.axhline(row["mean"], ls=":", lw=1.2, label=row["arm"], **style)
    axes.set(xlabel=field.replace("_", " "), ylabel=_label(metric))
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small")
    return save_figure(axes.figure, path, title, dpi=130)

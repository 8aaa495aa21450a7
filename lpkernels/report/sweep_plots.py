"""The picture of a sweep: every seed, the means, and the differences to the reference."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import pstdev
from typing import Any

from lpkernels.experiments.sweeps.results import Result, grouped
from lpkernels.experiments.sweeps.statistics import ArmSummary, varied_axes
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.report.figures import new_figure, save_figure
from lpkernels.report.sweep_marks import Marks, Panel, axis_text

# Rows: inches a row, and for what is above and below; the seeds are above the mean.
_ROW, _MARGINS = 0.42, 1.4
_SEED_BAND, _MEAN_AT = (-0.32, 0.0), 0.2
# Lines: the share of the smallest gap between two values that the arms at one value may fill.
_FILLED = 0.5
_MOST_TICKS = 10
_LEGEND_LINE = 0.2


def plot_sweep(
    results: Sequence[Result],
    summaries: Sequence[ArmSummary],
    metric: Metric,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Draws every seed, and means with their t intervals; where a reference was named, beside them
    the paired differences with their intervals, by Student's t (thin) and bootstrap (thick).

    If a single axis varies and its values are numbers, it is the x axis, with a line for each arm;
    else each arm has a row, in groups by the values of the axes that vary. Diverged runs are
    crosses, at the edge if they have no figure; failed ones are counted. The same records give the
    same picture.

    summaries: of these results, by the metric's field.

    Raises: ValueError: no result has a figure, or matplotlib does not write files of that ending.
    """
    if all(summary.mean is None for summary in summaries):
        raise ValueError(
            f"plot_sweep: expected at least one result with a finite {metric.field}, got none"
        )
    marks = Marks(grouped(results), metric, _colours(summaries))
    names = varied_axes(summaries)
    if len(names) == 1 and _has_numbers(summaries, names[0]):
        figure = _draw_lines(marks, summaries, names[0])
    else:
        figure = _draw_rows(marks, summaries, names)
    return save_figure(figure, path, title, dpi=130)


def _draw_rows(marks: Marks, summaries: Sequence[ArmSummary], names: Sequence[str]) -> Any:
    lines = _lines_of_rows(summaries, names)
    figure = new_figure((9.5, _MARGINS + _ROW * len(lines)))
    panels = _panels(figure, summaries, rows=True)
    for at, (_, summary) in enumerate(lines):
        if summary is not None:
            marks.seeds(panels[0], summary, [at + end for end in _SEED_BAND])
            marks.mean(panels[0], summary, at + _MEAN_AT)
            if len(panels) > 1:
                marks.difference(panels[1], summary, at)
    axes = panels[0].axes
    axes.set_yticks(range(len(lines)), [label for label, _ in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    for tick, (_, summary) in zip(axes.get_yticklabels(), lines, strict=True):
        tick.set_fontweight("bold" if summary is None else "normal")
    for panel in panels:
        # Room for marks at the edge.
        panel.axes.tick_params(axis="y", length=0, pad=8)
    _finish(figure, panels, marks, summaries, [])
    return figure


def _lines_of_rows(
    summaries: Sequence[ArmSummary], names: Sequence[str]
) -> list[tuple[str, ArmSummary | None]]:
    """The labels of the rows from above; without a summary where a group begins."""
    lines: list[tuple[str, ArmSummary | None]] = []
    heading = ""
    for summary in summaries:
        values = dict(summary.axes)
        found = ", ".join(f"{name} {axis_text(values[name])}" for name in names if name in values)
        if found != heading:
            lines.append((found, None))
            heading = found
        lines.append((summary.arm + _losses([summary], "\n"), summary))
    return lines


def _draw_lines(marks: Marks, summaries: Sequence[ArmSummary], name: str) -> Any:
    from matplotlib.lines import Line2D

    values = sorted({dict(summary.axes)[name] for summary in summaries})
    places = dict(zip(values, _evenly(values), strict=True))
    figure = new_figure((9.5, 4.2 + _LEGEND_LINE * len(marks.colours)))
    panels = _panels(figure, summaries, rows=False)
    slot = _FILLED * min(b - a for a, b in pairwise(places.values())) / len(marks.colours)
    entries = []
    for index, (arm, colour) in enumerate(marks.colours.items()):
        chosen = sorted((s for s in summaries if s.arm == arm), key=lambda s: dict(s.axes)[name])
        shift = slot * (index - (len(marks.colours) - 1) / 2)
        at = [places[dict(summary.axes)[name]] + shift for summary in chosen]
        for x, summary in zip(at, chosen, strict=True):
            marks.seeds(panels[0], summary, (x - 0.4 * slot, x - 0.1 * slot))
            marks.mean(panels[0], summary, x)
            if len(panels) > 1:
                marks.difference(panels[1], summary, x)
        marks.lines(panels, chosen, at)
        entries.append(Line2D([], [], color=colour, label=arm + _losses(chosen, " "), lw=2))
    # Labels that touch cannot be read.
    shown = values[:: math.ceil(len(values) / _MOST_TICKS)]
    for panel in panels:
        panel.axes.set_xticks([places[value] for value in shown], list(map(axis_text, shown)))
        panel.axes.set_xlabel(name)
    _finish(figure, panels, marks, summaries, entries)
    return figure


def _evenly(values: Sequence[float]) -> list[float]:
    """Positions in proportion to the values or to their logarithms: whichever are more even."""
    linear = list(map(float, values))
    if linear[0] <= 0.0:
        return linear
    logarithms = [math.log2(value) for value in linear]
    return min((linear, logarithms), key=_unevenness)


def _unevenness(positions: Sequence[float]) -> float:
    gaps = [b - a for a, b in pairwise(positions)]
    return pstdev(gaps) / sum(gaps)


def _panels(figure: Any, summaries: Sequence[ArmSummary], *, rows: bool) -> list[Panel]:
    """One for the figures and, if there are any, one for the differences."""
    if all(summary.difference is None for summary in summaries):
        return [Panel(figure.subplots(), rows)]
    shared = {"sharey": True} if rows else {"sharex": True}
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1.0), **shared)
    panels = [Panel(left, rows), Panel(right, rows)]
    panels[1].zero()
    return panels


def _finish(
    figure: Any,
    panels: Sequence[Panel],
    marks: Marks,
    summaries: Sequence[ArmSummary],
    entries: Sequence[Any],
) -> None:
    """The names of the figures, and the legend."""
    metric = marks.metric
    panels[0].finish(f"{metric.label} (%)" if metric.percent else metric.label)
    found = [summary.difference for summary in summaries if summary.difference]
    if found:
        unit = " (percentage points)" if metric.percent else ""
        panels[1].finish(f"difference to {found[0].reference}{unit}")
    examples = marks.examples(summaries)
    columns = len(examples)
    if entries:
        # The arms fill the first column, the marks the second.
        columns, most = 2, max(len(entries), len(examples))
        examples = [h for hs in (entries, examples) for h in (*hs, *_blanks(most - len(hs)))]
    figure.legend(
        handles=examples, loc="outside lower center", ncols=columns, frameon=False, fontsize="small"
    )


def _blanks(count: int) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], ls="", label=" ")] * count


def _losses(summaries: Sequence[ArmSummary], separator: str) -> str:
    """How many runs diverged or failed; empty if none did."""
    diverged, ended, failed = (
        sum(getattr(summary, name) for summary in summaries)
        for name in ("diverged", "ended", "failed")
    )
    parts = [f"{diverged}/{ended} diverged"] if diverged else []
    parts += [f"{failed} failed"] if failed else []
    return f"{separator}({', '.join(parts)})" if parts else ""


def _has_numbers(summaries: Sequence[ArmSummary], name: str) -> bool:
    """Whether the axis has several values, all of them numbers, for every summary."""
    values = [dict(summary.axes).get(name) for summary in summaries]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return numbers and len(set(values)) > 1


def _colours(summaries: Sequence[ArmSummary]) -> dict[str, str]:
    """A colour for each arm, in the order they appear; the reference is black."""
    found = {summary.difference.reference for summary in summaries if summary.difference}
    arms = list(dict.fromkeys(summary.arm for summary in summaries))
    compared = [arm for arm in arms if arm not in found]
    return {arm: "black" if arm in found else f"C{compared.index(arm)}" for arm in arms}

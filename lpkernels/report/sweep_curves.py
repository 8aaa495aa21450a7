"""The picture of a sweep over something its runs measured: the figure against the cost, say."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from lpkernels.experiments.sweeps.results import Result, figure_of, grouped, place_of
from lpkernels.experiments.sweeps.statistics import ArmSummary, varied_axes
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.formats.elsewhere import nearest
from lpkernels.report.figures import new_figure, plain_numbers, save_figure
from lpkernels.report.sweep_marks import scale_of

#: A number at the end of an arm's name; arms whose names differ in nothing else are joined.
_FAMILY = re.compile(r"[ ,:=]*-?\d+(\.\d+)?$")


def plot_against(
    results: Sequence[Result],
    summaries: Sequence[ArmSummary],
    metric: Metric,
    field: str,
    path: str | Path,
    *,
    title: str = "",
) -> Path:
    """Draws the mean of every arm, with its t interval, over the mean of another field.

    Arms whose names differ in a number at the end are joined by a line. The arm that all are
    compared with is black, and a dotted line where it lacks the field.

    summaries: of these results, by the metric's field.

    Raises: ValueError: axes vary, no arm has the field, or matplotlib does not write files of that
        ending.
    """
    names = varied_axes(summaries)
    if names:
        raise ValueError(
            f"plot_against: expected arms alone, got axes too: {', '.join(names)}; without "
            "--against the picture shows them"
        )
    places = _places(results, summaries, field)
    figure = new_figure((8.6, 5.0))
    axes = figure.subplots()
    references = {s.difference.reference for s in summaries if s.difference}
    families: dict[str, list[ArmSummary]] = {}
    for summary in summaries:
        if summary.mean is not None:
            families.setdefault(_FAMILY.sub("", summary.arm), []).append(summary)
    number = 0
    for family, members in families.items():
        label = family if len(members) > 1 else members[0].arm
        is_reference = members[0].arm in references
        colour, number = ("black", number) if is_reference else (f"C{number % 10}", number + 1)
        style = {"color": colour, "marker": "os^vD"[number // 10 % 5]}
        found = [s for s in members if s.arm in places]
        if found:
            _draw_family(axes, found, places, metric, label, style)
        for summary in members:
            if summary.arm not in places and summary.mean is not None:
                at = scale_of(metric) * summary.mean
                axes.axhline(at, color=colour, ls=":", lw=1.2, label=summary.arm)
    axes.set(
        xlabel=field.replace("_", " "),
        ylabel=f"{metric.label} (%)" if metric.percent else metric.label,
    )
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small")
    return save_figure(figure, path, title, dpi=130)


def _places(
    results: Sequence[Result], summaries: Sequence[ArmSummary], field: str
) -> Mapping[str, float]:
    """The mean of the field by arm; an arm is left out if one of its runs lacks the field."""
    groups = grouped(results)
    places = {}
    for summary in summaries:
        runs = [r for r in groups[place_of(summary.axes), summary.arm] if r.status == "finished"]
        figures = [figure_of(result, field) for result in runs]
        known = [figure for figure in figures if figure is not None]
        if known and len(known) == len(figures):
            places[summary.arm] = fmean(known)
    if not places:
        fields = sorted({name for result in results for name in result.values})
        raise ValueError(
            f"plot_against: expected a field of the records, got {field!r}; there are "
            f"{nearest(field, fields, 'the records list all')}"
        )
    return places


def _draw_family(
    axes: Any,
    summaries: Sequence[ArmSummary],
    places: Mapping[str, float],
    metric: Metric,
    label: str,
    style: Mapping[str, Any],
) -> None:
    scale = scale_of(metric)
    points = sorted((places[s.arm], scale * (s.mean or 0.0)) for s in summaries)
    axes.plot(*zip(*points, strict=True), lw=1.2, ms=5, mec="white", mew=0.6, label=label, **style)
    for summary in summaries:
        if summary.interval is not None:
            at = places[summary.arm]
            ends = [scale * end for end in summary.interval]
            axes.plot([at, at], ends, color=style["color"], lw=1.0, alpha=0.7)

"""The marks that the pictures of a sweep have for one arm: its seeds, their mean, the
difference."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpkernels.experiments.sweeps.results import Cell, Result, figure_of, place_of
from lpkernels.experiments.sweeps.statistics import ArmSummary, Interval
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.report.figures import plain_numbers

# Its multiples, modulo 1, spread evenly however many seeds there are.
_GOLDEN = (math.sqrt(5) - 1) / 2

_SEED: dict[str, Any] = {"marker": "o", "ms": 4.5, "alpha": 0.45, "mew": 0, "ls": ""}
_DIVERGED: dict[str, Any] = {"marker": "x", "ms": 6, "mew": 1.5, "ls": ""}
_MEAN: dict[str, Any] = {"marker": "D", "ms": 6, "mec": "white", "mew": 0.8}
_T_INTERVAL: dict[str, Any] = {"lw": 1.5}
_BOOTSTRAP: dict[str, Any] = {"lw": 5.5, "alpha": 0.3, "solid_capstyle": "butt"}


def scale_of(metric: Metric) -> float:
    """The factor by which figures are multiplied where they are shown."""
    return 100.0 if metric.percent else 1.0


def axis_text(value: Any) -> str:
    """A value of an axis as tables and pictures show it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Panel:
    """Axes on which figures run along x (`rows`) or along y, and positions along the other."""

    axes: Any
    rows: bool

    def plot(self, positions: Sequence[float], figures: Sequence[float], **style: Any) -> None:
        self.axes.plot(*((figures, positions) if self.rows else (positions, figures)), **style)

    def interval(self, at: float, interval: Interval | None, scale: float, **style: Any) -> None:
        if interval is not None:
            self.plot([at, at], [scale * end for end in interval], **style)

    def edge(self, at: float, *, low: bool, **style: Any) -> None:
        """A mark on the edge of the axes, for a run without a figure."""
        transform = self.axes.get_yaxis_transform if self.rows else self.axes.get_xaxis_transform
        self.plot([at], [0.0 if low else 1.0], transform=transform(), clip_on=False, **style)

    def note(self, at: float, text: str) -> None:
        """A word at zero, in place of a figure."""
        place = (0.0, at) if self.rows else (at, 0.0)
        style = {"textcoords": "offset points", "color": "0.4", "fontsize": "small"}
        self.axes.annotate(text, place, (4, 4), **style)

    def zero(self) -> None:
        line = self.axes.axvline if self.rows else self.axes.axhline
        line(0.0, color="0.5", lw=1, zorder=0)

    def finish(self, label: str) -> None:
        """Names the figures and leaves only what helps to read them."""
        self.axes.set(**{"xlabel" if self.rows else "ylabel": label})
        plain_numbers(self.axes.xaxis if self.rows else self.axes.yaxis)
        self.axes.grid(alpha=0.3, axis="x" if self.rows else "y")
        self.axes.spines[["top", "right"]].set_visible(False)


@dataclass(frozen=True)
class Marks:
    """The marks of any summary of these results."""

    groups: Mapping[Cell, Sequence[Result]]
    metric: Metric
    colours: Mapping[str, str]

    def seeds(self, panel: Panel, summary: ArmSummary, band: Sequence[float]) -> None:
        """A mark for each run that came to a result, spread over the band of positions."""
        results = self.groups[place_of(summary.axes), summary.arm]
        for index, result in enumerate(r for r in results if r.status != "failed"):
            at = band[0] + (band[1] - band[0]) * ((0.5 + index * _GOLDEN) % 1)
            figure = figure_of(result, self.metric.field)
            style = _DIVERGED if result.status == "diverged" else _SEED
            style = {**style, "color": self.colours[summary.arm]}
            if figure is not None:
                panel.plot([at], [scale_of(self.metric) * figure], **style)
            else:
                # On the side where the figures of runs are worst.
                panel.edge(at, low=self.metric.higher, **style)

    def mean(self, panel: Panel, summary: ArmSummary, at: float) -> None:
        if summary.mean is not None:
            scale, colour = scale_of(self.metric), self.colours[summary.arm]
            panel.interval(at, summary.interval, scale, color=colour, **_T_INTERVAL)
            panel.plot([at], [scale * summary.mean], color=colour, **_MEAN)

    def difference(self, panel: Panel, summary: ArmSummary, at: float) -> None:
        found = summary.difference
        if found is not None and found.mean is not None:
            scale, colour = scale_of(self.metric), self.colours[summary.arm]
            panel.interval(at, found.bootstrap, scale, color=colour, **_BOOTSTRAP)
            panel.interval(at, found.interval, scale, color=colour, **_T_INTERVAL)
            panel.plot([at], [scale * found.mean], color=colour, **_MEAN)
        elif found is not None:
            panel.note(at, "no pairs")

    def lines(
        self, panels: Sequence[Panel], summaries: Sequence[ArmSummary], at: Sequence[float]
    ) -> None:
        """Thin lines through the means, and through the differences, of one arm."""
        differences = [summary.difference for summary in summaries]
        means = [summary.mean for summary in summaries]
        shifts = [None if difference is None else difference.mean for difference in differences]
        for panel, values in zip(panels, (means, shifts), strict=False):
            points = [(x, value) for x, value in zip(at, values, strict=True) if value is not None]
            figures = [scale_of(self.metric) * value for _, value in points]
            colour = self.colours[summaries[0].arm]
            panel.plot([x for x, _ in points], figures, color=colour, lw=1, alpha=0.6)

    def examples(self, summaries: Sequence[ArmSummary]) -> list[Any]:
        """For the legend: a grey example of each mark that these summaries have."""
        from matplotlib.lines import Line2D

        percent = f"{100 * summaries[0].level:g}%"
        styles = [("a seed", _SEED)]
        if any(summary.diverged for summary in summaries):
            styles.append(("diverged", _DIVERGED))
        styles.append((f"mean, {percent} t interval", {**_T_INTERVAL, **_MEAN}))
        if any(summary.difference and summary.difference.bootstrap for summary in summaries):
            styles.append((f"{percent} bootstrap interval", _BOOTSTRAP))
        if any(summary.figures < summary.ended for summary in summaries):
            styles.append(("at the edge: without a figure", {"ls": ""}))
        return [Line2D([], [], color="0.35", label=label, **style) for label, style in styles]

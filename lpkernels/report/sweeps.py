"""A sweep as a table, as a file for other programs, and as a picture."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lpkernels.experiments.sweeps.statistics import ArmSummary, Difference, Interval, varied_axes
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.report.sweep_marks import axis_text, scale_of
from lpkernels.report.sweep_plots import plot_sweep

__all__ = ["plot_sweep", "sweep_table", "write_csv"]

# Where a terminal is narrow, words of the names of arms are whole up to that length.
_WHOLE_WORD = 12
_COUNTS = ("seeds", "finished", "diverged", "failed", "figures")
_FIGURES = ("mean", "standard_error", "low", "high", "level")
_DIFFERENCES = (
    "reference", "pairs", "difference", "difference_low", "difference_high", "bootstrap_low",
    "bootstrap_high", "p_holm",
)  # fmt: skip


def sweep_table(summaries: Sequence[ArmSummary], metric: Metric, *, title: str = "") -> Table:
    """A row for each summary; an axis with a single value has no column.

    Where there are differences a row has two lines, so that nothing is cut in 80 columns: the error
    is below the mean, the number of pairs below the difference, the bootstrap interval below
    Student's t interval. Names of arms fold.
    """
    axes = varied_axes(summaries)
    compared = any(summary.difference for summary in summaries)
    numbers = _Numbers.of(summaries, metric)
    table = Table(title=title or None, box=SIMPLE_HEAD, padding=0)
    table.caption, table.caption_justify = _caption(summaries, metric), "left"
    words = [len(word) for summary in summaries for word in summary.arm.split()]
    table.add_column("arm", overflow="fold", min_width=min(_WHOLE_WORD, max(words, default=0)))
    for name in axes:
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("diverged", justify="right", no_wrap=True)
    means = [numbers.mean(summary, "\n" if compared else " ") for summary in summaries]
    widest = max((len(line) for mean in means for line in mean.split("\n")), default=0)
    label = f"{metric.label} (%)" if metric.percent else metric.label
    table.add_column(label, justify="right", min_width=widest)
    for name in ("difference", "t interval\nbootstrap", "Holm p") if compared else ():
        table.add_column(name, justify="right", no_wrap=True)
    for summary, mean, after in zip(summaries, means, [*summaries[1:], None], strict=True):
        values = dict(summary.axes)
        places = [axis_text(values[name]) if name in values else "-" for name in axes]
        runs = f"{summary.diverged}/{summary.ended}"
        if summary.failed:
            runs += ("\n" if compared else ", ") + f"{summary.failed} failed"
        difference = numbers.difference(summary.difference) if compared else []
        last = after is not None and after.axes != summary.axes
        # A Text shows brackets in names as they are; a string would take them for markup.
        cells = map(Text, [summary.arm, *places, runs, mean, *difference])
        table.add_row(*cells, end_section=last)
    return table


def write_csv(summaries: Sequence[ArmSummary], path: str | Path) -> Path:
    """A line for each summary, with all axes: numbers as they are, none times 100; empty where
    there is none. The p value is the corrected one. A name that a spreadsheet would take for a
    formula has an apostrophe before it.
    """
    axes = list(dict.fromkeys(name for summary in summaries for name, _ in summary.axes))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["arm", *map(_harmless, axes), *_COUNTS, *_FIGURES, *_DIFFERENCES])
        for summary in summaries:
            values = dict(summary.axes)
            places = [values.get(name) for name in axes]
            counts = [getattr(summary, name) for name in _COUNTS]
            figures = [summary.mean, summary.error, *_ends(summary.interval), summary.level]
            difference = _difference_values(summary.difference)
            row = [summary.arm, *places, *counts, *figures, *difference]
            writer.writerow(map(_harmless, row))
    return path


def _harmless(value: Any) -> Any:
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula else value


def _difference_values(found: Difference | None) -> list[Any]:
    if found is None:
        return [None] * len(_DIFFERENCES)
    ends = (*_ends(found.interval), *_ends(found.bootstrap))
    return [found.reference, found.pairs, found.mean, *ends, found.p_holm]


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


@dataclass(frozen=True)
class _Numbers:
    """How the figures of a table are written: times `scale`, with so many decimal places."""

    scale: float
    places: int

    @classmethod
    def of(cls, summaries: Sequence[ArmSummary], metric: Metric) -> "_Numbers":
        """Two digits of the smallest standard error; four of the smallest mean if there is none."""
        scale = scale_of(metric)
        if metric.percent:
            # Test sets have a few hundred to ten thousand examples.
            return cls(scale, 2)
        errors = [summary.error for summary in summaries if summary.error]
        means = [abs(summary.mean) for summary in summaries if summary.mean]
        smallest, digits = (min(errors), 2) if errors else (min(means, default=1.0), 4)
        # More than six places are wider than their column.
        return cls(scale, min(6, max(0, digits - 1 - math.floor(math.log10(smallest)))))

    def mean(self, summary: ArmSummary, separator: str) -> str:
        """Mean and error, and the number of seeds in them if a run that ended is missing."""
        if summary.mean is None:
            return "-"
        text = self._number(summary.mean)
        if summary.error is not None:
            text += f"{separator}± {self._number(summary.error)}"
        return f"{text} ({summary.figures})" if summary.figures < summary.ended else text

    def difference(self, found: Difference | None) -> list[str]:
        """The cells of a difference; the reference has empty cells."""
        if found is None:
            return ["reference", "", ""]
        if found.mean is None:
            return ["no pairs", "-", "-"]
        pairs = f"{found.pairs} pair" + ("s" if found.pairs > 1 else "")
        ends = [
            f"[{self._number(interval.low)}, {self._number(interval.high)}]"
            for interval in (found.interval, found.bootstrap)
            if interval is not None
        ]
        mean = self._number(found.mean)
        sign = "+" if float(mean) > 0.0 else ""
        return [f"{sign}{mean}\n{pairs}", "\n".join(ends) or "-", _p_text(found.p_holm)]

    def _number(self, value: float) -> str:
        # Adding zero takes the sign from a number that rounds to -0.
        return f"{round(self.scale * value, self.places) + 0.0:.{self.places}f}"


def _p_text(p: float | None) -> str:
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _caption(summaries: Sequence[ArmSummary], metric: Metric) -> Text:
    better = "higher" if metric.higher else "lower"
    parts = [
        "diverged: of the runs that came to a result",
        f"{metric.label}: mean ± standard error over seeds, {better} is better",
    ]
    if any(summary.figures < summary.ended for summary in summaries):
        parts.append("(n): seeds in the mean, where others ended without a figure")
    found = [summary.difference for summary in summaries if summary.difference]
    if found:
        parts.append(
            f"difference: arm minus {found[0].reference}, paired by seed, with its "
            f"{100 * summaries[0].level:g}% intervals by Student's t and bootstrap over seeds"
        )
        tests = sum(difference.p_holm is not None for difference in found)
        if tests:
            parts.append(
                f"Holm p: two-sided paired t-test, corrected for the {tests} in this table"
            )
        parts.append("-: too few seeds, or all alike")
    return Text("; ".join(parts))

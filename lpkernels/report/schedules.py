"""Schedules of precisions, in the terminal and as pictures."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lpkernels.report.figures import finish, panels, whole_numbers
from lpkernels.report.tables import make_table
from lpkernels.techniques.cpt import PrecisionScheduler

_LABELS = {
    "forward": "forward bits",
    "backward": "gradient bits",
    "accumulator": "mantissa bits of accumulators",
}


def schedule_view(scheduler: PrecisionScheduler, title: str) -> RenderableType:
    """A schedule: the steps at each precision, and its cost."""
    parts: list[RenderableType] = []
    for label, plan in _moving_plans(scheduler).items():
        parts += [Text(f"{label}, {len(plan)} steps"), _occupancy_table(plan)]
    return Group(Text(title, style="bold"), *parts, _cost_table(scheduler))


def _moving_plans(scheduler: PrecisionScheduler) -> dict[str, np.ndarray]:
    """The bits of the first track, and of all others that do not stay constant, by label."""
    main = next(iter(scheduler.schedules))
    return {
        _LABELS[track]: schedule.plan(scheduler.total_steps)
        for track, schedule in scheduler.schedules.items()
        if track == main or schedule.bits[0] < schedule.bits[1]
    }


def _occupancy_table(plan: np.ndarray) -> Table:
    counts = zip(*np.unique(plan, return_counts=True), strict=True)
    rows = [(str(bits), str(steps), f"{steps / len(plan):.2%}") for bits, steps in counts]
    return make_table(("bits", "steps", "share"), [*rows, ("mean", "", f"{plan.mean():.3f}")])


def _cost_table(scheduler: PrecisionScheduler) -> Table:
    rows = []
    for kind, track in (("bitops", "forward"), ("accumulator", "accumulator")):
        if track in scheduler.schedules:
            mean, static = scheduler.expected_cost(kind), scheduler.static_cost(kind)
            rows.append((kind, f"{mean:.6f}", f"{static:.6f}", f"{1 - mean / static:.2%}"))
    columns = ("cost relative to float32", "mean", "constant, highest", "saved")
    caption = "Multiplied bits, or bits of additions."
    return make_table(columns, rows, words=columns[:1], caption=caption)


def plot_schedules(schedulers: Mapping[str, PrecisionScheduler]) -> Any:
    """A figure of the bits of all steps: a panel for each scheduler, under its label."""
    grid = panels(len(schedulers), (4.8, 2.0), sharex=True)
    for axes, (label, scheduler) in zip(grid, schedulers.items(), strict=True):
        plans = _moving_plans(scheduler)
        for name, plan in plans.items():
            text = name if len(plans) > 1 else None
            axes.step(range(len(plan)), plan, where="post", lw=1.2, label=text)
        finish(axes, fontsize="x-small", xlabel="step", ylabel="bits")
        axes.label_outer()
        axes.set_title(label, fontsize="small")
        whole_numbers(axes.yaxis)
    return grid[0].figure

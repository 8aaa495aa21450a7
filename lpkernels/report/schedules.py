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


def schedule_view(scheduler: PrecisionScheduler, title: str) -> RenderableType:
    """A schedule: the steps at each precision, and its cost."""
    parts: list[RenderableType] = []
    for label, plan in _moving_plans(scheduler).items():
        parts += [Text(f"{label}, {len(plan)} steps"), _occupancy_table(plan)]
    mean, static = scheduler.expected_cost(), scheduler.static_cost()
    costs = (("mean", f"{mean:.6f}"), ("constant, highest", f"{static:.6f}"))
    rows = [*costs, ("saved", f"{1 - mean / static:.2%}")]
    caption = "Multiplied bits relative to float32."
    cost_table = make_table(("bitops", ""), rows, words=("bitops",), caption=caption)
    return Group(Text(title, style="bold"), *parts, cost_table)


def _moving_plans(scheduler: PrecisionScheduler) -> dict[str, np.ndarray]:
    """The bits of the forward pass, and of gradients where these do not stay constant, by label."""
    forward, backward = scheduler.plan().T
    plans = {"forward bits": forward, "gradient bits": backward}
    return {label: p for label, p in plans.items() if p is forward or np.ptp(p)}


def _occupancy_table(plan: np.ndarray) -> Table:
    counts = zip(*np.unique(plan, return_counts=True), strict=True)
    rows = [(str(bits), str(steps), f"{steps / len(plan):.2%}") for bits, steps in counts]
    return make_table(("bits", "steps", "share"), [*rows, ("mean", "", f"{plan.mean():.3f}")])


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

"""Schedules of precisions and precision range tests, in the terminal and as pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lpkernels.report.figures import new_figure, save_figure
from lpkernels.report.tables import add_numbers
from lpkernels.techniques.cpt import OpenLoop, PrecisionRange, Schedule, occupancy, saving

__all__ = ["plot_precision_range", "plot_schedules"]

# A shade says what share of the steps of a column is at a precision.
_SHADES = " ░▒▓█"
# Rows of this width leave room for their label in a terminal of 80 columns.
_COLUMNS = 64


def schedule_view(schedule: OpenLoop, steps: int, *, seed: int = 0) -> RenderableType:
    """A schedule over so many steps: a drawing, the steps at each precision, its cost.

    Raises: ValueError: fewer steps than cycles.
    """
    parts: list[RenderableType] = []
    for name, track in _drawn(schedule, seed).items():
        plan = track.plan(steps)
        parts += [Text(f"{name}, {steps} steps"), drawing(plan), _occupancy_table(plan)]
    return Group(Text(str(schedule), style="bold"), *parts, _cost_table(schedule, steps, seed))


def _drawn(schedule: OpenLoop, seed: int) -> dict[str, Schedule]:
    """The parts of a schedule that are worth a drawing: all except those that stay constant."""
    labels = {
        "forward": "forward bits",
        "backward": "gradient bits",
        "weight": "weight bits",
        "accumulator": "mantissa bits of accumulators",
    }
    found = dict(schedule.tracks(seed=seed).items())
    first = next(iter(found))
    moving = {n: s for n, s in found.items() if n == first or s.lowest < s.highest}
    return {labels[name]: track for name, track in moving.items()}


def drawing(plan: np.ndarray, *, columns: int = _COLUMNS) -> Text:
    """Rows of bits, the highest first, over columns of steps; darker is a larger share of them."""
    parts = np.array_split(plan, min(columns, len(plan)))
    text = Text()
    for bits in range(int(plan.max()), int(plan.min()) - 1, -1):
        shares = [float((part == bits).mean()) for part in parts]
        row = "".join(_SHADES[int(np.ceil(share * (len(_SHADES) - 1)))] for share in shares)
        text.append(f"{bits:3d} {row}\n")
    return text


def _occupancy_table(plan: np.ndarray) -> Table:
    table = Table()
    add_numbers(table, "bits", "steps", "share")
    for bits, share in occupancy(plan).items():
        table.add_row(str(bits), str(round(share * len(plan))), f"{share:.2%}")
    table.add_row("mean", "", f"{plan.mean():.3f}")
    return table


def _cost_table(schedule: OpenLoop, steps: int, seed: int) -> Table:
    table = Table("cost relative to float32", caption="Multiplied bits, or bits of additions.")
    add_numbers(table, "mean", "constant, highest", "saved")
    kinds = {"bitops": schedule.bits, "accumulator": schedule.accumulator}
    for kind in (kind for kind, pair in kinds.items() if pair is not None):
        found = schedule.costs(steps, kind, seed=seed)
        mean, static = float(found[:-1].mean()), float(found[-1])
        table.add_row(kind, f"{mean:.6f}", f"{static:.6f}", f"{saving(mean, static):.2%}")
    return table


def plot_schedules(
    schedules: Sequence[OpenLoop] | Mapping[str, OpenLoop],
    steps: int,
    path: str | Path,
    *,
    title: str = "",
    seed: int = 0,
) -> Path:
    """Draws the bits of schedules over so many steps, a panel for each, into `path`.

    Args:
        schedules: with labels, or by their own texts.
        steps: of the run.
        seed: of shuffled schedules that have none.
        path: the file; its ending says which kind.
        title: above the picture.
    Returns: the path.

    Raises: ValueError: none, fewer steps than cycles, or a file of a kind matplotlib does not know.
    """
    named = dict(schedules) if isinstance(schedules, Mapping) else {str(s): s for s in schedules}
    if not named:
        raise ValueError("plot_schedules: expected at least one schedule, got none")
    across = 1 if len(named) == 1 else 2
    down = -(-len(named) // across)
    figure = new_figure((4.6 * across + 1.5, 1.9 * down + 0.8))
    grid = figure.subplots(down, across, squeeze=False, sharex=True)
    for axes, (label, schedule) in zip(grid.flat, named.items(), strict=False):
        for name, track in _drawn(schedule, seed).items():
            axes.step(range(steps), track.plan(steps), where="post", lw=1.2, label=name)
        axes.set_title(label, fontsize="small")
        axes.grid(alpha=0.3)
        axes.yaxis.get_major_locator().set_params(integer=True)
        if len(axes.lines) > 1:
            axes.legend(fontsize="x-small")
    for axes in grid.flat[len(named) :]:
        axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("step")
    for axes in grid[:, 0]:
        axes.set_ylabel("bits")
    return save_figure(figure, path, title)


def plot_precision_range(result: PrecisionRange, path: str | Path, *, title: str = "") -> Path:
    """Draws the accuracy at each candidate of a precision range test, and the bounds if it has any.

    Args:
        result: of `lpkernels.techniques.cpt.precision_range_test`.
        path: the file; its ending says which kind.
        title: above the picture.
    Returns: the path.
    Raises: ValueError: a file of a kind that matplotlib does not know.
    """
    figure = new_figure((9.5, 3.8))
    curves, ends = figure.subplots(1, 2, width_ratios=(3, 2))
    for level in result.trace:
        window = min(result.window, len(level.accuracy))
        smooth = np.convolve(level.accuracy, np.ones(window) / window, "valid")
        at = np.arange(window, window + len(smooth))
        style = "-" if level.passed else ":"
        curves.plot(at, smooth, style, lw=1.2, label=f"{level.bits} bits")
    curves.set(xlabel="step", ylabel=f"accuracy, mean of {result.window} steps")
    curves.legend(fontsize="x-small", ncols=2)
    bits = [level.bits for level in result.trace]
    ends.plot(bits, [level.first for level in result.trace], "o--", label="first window")
    ends.plot(bits, [level.last for level in result.trace], "o-", label="last window")
    for bound, label in zip(result.bits or (), ("lowest", "highest"), strict=False):
        ends.axvline(bound, color="0.5", lw=1)
        ends.annotate(label, (bound, 0.02), xycoords=("data", "axes fraction"), rotation=90)
    ends.set(xlabel="bits", xticks=bits)
    ends.legend(fontsize="x-small")
    for axes in (curves, ends):
        axes.grid(alpha=0.3)
    return save_figure(figure, path, title)

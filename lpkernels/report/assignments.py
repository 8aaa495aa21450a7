"""Precision assignments in the terminal and as pictures."""

from pathlib import Path
from typing import Any

from rich.table import Table

from lpkernels.report.figures import new_figure, save_figure
from lpkernels.report.tables import add_numbers
from lpkernels.techniques.assignment import Assignment, Group, TensorSpec

# The rows of a picture, from above, and the name of each.
_KINDS = {
    "activation": "results",
    "grad_activation": "their gradients",
    "weight": "weights",
    "grad_weight": "their gradients",
}
_LOW, _HIGH = "#2f7fc1", "#d9a441"
# Names of groups that stand closer cannot be read.
_INCHES_PER_GROUP = 0.16


def assignment_table(assignment: Assignment, *, title: str = "") -> Table:
    """A row for each group: its ends, its elements, how much of it is low, and its bits."""
    table = Table(title=title, caption=_caption(assignment))
    for column in ("group", "from", "to"):
        table.add_column(column, justify="right" if column == "group" else "left", overflow="fold")
    add_numbers(table, "elements", "low", "bits")
    for group in assignment.groups:
        low = sum(t.numel for t in group.tensors if t.key in assignment.low)
        bits = sum(assignment.formats.bits(t, t.key in assignment.low) for t in group.tensors)
        share = f"{low / group.numel:.0%}" if group.numel else "-"
        cells = [str(group.index), *_ends(group), f"{group.numel:,}", share, f"{bits:,}"]
        table.add_row(*cells, style="" if low else "dim")
    return table


def _caption(assignment: Assignment) -> str:
    low = len(assignment.low_groups)
    demoted = f"{low} of {len(assignment.groups)} groups demoted: " if low else ""
    without = f", without what is computed inside {', '.join(assignment.unknown)}"
    return (
        f"{demoted}low-precision ratio {assignment.ratio:.4f}, bit ratio "
        f"{assignment.bit_ratio:.4f}, {assignment.bits:,} of {assignment.high_bits:,} bits"
        f"{without if assignment.unknown else ''}"
    )


def _is_low(assignment: Assignment, tensor: TensorSpec) -> bool:
    """Whether a tensor is demoted, and its low precision is another than its high one."""
    high, low = (assignment.formats.of(tensor.kind, each) for each in (False, True))
    return tensor.key in assignment.low and low != high


def _ends(group: Group) -> tuple[str, str]:
    """The first and the last result."""
    results = [t.key.removesuffix(".Y") for t in group.tensors if t.kind == "activation"]
    return (results[0], results[-1]) if results else ("-", "-")


def plot_assignment(assignment: Assignment, path: str | Path, *, title: str = "") -> Path:
    """Draws the groups by size, named by their first and last layer, and, below, every tensor along
    the network in its precision.

    Tensors that their low precision rounds as their high one does, as the paper's gradients of
    weights, are drawn in high precision.

    Raises: ValueError: a file of a kind that matplotlib does not know.
    """
    from matplotlib.patches import Patch

    groups = assignment.groups
    figure = new_figure((max(10.0, _INCHES_PER_GROUP * len(groups)), 6.4))
    sizes, tensors = figure.subplots(2, 1, height_ratios=(3, 2))
    at = range(len(groups))
    low = [sum(t.numel for t in group.tensors if _is_low(assignment, t)) for group in groups]
    high = [group.numel - each for group, each in zip(groups, low, strict=True)]
    sizes.bar(at, low, color=_LOW)
    sizes.bar(at, high, bottom=low, color=_HIGH)
    sizes.set(
        xlabel="group and its layers", ylabel="elements", xticks=at, xlim=(-0.6, len(groups) - 0.4)
    )
    sizes.set_ylim(0, 1.06 * max(group.numel for group in groups))
    names = [f"{group.index}: {' .. '.join(dict.fromkeys(_ends(group)))}" for group in groups]
    sizes.set_xticklabels(names, fontsize="x-small", rotation=90)
    sizes.grid(axis="y", alpha=0.3)
    legend = [Patch(color=_LOW, label="low precision"), Patch(color=_HIGH, label="high precision")]
    sizes.legend(handles=legend, fontsize="small")
    _plot_tensors(assignment, tensors)
    return save_figure(figure, path, title)


def _plot_tensors(assignment: Assignment, axes: Any) -> None:
    """A row for each kind; a group's tensors share its width, in the order of the network."""
    for row, kind in enumerate(_KINDS):
        for position, group in enumerate(assignment.groups):
            found: list[TensorSpec] = [t for t in group.tensors if t.kind == kind]
            for number, tensor in enumerate(found):
                width = 0.9 / len(found)
                color = _LOW if _is_low(assignment, tensor) else _HIGH
                left = position - 0.45 + number * width
                axes.barh(row, 0.92 * width, left=left, height=0.75, align="center", color=color)
    axes.set(
        yticks=range(len(_KINDS)), xlabel="tensors of each group, along the network", xticks=[],
        xlim=(-0.6, len(assignment.groups) - 0.4), ylim=(len(_KINDS) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_yticklabels(list(_KINDS.values()), fontsize="small")

"""Precision assignments in the terminal and as pictures."""

from pathlib import Path

from rich.table import Table

from lpkernels.report.figures import new_figure, save_figure
from lpkernels.report.tables import make_table
from lpkernels.techniques.assignment import Assignment, Group, TensorSpec

_LOW, _HIGH = "#2f7fc1", "#d9a441"
# Names of groups that stand closer cannot be read.
_INCHES_PER_GROUP = 0.16


def assignment_table(assignment: Assignment, *, title: str = "") -> Table:
    """A row for each group: its ends, its elements, how much of it is low, and its bits."""
    rows = []
    for group in assignment.groups:
        low = sum(t.numel for t in group.tensors if t.key in assignment.low)
        bits = sum(assignment.formats.bits(t, t.key in assignment.low) for t in group.tensors)
        share = f"{low / group.numel:.0%}" if group.numel else "-"
        rows.append((str(group.index), *_ends(group), f"{group.numel:,}", share, f"{bits:,}"))
    columns = ("group", "from", "to", "elements", "low", "bits")
    return make_table(columns, rows, words=columns[1:3], title=title, caption=_caption(assignment))


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
    high, low = (assignment.formats.of(tensor.kind, low) for low in (False, True))
    return tensor.key in assignment.low and low != high


def _ends(group: Group) -> tuple[str, str]:
    """The first and the last result."""
    results = [t.key.removesuffix(".Y") for t in group.tensors if t.kind == "activation"]
    return (results[0], results[-1]) if results else ("-", "-")


def plot_assignment(assignment: Assignment, path: str | Path, *, title: str = "") -> Path:
    """Draws the elements of each group in low and in high precision, by the names of its first and
    its last layer.

    Tensors that their low precision rounds as their high one does, as the paper's gradients of
    weights, are drawn in high precision.

    Raises: ValueError: a file of a kind that matplotlib does not know.
    """
    groups = assignment.groups
    axes = new_figure((max(10.0, _INCHES_PER_GROUP * len(groups)), 4.4)).subplots()
    low = [sum(t.numel for t in group.tensors if _is_low(assignment, t)) for group in groups]
    high = [group.numel - elements for group, elements in zip(groups, low, strict=True)]
    axes.bar(range(len(groups)), low, color=_LOW, label="low precision")
    axes.bar(range(len(groups)), high, bottom=low, color=_HIGH, label="high precision")
    names = [f"{group.index}: {' .. '.join(dict.fromkeys(_ends(group)))}" for group in groups]
    axes.set_xticks(range(len(groups)), names, fontsize="x-small", rotation=90)
    axes.set(xlabel="group and its layers", ylabel="elements", xlim=(-0.6, len(groups) - 0.4))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")
    return save_figure(axes.figure, path, title)

"""Precision assignments as pictures."""

from pathlib import Path

from lpkernels.report.figures import new_figure, save_figure
from lpkernels.techniques.assignment import Assignment, TensorSpec

_LOW, _HIGH = "#2f7fc1", "#d9a441"
# Names of groups that stand closer cannot be read.
_INCHES_PER_GROUP = 0.16


def _is_low(assignment: Assignment, tensor: TensorSpec) -> bool:
    """Whether a tensor is demoted, and its low precision is another than its high one."""
    high, low = (assignment.formats.of(tensor.kind, low) for low in (False, True))
    return tensor.key in assignment.low and low != high


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
    names = [f"{group.index}: {' .. '.join(dict.fromkeys(group.ends))}" for group in groups]
    axes.set_xticks(range(len(groups)), names, fontsize="x-small", rotation=90)
    axes.set(xlabel="group and its layers", ylabel="elements", xlim=(-0.6, len(groups) - 0.4))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")
    return save_figure(axes.figure, path, title)

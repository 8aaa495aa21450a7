"""From recorded steps to Ops: what the loss depends on, and names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lpkernels.techniques.assignment.grouping import key_of
from lpkernels.techniques.assignment.ops import Kept, Op
from lpkernels.techniques.assignment.tracing.flow import Maker, Parameter, Step


def named(steps: Sequence[Step], ends: Iterable[Step]) -> dict[Step, str]:
    """The steps that these ends depend on, in order, and their names."""
    return _names(_needed(steps, ends))


def finished(names: Mapping[Step, str]) -> tuple[tuple[Op, ...], list[str]]:
    """The Ops, and the operations among them that are not known, with where they are."""
    ops = tuple(
        Op(
            names[step], step.is_gemm, tuple(names[each] for each in step.inputs), _params(step),
            step.numel, step.operation, step.known, _keeps(step, names),
        )
        for step in names
    )  # fmt: skip
    unknown = [f"{step.operation} ({name})" for step, name in names.items() if not step.known]
    return ops, unknown


def _params(step: Step) -> dict[str, int]:
    """In the order of the model, which is not that of the arguments in every function."""
    # A dot says that it is the full name, and no name within the Op.
    return {
        p.name if "." in p.name else f".{p.name}": p.numel
        for p in sorted(step.params, key=lambda p: p.number)
    }


def _keeps(step: Step, names: Mapping[Step, str]) -> tuple[Kept, ...] | None:
    if step.keeps is None:
        return None
    return tuple(
        Kept(tuple(_key(maker, names) for maker in keep.makers), keep.number, keep.size)
        for keep in step.keeps
        # Nobody rounds or keeps what the loss does not need.
        if all(isinstance(maker, Parameter) or maker in names for maker in keep.makers)
    )


def _key(maker: Maker, names: Mapping[Step, str]) -> str:
    if isinstance(maker, Parameter):
        return key_of(maker.name, "weight")
    return key_of(names[maker], "activation")


def _needed(steps: Sequence[Step], ends: Iterable[Step]) -> list[Step]:
    """What the ends depend on, and the network's inputs of that."""
    waiting = list(ends)
    found = set(waiting)
    while waiting:
        new = [step for step in waiting.pop().inputs if step not in found]
        found.update(new)
        waiting += new
    return [step for step in steps if step in found]


def _names(steps: Sequence[Step]) -> dict[Step, str]:
    calls = Counter(step.run for step in steps)
    names: dict[Step, str] = {}
    taken: set[str] = set()
    for step in steps:
        first = name = _name(step, calls[step.run] == 1)
        number = 0
        while name in taken:
            number += 1
            name = f"{first}_{number}"
        names[step] = name
        taken.add(name)
    return names


def _name(step: Step, is_alone: bool) -> str:
    """is_alone: it is the only step of this run of its module."""
    what = step.part or step.operation
    run = step.run
    if run is None:
        return f"input.{what}" if step.part else "input"
    if run.module is None:
        return f"loss.{what}"
    if is_alone and run.name and not list(run.module.children()):
        return run.name
    return f"{run.name}.{what}" if run.name else what

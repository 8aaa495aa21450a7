"""An assignment: which tensors are in low precision, the bits that this saves, its file and its
table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import get_args

from lpkernels._table import Tabular, TextTable
from lpkernels.arithmetic import Quantizer
from lpkernels.schemas import SCHEMA
from lpkernels.techniques.assignment.operations import Group, Kind, TensorSpec, regroup
from lpkernels.techniques.assignment.precisions import (
    NONE,
    PAPER,
    Formats,
    PinnedKeys,
    Pins,
    held,
    named,
    ties,
)
from lpkernels.techniques.saving import read, write

_WHAT = "lpkernels assignment"


@dataclass(frozen=True)
class Assignment(Tabular):
    """The precision of every tensor of a network's training. `demote` and others make it.

    groups: all tensors, tied ones together.
    low: keys of the tensors in low precision.
    low_groups: indices of the groups that were demoted, in that order; () where no rule by groups
        made the assignment. A promotion takes tensors out of `low` and leaves this as it is.
    formats: the formats of high and low precision.
    pins: the tensors that were asked to be held or tied.

    Memory is the sum over all tensors, as the paper counts it: no peak, no liveness.
    """

    groups: tuple[Group, ...]
    low: frozenset[str]
    low_groups: tuple[int, ...] = ()
    formats: Formats = PAPER
    pins: Pins = NONE

    def _table(self) -> TextTable:
        return _table(self)

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """All tensors by key."""
        return {tensor.key: tensor for group in self.groups for tensor in group.tensors}

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """The operations that are not known, such as recurrent layers. Tensors inside them are no
        tensors here, so `ratio` and every number of bits leave them out."""
        results = (t for t in self.tensors.values() if t.kind == "activation" and not t.known)
        return tuple(result.key.removesuffix(".Y") for result in results)

    @cached_property
    def held(self) -> PinnedKeys:
        """The keys of the tensors that stay in their precision."""
        return held(self.groups, self.pins)

    @cached_property
    def numel(self) -> int:
        """Elements of all tensors."""
        return sum(group.numel for group in self.groups)

    @cached_property
    def low_numel(self) -> int:
        """Elements of the tensors in low precision."""
        return sum(self.tensors[key].numel for key in self.low)

    @property
    def ratio(self) -> float:
        """The low-precision ratio: elements in low precision over all; 0 where there are none.

        Tensors whose format is the same in low precision (the paper's gradients of weights) count
        too.
        """
        return self.low_numel / self.numel if self.numel else 0.0

    @cached_property
    def bits(self) -> int:
        """Bits of all tensors, each in its format."""
        return sum(self.formats.bits(t, t.key in self.low) for t in self.tensors.values())

    @cached_property
    def high_bits(self) -> int:
        """Bits if every tensor were in high precision."""
        return sum(self.formats.bits(tensor, False) for tensor in self.tensors.values())

    @property
    def bit_ratio(self) -> float:
        """2 * (high_bits - bits) / high_bits: 1 where all bits are halved, as the paper plots it.

        It lies below `ratio` where low precision of some kind is as wide as high precision.
        """
        return 2 * (self.high_bits - self.bits) / self.high_bits if self.high_bits else 0.0

    def is_low(self, key: str) -> bool:
        """Whether the tensor is in low precision.

        Raises: ValueError: no tensor has that key.
        """
        return self._tensor(key).key in self.low

    def format_of(self, key: str) -> Quantizer:
        """How the tensor is rounded.

        Raises: ValueError: no tensor has that key.
        """
        tensor = self._tensor(key)
        return self.formats.of(tensor.kind, key in self.low)

    def promoted(self, keys: Iterable[str]) -> Assignment:
        """The same assignment with these tensors in high precision.

        Raises: ValueError: no tensor has that key.
        """
        return replace(self, low=self.low - {self._tensor(key).key for key in keys})

    def tied_with(self, key: str) -> frozenset[str]:
        """The tensors that share its precision at all times, itself among them."""
        together = (tied for tied in ties(self.pins, list(self.tensors)) if key in tied)
        return next(together, frozenset({key}))

    def check(self, groups: Sequence[Group], *, batch: bool = True) -> None:
        """Checks that the assignment is of the network with these groups.

        batch: at their batch size; False: at whatever batch size.
        Raises: ValueError: tensors that only one of the two has, or of other sizes.
        """
        sized: tuple[Kind, ...] = get_args(Kind) if batch else ("weight", "grad_weight")
        _check_same(self.groups, groups, sized)

    def save(self, path: str | Path) -> None:
        """Writes it as JSON."""
        kinds = get_args(Kind)
        write(
            path,
            {
                "what": _WHAT,
                "schema": SCHEMA,
                "formats": {k: [str(each) for each in getattr(self.formats, k)] for k in kinds},
                "pins": {name: list(getattr(self.pins, name)) for name in ("high", "low", "tied")},
                "low_groups": list(self.low_groups),
                "tensors": [
                    [t.key, t.kind, t.numel, t.group, t.known, t.key in self.low]
                    for t in self.tensors.values()
                ],
            },
            rows="tensors",
        )

    @classmethod
    def load(cls, path: str | Path, groups: Sequence[Group] | None = None) -> Assignment:
        """Reads what `save` wrote.

        groups: the groups of the assignment's model, group(trace(model, loss, batch)). None: not
            checked.
        Raises: ValueError: the file is not of an assignment, contradicts itself, or is of another
            model or batch.
        """
        values = read(path, _WHAT, f"an {_WHAT}", "its save()", key="what")
        try:
            rows = [(TensorSpec(*row[:5]), row[5]) for row in values["tensors"]]
            found = cls(
                regroup(tensor for tensor, _ in rows),
                frozenset(tensor.key for tensor, is_low in rows if is_low),
                tuple(values["low_groups"]),
                Formats(**{kind: tuple(pair) for kind, pair in values["formats"].items()}),
                Pins(**values["pins"]),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{path}: a field is missing or of another type: {error}") from error
        if groups is not None:
            found.check(groups)
        return found

    def _tensor(self, key: str) -> TensorSpec:
        if key not in self.tensors:
            raise ValueError(
                f"assignment: no tensor has the key {key!r}; keys are such as "
                f"{', '.join(map(repr, list(self.tensors)[:4]))}"
            )
        return self.tensors[key]


def _check_same(mine: Sequence[Group], model: Sequence[Group], kinds: Sequence[Kind]) -> None:
    """Raises: ValueError: the groups do not hold the same tensors, or a tensor of these kinds has
    another size."""
    of_mine, of_model = (_sizes(groups) for groups in (mine, model))
    missing, extra = of_model.keys() - of_mine.keys(), of_mine.keys() - of_model.keys()
    if missing or extra:
        lacking = {"it lacks ": missing, "the model lacks ": extra}
        told = " and ".join(who + named(keys) for who, keys in lacking.items() if keys)
        raise ValueError(
            f"assignment: it is of another model: {told}; trace the model and demote its own groups"
        )
    other = [key for key, size in of_model.items() if of_mine[key] != size and size[0] in kinds]
    if other:
        key = other[0]
        weights = any(of_model[each][0] in ("weight", "grad_weight") for each in other)
        raise ValueError(
            f"assignment: it is of another {'model' if weights else 'batch'}: {len(other)} tensors "
            f"have other sizes; {key!r} has {of_mine[key][1]} elements in it and {of_model[key][1]}"
            " in the model; trace with the batch it was made for, or make it again"
        )


def _sizes(groups: Sequence[Group]) -> dict[str, tuple[str, int]]:
    return {t.key: (t.kind, t.numel) for group in groups for t in group.tensors}


def _table(assignment: Assignment) -> TextTable:
    """Group by group: its first and last result, elements, the share that is low, and bits."""
    head = ("group", "from", "to", "tensors", "elements", "low", "bits")
    rows = [head, *(_row(assignment, group) for group in assignment.groups)]
    of = f"of {assignment.high_bits:,}" if assignment.high_bits else "of none"
    notes = [
        f"low-precision ratio {assignment.ratio:.4f}, {assignment.bits:,} bits {of} in high "
        f"precision, bit ratio {assignment.bit_ratio:.4f}"
    ]
    if assignment.unknown:
        notes.append(f"without what is computed inside {', '.join(assignment.unknown)}")
    return TextTable(rows, (1, 2), notes)


def _row(assignment: Assignment, group: Group) -> tuple[str, ...]:
    results = [t.key.removesuffix(".Y") for t in group.tensors if t.kind == "activation"]
    first, last = (results[0], results[-1]) if results else ("-", "-")
    low = sum(t.numel for t in group.tensors if t.key in assignment.low)
    share = f"{100 * low / group.numel:.0f}%" if group.numel else "-"
    bits = sum(assignment.formats.bits(t, t.key in assignment.low) for t in group.tensors)
    return (
        str(group.index), first, last, str(len(group.tensors)), f"{group.numel:,}", share,
        f"{bits:,}",
    )  # fmt: skip

"""An assignment: which tensors are in low precision, and what that saves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from lpkernels.arithmetic import Quantizer
from lpkernels.techniques.assignment import _saving, _table
from lpkernels.techniques.assignment.grouping import Group, TensorSpec
from lpkernels.techniques.assignment.pins import NONE, Held, Pins, held, ties
from lpkernels.techniques.assignment.precisions import PAPER, Formats


@dataclass(frozen=True)
class Assignment:
    """The precision of every tensor of a network's training. `demote` and others make it.

    groups: all tensors, tied ones together.
    low: keys of the tensors in low precision.
    low_groups: indices of the groups that were demoted, in that order; () where no rule by groups
        made the assignment. A promotion takes tensors out of `low` and leaves this as it is.
    formats: what high and low are.
    pins: the tensors that were asked to be held or tied.

    Memory is the sum over all tensors, as the paper counts it: no peak, no liveness.
    """

    groups: tuple[Group, ...]
    low: frozenset[str]
    low_groups: tuple[int, ...] = ()
    formats: Formats = PAPER
    pins: Pins = NONE

    def __str__(self) -> str:
        return _table.table(self)

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """All tensors by key."""
        return {tensor.key: tensor for group in self.groups for tensor in group.tensors}

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """The operations that are not known, such as recurrent layers. What they compute inside is
        no tensor here, so `ratio` and every number of bits leave it out."""
        results = (t for t in self.tensors.values() if t.kind == "activation" and not t.known)
        return tuple(result.key.removesuffix(".Y") for result in results)

    @cached_property
    def held(self) -> Held:
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

    def check(self, groups: Sequence[Group]) -> None:
        """Checks that the assignment is of the network with these groups, at their batch size.

        Raises: ValueError: tensors that only one of the two has, or of other sizes.
        """
        _saving.check_same(self.groups, groups)

    def check_keys(self, groups: Sequence[Group]) -> None:
        """Checks that the assignment is of the network with these groups, at whatever batch size.

        Raises: ValueError: tensors that only one of the two has, or parameters of other sizes.
        """
        _saving.check_same(self.groups, groups, kinds=("weight", "grad_weight"))

    def save(self, path: str | Path) -> None:
        """Writes it as JSON."""
        _saving.write(path, _saving.to_json(self))

    @classmethod
    def load(cls, path: str | Path, groups: Sequence[Group] | None = None) -> Assignment:
        """Reads what `save` wrote.

        groups: of the model that it is for: group(trace(model, loss, batch)). None: not checked.
        Raises: ValueError: no file of an assignment, or one of another model or batch.
        """
        fields = _saving.from_json(path)
        found = cls(**fields)
        if groups is not None:
            found.check(groups)
        return found

    def _tensor(self, key: str) -> TensorSpec:
        if key not in self.tensors:
            raise ValueError(
                f"assignment: no tensor has the key {key!r}; keys are such as "
                f"{', '.join(repr(known) for known in list(self.tensors)[:4])}"
            )
        return self.tensors[key]

"""Demotion: which groups go to low precision, for a ratio or a budget of bits."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, get_args

from lpkernels.techniques import checks
from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.operations import Group, TensorSpec
from lpkernels.techniques.assignment.precisions import NONE, PAPER, Formats, Pins, held, tie

Order = Literal["decreasing", "increasing", "random"]


def demote(
    groups: Sequence[Group],
    ratio: float | Fraction | None = None,
    *,
    order: Order = "decreasing",
    seed: int | None = None,
    formats: Formats = PAPER,
    pins: Pins = NONE,
    bits: int | None = None,
) -> Assignment:
    """The assignment with the first groups of an order in low precision, as many as demanded.

    All groups are high at first. Then, group by group, the rule stops if the low-precision ratio
    has reached `ratio` (or the bits are within `bits`), and else takes the group to low precision.
    So it takes the smallest prefix of the order that is enough, and the prefix of a smaller demand
    is a part of the prefix of a larger one. All comparisons are in integers, with the ratio as the
    exact value of the float; 0 demotes nothing and 1 everything.

    These are the orders, in which equal groups go by index: "decreasing" size, the paper's;
    "increasing" size; "random" by seed, the same on every machine.

    Tensors that pins hold high, and tensors of operations that are not known, stay high; so a ratio
    above the share of the other tensors is not reached, and `Assignment.ratio` is then lower. The
    size of a group counts them.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), Algorithm 1, second part.

    Args:
        groups: of `group`.
        ratio: 0 to 1.
        order, seed: as above.
        formats: the formats of high and low precision.
        pins: tensors held or tied.
        bits: instead of the ratio: the most bits that all tensors may have together, ours.

    Raises:
        TypeError, ValueError: ratio outside [0, 1], both or none of ratio and bits, an unknown
            order, a seed missing or not used, a glob that matches nothing, a budget of bits that
            cannot be met.

    >>> from lpkernels.techniques.assignment import demote, group, trace
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> round(demote(group(trace(model, loss, batch)), 0.3).ratio, 3)
    0.56
    """
    groups = tuple(groups)
    if not groups or not all(isinstance(group, Group) for group in groups):
        raise TypeError("demote: expected the groups of group(ops), at least one")
    check_demand("demote", ratio, bits, order, seed)
    kept = held(groups, pins)
    groups = tie(groups, pins)
    state = _Demotion(formats, kept.high, sum(group.numel for group in groups), ratio, bits)
    for group in groups:
        state.start(group, kept.low)
    for group in _ordered(groups, order, seed):
        if state.enough:
            break
        state.lower(group)
    if bits is not None and not state.enough:
        raise ValueError(
            f"demote: bits={bits:,} cannot be met: with every group in low precision there are "
            f"{state.bits:,}; allow as many, or take narrower formats or fewer pins"
        )
    return Assignment(groups, frozenset(state.low), tuple(state.lowered), formats, pins)


@dataclass
class _Demotion:
    """How far a demotion is, and the ratio or bits that it is to reach."""

    formats: Formats
    high: frozenset[str]
    numel: int
    ratio: float | Fraction | None
    most_bits: int | None
    low: set[str] = field(default_factory=set)
    lowered: list[int] = field(default_factory=list)
    low_numel: int = 0
    bits: int = 0

    def start(self, group: Group, low: frozenset[str]) -> None:
        """Counts a group in, with its tensors that are held low."""
        self.bits += sum(self.formats.bits(tensor, False) for tensor in group.tensors)
        self._lower([tensor for tensor in group.tensors if tensor.key in low])

    def lower(self, group: Group) -> None:
        left = self.left(group)
        if left:
            self.lowered.append(group.index)
        self._lower(left)

    def _lower(self, tensors: Sequence[TensorSpec]) -> None:
        self.bits -= self._saved(tensors)
        self.low.update(tensor.key for tensor in tensors)
        self.low_numel += sum(tensor.numel for tensor in tensors)

    def left(self, group: Group) -> list[TensorSpec]:
        """The tensors that the group's demotion would take to low precision."""
        return [t for t in group.tensors if t.key not in self.low and t.key not in self.high]

    def _saved(self, tensors: Sequence[TensorSpec]) -> int:
        return sum(self.formats.bits(t, False) - self.formats.bits(t, True) for t in tensors)

    @property
    def enough(self) -> bool:
        return self.missing <= 0

    @property
    def missing(self) -> int:
        """Bits that are still to be saved, or elements still to be lowered."""
        if self.most_bits is not None:
            return self.bits - self.most_bits
        return math.ceil(Fraction(self.ratio or 0) * self.numel) - self.low_numel


def _ordered(groups: Sequence[Group], order: Order, seed: int | None) -> list[Group]:
    if order == "random":
        # Python promises the same numbers in every version for the method random().
        draw = random.Random(seed)
        drawn = {group.index: draw.random() for group in groups}
        return sorted(groups, key=lambda group: drawn[group.index])
    sign = -1 if order == "decreasing" else 1
    return sorted(groups, key=lambda group: (sign * group.numel, group.index))


def check_demand(label: str, ratio: Any, bits: Any, order: Any, seed: Any) -> None:
    """Raises: TypeError, ValueError: wrong arguments of `demote`; label: the caller, in errors."""
    if (ratio is None) == (bits is None):
        raise ValueError(f"{label}: give ratio or bits, one of them; got {ratio=} and {bits=}")
    if ratio is not None:
        checks.number(f"{label}: ratio", ratio, least=0, most=1)
    if bits is not None:
        checks.whole(f"{label}: bits", bits, 0)
    checks.choice(f"{label}: order", order, get_args(Order))
    if (order == "random") != isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(
            f"{label}: order='random' takes an int as seed, and no other does; got order={order!r} "
            f"and {seed=}"
        )

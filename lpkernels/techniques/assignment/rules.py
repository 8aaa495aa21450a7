"""The rules of precision assignments: demotion by groups, two baselines, promotion while training
runs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_args

from lpkernels.techniques import checks
from lpkernels.techniques.assignment.graph import (
    NO_PINS,
    PAPER,
    Assignment,
    Formats,
    Group,
    Kind,
    Op,
    Pins,
    TensorSpec,
    checked_ops,
    group,
    key_of,
    pinned_keys,
)
from lpkernels.techniques.state import Stateful

Order = Literal["decreasing", "increasing", "random"]

#: The kinds that are promoted by what they hold; gradients overflow to infinity, for the scaler.
FORWARD = ("weight", "activation")


def demote(
    groups: Sequence[Group],
    ratio: float | Fraction | None = None,
    *,
    order: Order = "decreasing",
    seed: int | None = None,
    formats: Formats = PAPER,
    pins: Pins = NO_PINS,
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
        pins: tensors held.
        bits: instead of the ratio: the most bits that all tensors may have together, ours.

    Raises: TypeError, ValueError: ratio outside [0, 1], both or none of ratio and bits, an unknown
        order, a seed missing or not used, a glob that matches nothing, a budget of bits that cannot
        be met.

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
    held_high, held_low = pinned_keys(groups, pins)
    tensors = [tensor for group in groups for tensor in group.tensors]

    def gain(tensor: TensorSpec) -> int:
        """The elements, or the bits saved, that a tensor in low precision contributes."""
        saved = formats.bits(tensor, False) - formats.bits(tensor, True)
        return tensor.numel if bits is None else saved

    if bits is None:
        missing = math.ceil(Fraction(ratio or 0) * sum(tensor.numel for tensor in tensors))
    else:
        missing = sum(formats.bits(tensor, False) for tensor in tensors) - bits
    missing -= sum(gain(tensor) for tensor in tensors if tensor.key in held_low)
    low, low_groups = set(held_low), []
    for home in _ordered(groups, order, seed):
        if missing <= 0:
            break
        free = [t for t in home.tensors if t.key not in low and t.key not in held_high]
        if free:
            low_groups.append(home.index)
        low.update(tensor.key for tensor in free)
        missing -= sum(map(gain, free))
    if bits is not None and missing > 0:
        raise ValueError(
            f"demote: bits={bits:,} cannot be met: with every group in low precision there are "
            f"{bits + missing:,}; allow as many, or take narrower formats or fewer pins"
        )
    return Assignment(groups, frozenset(low), tuple(low_groups), formats, pins)


def _ordered(groups: Sequence[Group], order: Order, seed: int | None) -> list[Group]:
    if order == "random":
        # Python promises the same numbers in every version for the method random().
        draw = random.Random(seed)
        draws = {group.index: draw.random() for group in groups}
        return sorted(groups, key=lambda group: draws[group.index])
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


def uniform(ops: Sequence[Op], *, formats: Formats = PAPER, pins: Pins = NO_PINS) -> Assignment:
    """All tensors in low precision, but for pinned tensors and tensors of unknown operations: the
    paper's baseline of 8 bits.

    Args: ops: of `trace`. formats, pins: as for `demote`.

    Raises: TypeError, ValueError: Ops that do not fit together, a glob that matches nothing.

    >>> from lpkernels.techniques.assignment import trace, uniform
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> uniform(trace(model, loss, batch)).ratio
    1.0
    """
    groups = group(ops)
    keys = [tensor.key for home in groups for tensor in home.tensors]
    assignment = _baseline(groups, keys, formats, pins)
    low_groups = sorted({assignment.tensors[key].group for key in assignment.low})
    return replace(assignment, low_groups=tuple(low_groups))


def operator_based(
    ops: Sequence[Op], *, formats: Formats = PAPER, pins: Pins = NO_PINS
) -> Assignment:
    """Low precision for the operands of GEMMs, except in the first operations and the last group.

    Low are the weights of GEMMs and their gradients, every result that a GEMM reads, and the
    gradient of a GEMM's result. Of these, high again are the network's inputs; operations that read
    an input, with their weights; all tensors of the last group; and the results, with gradients,
    that operations of the last group read.

    Args: ops: of `trace`. formats, pins: as for `demote`.

    Source: the baseline pi_op of Lee, Sharma, Aiken 2023 (arXiv 2301.13464), as in their released
        code, after Sun et al. 2019 (HFP8).
    Raises: TypeError, ValueError: Ops that do not fit together, a glob that matches nothing.
    """
    ops = checked_ops("operator_based", ops)
    groups = group(ops)
    return _baseline(groups, _entering_gemms(ops) - _ends(ops, groups), formats, pins)


def _entering_gemms(ops: Sequence[Op]) -> set[str]:
    low: set[str] = set()
    for op in ops:
        if op.is_gemm:
            low |= {key_of(name, "activation") for name in op.inputs}
            low |= {key_of(op.name, "grad_activation"), *_param_keys(op)}
    return low


def _ends(ops: Sequence[Op], groups: Sequence[Group]) -> set[str]:
    """Keys that stay high at both ends of the network."""
    in_last = {tensor.key for tensor in groups[-1].tensors}
    inputs = {op.name for op in ops if not op.inputs}
    first = [op for op in ops if inputs & set(op.inputs)]
    last = [op for op in ops if key_of(op.name, "activation") in in_last]
    names = inputs | {op.name for op in (*first, *last)}
    names |= {name for op in last for name in op.inputs}
    keys = {key for op in (*first, *last) for key in _param_keys(op)}
    return keys.union(*map(_result_keys, names))


def _result_keys(name: str) -> set[str]:
    return {key_of(name, "activation"), key_of(name, "grad_activation")}


def _param_keys(op: Op) -> set[str]:
    kinds: tuple[Kind, ...] = ("weight", "grad_weight")
    return {key_of(name, kind) for name in op.full_params for kind in kinds}


def _baseline(
    groups: Sequence[Group], low: Iterable[str], formats: Formats, pins: Pins
) -> Assignment:
    """The assignment with pinned tensors held."""
    held_high, held_low = pinned_keys(groups, pins)
    low = (frozenset(low) | held_low) - held_high
    return Assignment(tuple(groups), low, (), formats, pins)


#: Rules that need no budget.
BASELINES = {"uniform": uniform, "operator_based": operator_based}


class Promotion(NamedTuple):
    """One tensor that was promoted.

    step: the number of calls of `Promoter.update` before the one that promoted it. key: its key.
    value: the overflow ratio that reached the threshold.
    """

    step: int
    key: str
    value: float


class Promoter(Stateful):
    """Decides after every step which tensors go to high precision for good, from the next step on
    (in training under `assign` one step later, because nothing waits for the counts).

    A weight or an activation in low precision is promoted alone where its overflow ratio (elements
    whose magnitude is at least the overflow threshold of its format, over all) is at least
    `threshold`. Gradients are not promoted: they overflow to infinity, and the loss scaler skips
    the step. Tensors that are held stay, as does a kind whose low format is its high one.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), the rule of their released code.

    Args:
        assignment: the one to start from.
        threshold: of the overflow ratio, 0 to 1; None: nothing is promoted.
    Raises: TypeError, ValueError: no Assignment, or a threshold out of range.

    assignment is the one for the next step, promotions the tensors so far, in order.
    """

    _settings = ("_threshold",)
    _progress = ("_steps", "promotions")

    def __init__(self, assignment: Assignment, threshold: float | None = 0.01) -> None:
        if not isinstance(assignment, Assignment):
            raise TypeError(
                f"Promoter: expected an Assignment, such as demote(...), got "
                f"{type(assignment).__name__}"
            )
        if threshold is not None:
            checks.number("Promoter: threshold", threshold, least=0, most=1)
        self.assignment = self._first = assignment
        self.promotions: list[Promotion] = []
        self._threshold = threshold
        self._steps = 0

    def update(self, overflow: Mapping[str, float]) -> tuple[str, ...]:
        """After a step: the keys that are in high precision from the next one on.

        Ratios are compared as floats: 2 of 200 reach a threshold of 0.01. Keys of gradients, and of
        tensors that are high already or held, may be given and change nothing; tensors whose keys
        are left out do not change.

        Args: overflow: ratios of the values before rounding, by key.
        Raises: ValueError: an unknown key, or a ratio that is none; nothing is changed then.
        """
        now = self.assignment
        for key, value in overflow.items():
            now.is_low(key)
            if not 0 <= value <= 1:
                raise ValueError(f"Promoter: overflow of {key!r} must be from 0 to 1, got {value}")
        threshold = math.inf if self._threshold is None else self._threshold
        promotions = [
            Promotion(self._steps, key, float(overflow[key]))
            for key in now.tensors
            if float(overflow.get(key, -1)) >= threshold and self._may_promote(key)
        ]
        self._steps += 1
        self.promotions += promotions
        keys = tuple(promotion.key for promotion in promotions)
        self.assignment = now.promoted(keys)
        return keys

    def _may_promote(self, key: str) -> bool:
        now, kind = self.assignment, self.assignment.tensors[key].kind
        differs = now.formats.of(kind, True) != now.formats.of(kind, False)
        return kind in FORWARD and differs and key in now.low and key not in now.held

    def _resume(self) -> None:
        self.promotions = [Promotion(*values) for values in self.promotions]
        for promotion in self.promotions:
            if not self._first.is_low(promotion.key):
                raise ValueError(
                    f"load_state_dict: promotions: {promotion.key!r} is in high precision from the "
                    "start here; load the state for the assignment it was saved with"
                )
        self.assignment = self._first.promoted(promotion.key for promotion in self.promotions)

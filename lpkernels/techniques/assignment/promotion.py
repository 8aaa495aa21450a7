"""Promotion: tensors that overflow go back to high precision while training runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lpkernels.techniques import checks
from lpkernels.techniques.assignment.assignment import Assignment

#: The kinds that are promoted by what they hold; gradients overflow to infinity, for the scaler.
FORWARD = ("weight", "activation")


@dataclass(frozen=True)
class Promotion:
    """One tensor that was promoted.

    step: the number of calls of `Promoter.update` before the one that promoted it. key: its key.
    trigger: "overflow"; "tied" where a tensor tied to it overflowed.
    value: the ratio that reached the threshold.
    """

    step: int
    key: str
    trigger: str
    value: float


class Promoter:
    """Decides after every step which tensors go to high precision for good, from the next step on
    (in training under `assign` one step later, because nothing waits for the counts).

    A weight or an activation in low precision is promoted alone where its overflow ratio (elements
    whose magnitude is at least the overflow threshold of its format, over all) is at least
    `threshold`. Gradients are not promoted: they overflow to infinity, and the loss scaler skips
    the step. Tensors that are held stay, as does a kind whose low format is its high one.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), the rule of their released code. Ours: tied
        tensors are promoted together.

    Args:
        assignment: the one to start from.
        threshold: of the overflow ratio, 0 to 1; None: nothing is promoted.
    Raises: TypeError, ValueError: no Assignment, or a threshold out of range.

    assignment is the one for the next step, promotions the tensors so far, in order.
    """

    def __init__(self, assignment: Assignment, threshold: float | None = 0.01) -> None:
        if not isinstance(assignment, Assignment):
            raise TypeError(f"Promoter: expected an Assignment, got {type(assignment).__name__}")
        if threshold is not None:
            checks.number("Promoter: threshold", threshold, least=0, most=1)
        self.assignment = assignment
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
        new: dict[str, Promotion] = {}
        free = now.low - now.held.keys
        for key, value in overflow.items():
            reached = self._threshold is not None and float(value) >= self._threshold
            if reached and key in free and self._changes(key):
                new.setdefault(key, Promotion(self._steps, key, "overflow", float(value)))
                for other in now.tied_with(key) & free:
                    new.setdefault(other, Promotion(self._steps, other, "tied", float(value)))
        self._steps += 1
        order = [key for key in now.tensors if key in new]
        self.promotions += [new[key] for key in order]
        self.assignment = now.promoted(order)
        return tuple(order)

    def _changes(self, key: str) -> bool:
        kind, formats = self.assignment.tensors[key].kind, self.assignment.formats
        return kind in FORWARD and formats.of(kind, True) != formats.of(kind, False)

    def state_dict(self) -> dict[str, Any]:
        """Plain values: the steps so far and the promotions."""
        return {
            "steps": self._steps,
            "promotions": [(p.step, p.key, p.trigger, p.value) for p in self.promotions],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over the state of another promoter of the same assignment.

        Raises: ValueError: promotions of tensors that this assignment lacks or never had low, or
            promotions here already; nothing is changed then.
        """
        if self.promotions:
            raise ValueError(
                "Promoter: this one has promoted tensors already; load the state into a new one of "
                "the first assignment"
            )
        found = [Promotion(*values) for values in state["promotions"]]
        for promotion in found:
            if not self.assignment.is_low(promotion.key):
                raise ValueError(
                    f"Promoter: the state promotes {promotion.key!r}, which is in high precision "
                    "from the start here; load it for the assignment it was saved with"
                )
        self._steps, self.promotions = int(state["steps"]), found
        self.assignment = self.assignment.promoted(promotion.key for promotion in found)

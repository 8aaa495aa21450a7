"""Promotion: tensors that overflow go back to high precision while training runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lpkernels.techniques.assignment.assignment import Assignment

#: The kinds that are promoted by what they hold; gradients overflow to infinity, for the scaler.
FORWARD = ("weight", "activation")


@dataclass(frozen=True)
class Promotion:
    """One tensor that was promoted.

    step: the number of calls of `Promoter.update` before the one that promoted it. key: its key.
    trigger: "overflow", "underflow", "error"; "group" or "tied" where another tensor's was it.
    value: the ratio or error that reached the threshold.
    """

    step: int
    key: str
    trigger: str
    value: float


class Promoter:
    """Decides after every step which tensors go to high precision, from the next step on, for good.

    A weight or an activation in low precision is promoted alone where its overflow ratio (elements
    whose magnitude is at least the overflow threshold of its format, over all) is at least
    `threshold`. Gradients are not promoted: they overflow to infinity, and the loss scaler skips
    the step. Tensors that are held stay, as does a kind whose low format is its high one.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), the rule of their released code. The options
        are ours: whole_group, underflow, error, and tied tensors, which are promoted together.

    Args:
        assignment: the one to start from.
        threshold: of the overflow ratio, 0 to 1; None: overflow promotes nothing.
        whole_group: ours: with a tensor its group goes, gradients too.
        underflow: ours: the underflow ratio that promotes as well.
        error: ours: the mean square of the rounding error, over the mean square of the values,
            that promotes as well.
    Raises: TypeError, ValueError: a threshold out of range.

    assignment is the one for the next step, promotions the tensors so far, in order.
    """

    def __init__(
        self,
        assignment: Assignment,
        threshold: float | None = 0.01,
        *,
        whole_group: bool = False,
        underflow: float | None = None,
        error: float | None = None,
    ) -> None:
        if not isinstance(assignment, Assignment):
            raise TypeError(f"Promoter: expected an Assignment, got {type(assignment).__name__}")
        _check_threshold("threshold", threshold, 1.0)
        _check_threshold("underflow", underflow, 1.0)
        _check_threshold("error", error, math.inf)
        self.assignment = assignment
        self.promotions: list[Promotion] = []
        self.whole_group = whole_group
        self._thresholds = {"overflow": threshold, "underflow": underflow, "error": error}
        self._steps = 0

    def update(
        self,
        overflow: Mapping[str, float],
        *,
        underflow: Mapping[str, float] | None = None,
        error: Mapping[str, float] | None = None,
    ) -> tuple[str, ...]:
        """After a step: the keys that are in high precision from the next one on.

        Ratios are compared as floats: 2 of 200 reach a threshold of 0.01. Keys of gradients, and of
        tensors that are high already or held, may be given and change nothing; tensors whose keys
        are left out do not change.

        Args:
            overflow, underflow, error: of the values before rounding, by key.
        Raises: ValueError: an unknown key, or a ratio that is none; nothing is changed then.
        """
        measured = {"overflow": overflow, "underflow": underflow or {}, "error": error or {}}
        for trigger, values in measured.items():
            for key, value in values.items():
                self.assignment.is_low(key)
                _check_value(trigger, key, value)
        new: dict[str, Promotion] = {}
        free = self._free()
        for trigger, values in measured.items():
            threshold = self._thresholds[trigger]
            for key, value in values.items():
                reached = threshold is not None and float(value) >= threshold
                if reached and key in free and self._is_promoted_alone(key):
                    self._add(new, free, Promotion(self._steps, key, trigger, float(value)))
        self._steps += 1
        order = [key for key in self.assignment.tensors if key in new]
        self.promotions += [new[key] for key in order]
        self.assignment = self.assignment.promoted(order)
        return tuple(order)

    @property
    def measures_error(self) -> bool:
        """Whether a rounding error may promote."""
        return self._thresholds["error"] is not None

    def _free(self) -> frozenset[str]:
        return self.assignment.low - self.assignment.held.keys

    def _is_promoted_alone(self, key: str) -> bool:
        tensor, formats = self.assignment.tensors[key], self.assignment.formats
        changes = formats.of(tensor.kind, True) != formats.of(tensor.kind, False)
        return tensor.kind in FORWARD and changes

    def _add(self, new: dict[str, Promotion], free: frozenset[str], promotion: Promotion) -> None:
        """The promotion, and those of tensors that go with it."""
        key = promotion.key
        new.setdefault(key, promotion)
        others = dict.fromkeys(self.assignment.tied_with(key), "tied")
        if self.whole_group:
            index = self.assignment.tensors[key].group
            group = next(each for each in self.assignment.groups if each.index == index)
            others |= {tensor.key: "group" for tensor in group.tensors}
        for other, why in others.items():
            if other in free:
                new.setdefault(other, replace(promotion, key=other, trigger=why))

    def state_dict(self) -> dict[str, Any]:
        """Plain values: the steps so far and the promotions."""
        return {
            "steps": self._steps,
            "promotions": [(p.step, p.key, p.trigger, p.value) for p in self.promotions],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where another promoter of the same assignment was.

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


def _check_threshold(name: str, value: float | None, most: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise TypeError(f"Promoter: {name} must be a number or None, got {value!r}")
    if not 0 <= value <= most:
        raise ValueError(
            f"Promoter: {name} must be from 0 to {most:g}, or None for never, got {value}"
        )


def _check_value(trigger: str, key: str, value: float) -> None:
    most = math.inf if trigger == "error" else 1.0
    if not 0 <= value <= most:
        raise ValueError(f"Promoter: {trigger} of {key!r} must be from 0 to {most:g}, got {value}")

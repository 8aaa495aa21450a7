"""An assignment as it is asked for, in one line of text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from lpkernels.techniques.assignment.baselines import amp_like, operator_based, uniform
from lpkernels.techniques.assignment.demotion import SCORED, Order
from lpkernels.techniques.assignment.precisions import PAPER, Formats

Rule = Literal["demote", "uniform", "operator_based", "amp_like", "file"]
#: Rules that need no budget.
BASELINES = {"uniform": uniform, "operator_based": operator_based, "amp_like": amp_like}


@dataclass(frozen=True)
class Request:
    """Which assignment a network is to have, before the network is there.

    rule: "demote", which goes by ratio or bits; one of the baselines; or "file". ratio, bits,
    order, seed: as for `demote`, and only with that rule; either ratio or bits. file: of an
    assignment that was saved. promote: the overflow ratio that promotes; None: none does. fan_out:
    as for `assign`. low, low_grad: another low precision than the paper's, for weights and
    activations, and for gradients of activations; it rounds to nearest, ties away, unless the text
    says otherwise.
    Raises: ValueError: fields that do not go together, or out of range.
    """

    rule: Rule = "demote"
    ratio: float | None = None
    bits: int | None = None
    order: Order = "decreasing"
    seed: int | None = None
    file: str = ""
    promote: float | None = 0.01
    fan_out: Literal["sum", "branches"] = "sum"
    low: str = ""
    low_grad: str = ""

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ValueError(_expected("rule", get_args(Rule), self.rule))
        if self.order not in get_args(Order):
            raise ValueError(_expected("order", get_args(Order), self.order))
        if self.fan_out not in ("sum", "branches"):
            raise ValueError(_expected("fan_out", ("sum", "branches"), self.fan_out))
        if self.promote is not None and not 0 <= self.promote <= 1:
            raise ValueError(
                f"assignment: promote must be from 0 to 1, or none, got {self.promote}"
            )
        if (self.rule == "file") != bool(self.file):
            raise ValueError("assignment: file=<path> stands for a rule; give the path alone")
        self._check_demotion()
        # An impossible format is found here, before the network is there.
        _ = self.formats

    def _check_demotion(self) -> None:
        asked = [self.ratio, self.bits]
        if self.rule != "demote":
            given = [f.name for f in fields(self)[1:5] if getattr(self, f.name) != f.default]
            if given:
                raise ValueError(
                    f"assignment: {self.rule} takes no {' and no '.join(given)}; leave it out"
                )
            return
        if sum(each is not None for each in asked) != 1:
            raise ValueError(
                f"assignment: give ratio or bits, one of them, or {', '.join(BASELINES)} or "
                f"file=<path>; got ratio={self.ratio} and bits={self.bits}"
            )
        if self.ratio is not None and not 0 <= self.ratio <= 1:
            raise ValueError(f"assignment: ratio must be from 0 to 1, got {self.ratio}")
        if self.bits is not None and self.bits < 0:
            raise ValueError(f"assignment: bits must be at least 0, got {self.bits}")
        if (self.order == "random") != (self.seed is not None):
            raise ValueError(
                "assignment: order=random takes a seed, and no other order does; got "
                f"order={self.order} and seed={self.seed}"
            )

    def __str__(self) -> str:
        words: list[str] = [self.rule] if self.rule in BASELINES else []
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                words.append(f"{field.name}={'none' if value is None else value}")
        return ",".join(words)

    @property
    def formats(self) -> Formats:
        """High and low precision."""
        if not self.low and not self.low_grad:
            return PAPER
        asked: dict[str, Any] = {}
        if self.low:
            low = _rounded(self.low)
            asked = {"weight": (PAPER.weight.high, low), "activation": (PAPER.activation.high, low)}
        if self.low_grad:
            asked["grad_activation"] = (PAPER.grad_activation.high, _rounded(self.low_grad))
        return Formats(**asked)

    @property
    def needs_scores(self) -> bool:
        """Whether groups are scored for it."""
        return self.rule == "demote" and self.order in SCORED


def parse_assignment(text: str) -> Request:
    """The Request of a text, which has its fields as words, with commas between.

    "ratio=0.6,order=decreasing,promote=0.01", "bits=100000,order=sensitivity",
    "ratio=0.5,order=random,seed=3", "uniform,promote=none", "operator_based,promote=none",
    "file=assignment.json", "ratio=1,low=e3m2none_sat,low_grad=e4m1none".

    Raises: ValueError: a word that means nothing, or twice, or words that do not go together.
    """
    found: dict[str, Any] = {}
    for word in text.split(","):
        name, _, value = (part.strip() for part in word.strip().partition("="))
        if not value and name in BASELINES:
            found.setdefault("rule", name)
            continue
        if name not in _READ or not value:
            raise ValueError(
                f"assignment: expected words such as ratio=0.6, of {', '.join(_READ)}, or one of "
                f"{', '.join(BASELINES)}; got {word.strip()!r} in {text!r}"
            )
        if name in found:
            raise ValueError(f"assignment: {name} is there twice in {text!r}; give it once")
        try:
            found[name] = _READ[name](value)
        except ValueError as error:
            raise ValueError(f"assignment: {name} cannot be {value!r}: {error}") from error
        if name == "file":
            found["rule"] = "file"
    return Request(**found)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


_READ: dict[str, Callable[[str], Any]] = {
    "ratio": _number,
    "bits": int,
    "order": str,
    "seed": int,
    "promote": lambda text: None if text == "none" else _number(text),
    "fan_out": str,
    "low": str,
    "low_grad": str,
    "file": str,
}


def _rounded(text: str) -> str:
    return text if ":" in text else f"{text}:nearest_away"


def _expected(name: str, choices: tuple[str, ...], got: object) -> str:
    return f"assignment: {name} must be one of {', '.join(choices)}; got {got}"

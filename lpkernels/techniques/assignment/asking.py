"""An assignment as it is asked for, in one line of text."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from lpkernels.arithmetic.text import number, options_of, read_options, whole, written_options
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
        return ",".join(written_options(self, _OPTIONS))

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
    # Spaces around commas and equals signs mean nothing.
    words = re.sub(r"\s*([=,])\s*", r"\1", text.strip()).split(",")
    found = read_options(text, words, _OPTIONS)
    if "file" in found:
        found["rule"] = "file"
    return Request(**found)


def _rounded(text: str) -> str:
    return text if ":" in text else f"{text}:nearest_away"


def _expected(name: str, choices: tuple[str, ...], got: object) -> str:
    return f"assignment: {name} must be one of {', '.join(choices)}; got {got}"


_OPTIONS = options_of(
    Request,
    rule={
        # A file stands for its rule.
        "default": lambda request: "file" if request.file else "demote",
        "alone": BASELINES.__contains__,
        "shown": ", ".join(BASELINES),
    },
    ratio={"read": number},
    bits={"read": whole},
    seed={"read": whole},
    promote={
        "read": lambda text: None if text == "none" else number(text),
        "write": lambda value: "none" if value is None else str(value),
    },
)

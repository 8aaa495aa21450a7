"""An assignment that one line of text asks for, before its network is there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lpkernels.arithmetic.text import number, options_of, read_options, whole, written_options
from lpkernels.techniques import checks
from lpkernels.techniques.assignment.graph import PAPER, Assignment, Formats, Op, group
from lpkernels.techniques.assignment.rules import (
    Order,
    amp_like,
    check_demand,
    demote,
    operator_based,
    uniform,
)

#: Rules that need no budget.
BASELINES = {"uniform": uniform, "operator_based": operator_based, "amp_like": amp_like}
FanOut = Literal["sum", "branches"]


@dataclass(frozen=True)
class Request:
    """Which assignment a network is to have, before the network is there.

    rule: "demote", which goes by ratio or bits; one of the baselines; or "file". ratio, bits,
    order, seed: as for `demote`, and only with that rule. file: the path of a saved assignment.
    promote: the overflow ratio that promotes; None: none does. fan_out: as for `assign`. low:
    another low precision than the paper's for weights and activations, low_grad: for gradients of
    activations; both round to nearest, ties away, unless the text says otherwise.
    Raises: ValueError: fields that do not go together, or out of range.
    """

    rule: str = "demote"
    ratio: float | None = None
    bits: int | None = None
    order: Order = "decreasing"
    seed: int | None = None
    file: str = ""
    promote: float | None = 0.01
    fan_out: FanOut = "sum"
    low: str = ""
    low_grad: str = ""

    def __post_init__(self) -> None:
        checks.choice("assignment: rule", self.rule, ("demote", *BASELINES, "file"))
        checks.choice("assignment: fan_out", self.fan_out, get_args(FanOut))
        if self.promote is not None:
            checks.number("assignment: promote", self.promote, least=0, most=1)
        if (self.rule == "file") != bool(self.file):
            raise ValueError("assignment: file=<path> stands for a rule; give the path alone")
        if self.rule == "demote":
            check_demand("assignment", self.ratio, self.bits, self.order, self.seed)
        else:
            demand = (self.ratio, self.bits, self.order, self.seed)
            if demand != (None, None, "decreasing", None):
                raise ValueError(
                    f"assignment: {self.rule} takes no ratio, bits, order or seed; leave them out"
                )
        # An impossible format is an error here, before the network is there.
        _ = self.formats

    @classmethod
    def parse(cls, text: str) -> Request:
        """The Request of a text, which has its fields as words, with commas between.

        "ratio=0.6,order=decreasing,promote=0.01", "bits=100000,order=increasing",
        "ratio=0.5,order=random,seed=3", "uniform,promote=none", "operator_based,promote=none",
        "file=assignment.json", "ratio=1,low=e3m2none_sat,low_grad=e4m1none".

        Raises: ValueError: a word that means nothing, or twice, or words that do not go together.
        """
        # Spaces around commas and equals signs mean nothing.
        words = re.sub(r"\s*([=,])\s*", r"\1", text.strip()).split(",")
        fields = read_options(text, words, _OPTIONS)
        return cls(**({"rule": "file"} | fields if "file" in fields else fields))

    def __str__(self) -> str:
        return ",".join(written_options(self, _OPTIONS))

    @property
    def formats(self) -> Formats:
        """High and low precision."""
        pairs: dict[str, Any] = {}
        if self.low:
            pairs["weight"] = PAPER.weight.high, _rounded(self.low)
            pairs["activation"] = PAPER.activation.high, _rounded(self.low)
        if self.low_grad:
            pairs["grad_activation"] = PAPER.grad_activation.high, _rounded(self.low_grad)
        return Formats(**pairs)

    def assignment(self, ops: Sequence[Op]) -> Assignment:
        """The assignment for these operations.

        Raises: as `demote` and `Assignment.load` do.
        """
        if self.rule in BASELINES:
            return BASELINES[self.rule](ops, formats=self.formats)
        groups = group(ops)
        if self.rule == "file":
            return Assignment.load(self.file, groups)
        return demote(
            groups, self.ratio, bits=self.bits, order=self.order, seed=self.seed,
            formats=self.formats,
        )  # fmt: skip


def _rounded(text: str) -> str:
    return text if ":" in text else f"{text}:nearest_away"


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

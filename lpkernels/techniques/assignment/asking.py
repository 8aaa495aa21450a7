"""Assignments that need no budget, and any assignment as one line of text asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from lpkernels.arithmetic.text import number, options_of, read_options, whole, written_options
from lpkernels.techniques import checks
from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.demotion import Order, check_demand, demote
from lpkernels.techniques.assignment.operations import (
    FOLLOWS_ITS_INPUTS,
    Group,
    Kind,
    Op,
    checked_ops,
    group,
    key_of,
)
from lpkernels.techniques.assignment.precisions import NONE, PAPER, Formats, Pins, held, tie, ties


def uniform(
    ops: Sequence[Op],
    precision: Literal["low", "high"] = "low",
    *,
    formats: Formats = PAPER,
    pins: Pins = NONE,
) -> Assignment:
    """All tensors in one precision, but for pinned tensors and tensors of unknown operations.

    Without arguments this is the paper's baseline of 8 bits; the paper's float32 is uniform(ops,
    "high", formats=Formats.same("fp32")).

    Args:
        ops: of `trace`.
        precision: "low" or "high", of all tensors.
        formats: the formats of high and low precision.
        pins: tensors held or tied.

    Raises: TypeError, ValueError: Ops that do not fit together, another precision, a glob that
        matches nothing.

    >>> from lpkernels.techniques.assignment import trace, uniform
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> uniform(trace(model, loss, batch), "high").ratio
    0.0
    """
    checks.choice("uniform: precision", precision, ("low", "high"))
    groups = group(ops)
    low = [t.key for each in groups for t in each.tensors] if precision == "low" else []
    made = _assignment(groups, low, formats, pins)
    lowered = [each.index for each in made.groups if any(t.key in made.low for t in each.tensors)]
    return Assignment(made.groups, made.low, tuple(lowered) if low else (), formats, pins)


def operator_based(ops: Sequence[Op], *, formats: Formats = PAPER, pins: Pins = NONE) -> Assignment:
    """Low precision for the operands of GEMMs, forward and backward; the ends stay high.

    Low are the weights of GEMMs and their gradients, every result that a GEMM reads, and the
    gradient of a GEMM's result. Of these, high again are the network's inputs; operations that read
    an input, with their weights; all tensors of the last group; and the results, with gradients,
    that operations of the last group read.

    Args:
        ops: of `trace`.
        formats: the formats of high and low precision.
        pins: tensors held or tied.

    Source: the baseline pi_op of Lee, Sharma, Aiken 2023 (arXiv 2301.13464), as in their released
        code, after Sun et al. 2019 (HFP8).
    Raises: TypeError, ValueError: Ops that do not fit together, a glob that matches nothing.
    """
    ops = checked_ops("operator_based", ops)
    groups = group(ops)
    low = _entering_gemms(ops) - _ends(ops, groups)
    return _assignment(groups, low, formats, pins)


def amp_like(ops: Sequence[Op], *, formats: Formats = PAPER, pins: Pins = NONE) -> Assignment:
    """Our reading of the paper's baseline after torch.amp, which its release cannot run.

    It is as `operator_based`, and more tensors are low: the results of GEMMs, and results and
    gradients of the operations that torch.amp leaves in the type of their inputs or casts to the
    widest of them (activations, pooling, sums, products, concatenation). Norms, softmax and losses
    stay high, as do the ends. Ops without a name of their operation count as none of these.

    Args:
        ops: of `trace`.
        formats: the formats of high and low precision.
        pins: tensors held or tied.

    Source: none runs: the released code of Lee, Sharma, Aiken 2023 names the baseline (pi_op') and
        has no implementation, so this is ours and no figure of the paper belongs to it.
    Raises: TypeError, ValueError: Ops that do not fit together, a glob that matches nothing.
    """
    ops = checked_ops("amp_like", ops)
    groups = group(ops)
    low = _entering_gemms(ops)
    low |= {
        key
        for op in ops
        if op.is_gemm or op.operation in FOLLOWS_ITS_INPUTS
        for key in _of_result(op.name)
    }
    return _assignment(groups, low - _ends(ops, groups), formats, pins)


def _entering_gemms(ops: Sequence[Op]) -> set[str]:
    gemms = [op for op in ops if op.is_gemm]
    read = {name for op in gemms for name in op.inputs}
    low = {key_of(name, "activation") for name in read}
    low |= {key_of(op.name, "grad_activation") for op in gemms}
    return low | {key for op in gemms for key in _of_params(op)}


def _ends(ops: Sequence[Op], groups: Sequence[Group]) -> set[str]:
    """Keys that stay high at both ends of the network."""
    in_last = {tensor.key for tensor in groups[-1].tensors}
    last = [op for op in ops if key_of(op.name, "activation") in in_last]
    inputs = {op.name for op in ops if not op.inputs}
    first = [op for op in ops if inputs & set(op.inputs)]
    results = inputs | {op.name for op in (*first, *last)}
    results |= {name for op in last for name in op.inputs}
    high = {key for name in results for key in _of_result(name)}
    return high | {key for op in (*first, *last) for key in _of_params(op)}


def _of_result(name: str) -> tuple[str, str]:
    return key_of(name, "activation"), key_of(name, "grad_activation")


def _of_params(op: Op) -> list[str]:
    kinds: tuple[Kind, ...] = ("weight", "grad_weight")
    return [key_of(name, kind) for name in op.full_params for kind in kinds]


def _assignment(
    groups: Sequence[Group], low: Iterable[str], formats: Formats, pins: Pins
) -> Assignment:
    """The assignment with pinned tensors held; tied tensors that would differ are all high."""
    kept = held(groups, pins)
    keys = [tensor.key for each in groups for tensor in each.tensors]
    chosen = (set(low) | kept.low) - kept.high
    for together in ties(pins, keys):
        if not together <= chosen:
            chosen -= together
    return Assignment(tie(groups, pins), frozenset(chosen), (), formats, pins)


Rule = Literal["demote", "uniform", "operator_based", "amp_like", "file"]
#: Rules that need no budget.
BASELINES = {"uniform": uniform, "operator_based": operator_based, "amp_like": amp_like}


@dataclass(frozen=True)
class Request:
    """Which assignment a network is to have, before the network is there.

    rule: "demote", which goes by ratio or bits; one of the baselines; or "file". ratio, bits,
    order, seed: as for `demote`, and only with that rule; either ratio or bits. file: the path of a
    saved assignment. promote: the overflow ratio that promotes; None: none does. fan_out: as for
    `assign`. low: another low precision than the paper's for weights and activations, low_grad: for
    gradients of activations; both round to nearest, ties away, unless the text says otherwise.
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
        checks.choice("assignment: rule", self.rule, get_args(Rule))
        checks.choice("assignment: fan_out", self.fan_out, ("sum", "branches"))
        if self.promote is not None:
            checks.number("assignment: promote", self.promote, least=0, most=1)
        if (self.rule == "file") != bool(self.file):
            raise ValueError("assignment: file=<path> stands for a rule; give the path alone")
        if self.rule == "demote":
            check_demand("assignment", self.ratio, self.bits, self.order, self.seed)
        given = [f.name for f in fields(self)[1:5] if getattr(self, f.name) != f.default]
        if given and self.rule != "demote":
            raise ValueError(
                f"assignment: {self.rule} takes no {' and no '.join(given)}; leave it out"
            )
        # An impossible format is found here, before the network is there.
        _ = self.formats

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


def parse_assignment(text: str) -> Request:
    """The Request of a text, which has its fields as words, with commas between.

    "ratio=0.6,order=decreasing,promote=0.01", "bits=100000,order=increasing",
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


def requested(request: Request, ops: Sequence[Op]) -> Assignment:
    """The assignment that a request gives for these operations.

    Raises: as `demote` and `Assignment.load` do.
    """
    if request.rule in BASELINES:
        return BASELINES[request.rule](ops, formats=request.formats)
    groups = group(ops)
    if request.rule == "file":
        return Assignment.load(Path(request.file), groups)
    return demote(
        groups, request.ratio, bits=request.bits, order=request.order, seed=request.seed,
        formats=request.formats,
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

"""Schedules as text: "cpt:3-8/8,cycles=32".

    <kind>:<bits>[/<grad bits>][,<option>=<value>]...

kind: cpt (cycles), static, rise (one cycle), fall (one that decays, its bits written 8-3), shuffled
(the bits of cpt in random order), pfq (rises by stages where the loss is flat), or one of the ten
names of NAMED (CR, LT, RTV, ...), which stand for cpt with other settings and 8 cycles.
bits: 3-8, 8, or none where only an accumulator is scheduled; of pfq one for each stage, 3-4-6-8.
Grad bits are 8 unless given. Options are the arguments of PrecisionScheduler, Schedule and PFQ.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lpkernels.arithmetic.text import Option, options_of, read_options, whole
from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques.cpt.pfq import PFQ
from lpkernels.techniques.cpt.schedule import NAMED, Schedule, widths
from lpkernels.techniques.cpt.scheduler import TABLES, PrecisionScheduler, Targets

# The settings of a Schedule that each kind has; a text gives others.
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "cpt": {},
    "static": {"cycles": 1},
    "rise": {"cycles": 1},
    "fall": {"cycles": 1, "form": "triangular"},
    "shuffled": {"shuffled": True},
    "pfq": {},
    **NAMED,
}
# The published run on CIFAR has 64,000 steps and looks at the loss of every 400.
_PERIODS = 160


def parse_schedule(text: str) -> Callable[..., PrecisionScheduler | PFQ]:
    """A function (targets, total_steps, *, seed=0) that makes the scheduler of a text.

    seed: of a run; a shuffled schedule takes it unless the text has a seed of its own.

    Args: text: such as "cpt:3-8/8,cycles=32"; docs/cyclic-precision.md has all forms.
    Raises: ValueError: the text is of no schedule; the error names the part that is wrong. The
        function raises what PrecisionScheduler and PFQ do, and refuses a period beyond the run.

    >>> from lpkernels.techniques.cpt import parse_schedule
    >>> scheduler = parse_schedule("cpt:3-8/8,cycles=2")(None, 12)
    >>> scheduler.plan()[:, 0]
    array([3, 3, 4, 6, 7, 8, 3, 3, 4, 6, 7, 8])
    """
    try:
        kind, colon, rest = text.partition(":")
        if not colon or kind not in _KINDS:
            listed = nearest(kind, _KINDS, "docs/cyclic-precision.md lists all")
            raise ValueError(
                "expected <kind>:<bits>/<grad bits>,<option>=<value>,... such as "
                f"cpt:3-8/8,cycles=32; kinds are {listed}"
            )
        head, *parts = rest.split(",")
        values = read_options(text, parts, _options(kind))
        if kind == "pfq":
            scheduler_of: Any = partial(_pfq, {**values, "stages": _stages(head)})
            least = values.get("period") or 1
        else:
            values = {"cycles": 8 if kind in NAMED else Schedule.cycles, **_KINDS[kind], **values}
            scheduler_of = partial(_planned, {**values, **_bits(kind, head)})
            least = max(1, values["cycles"] + values.get("warmup", 0))
        # The shortest run tells whether all values fit.
        scheduler_of(None, least)
        return scheduler_of
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot read the schedule {text!r}: {error}") from error


def _planned(
    values: Mapping[str, Any], targets: Targets, total_steps: int, *, seed: int = 0
) -> PrecisionScheduler:
    return PrecisionScheduler(targets, total_steps, **{"seed": seed, **values})


def _pfq(values: Mapping[str, Any], targets: Targets, total_steps: int, *, seed: int = 0) -> PFQ:
    period = values.get("period") or max(1, round(total_steps / _PERIODS))
    if period > total_steps:
        raise ValueError(
            f"period: expected at most the {total_steps} steps of the run, got {period}; give "
            "fewer, or leave period away"
        )
    return PFQ(targets, **{**values, "period": period})


def _options(kind: str) -> dict[str, Option]:
    """The options of a kind's text, from the signatures of its scheduler."""
    formats, eval_bits = {"read": _formats}, {"name": "eval", "read": whole}
    if kind == "pfq":
        options = options_of(PFQ, stages=None, formats=formats, eval_bits=eval_bits)
        return {**options, "period": Option("period", None, whole)}
    shared = options_of(
        PrecisionScheduler,
        grad_bits=None,
        weight_bits={"name": "weight", "read": partial(_pair, "weight", kind)},
        accumulator_bits={"name": "acc", "read": partial(_pair, "acc", kind)},
        accumulators={"name": "acc_format"},
        eval_bits=eval_bits,
        formats=formats,
        last_step=None,
    )
    settings = options_of(Schedule, shuffled=None, seed={} if kind == "shuffled" else None)
    free = {name: option for name, option in settings.items() if name not in _KINDS[kind]}
    return {**free, **shared}


def _bits(kind: str, head: str) -> dict[str, Any]:
    """The bits of a text's head, and its grad_bits if it has any."""
    bits, slash, grad_bits = head.partition("/")
    pair = None if bits == "none" else _pair("bits", kind, bits)
    return {"bits": pair, **({"grad_bits": _pair("grad bits", kind, grad_bits)} if slash else {})}


def _pair(label: str, kind: str, text: str) -> tuple[int, int]:
    """ "3-8" as (3, 8), "8" as (8, 8); a schedule that falls is written from the highest down."""
    first, *others = _numbers(label, text)
    last = others[-1] if others else first
    if len(others) > 1:
        raise ValueError(f"{label}: expected 3-8 or 8, got {text!r}")
    if kind == "static" and first != last:
        raise ValueError(f"static: expected one number of {label}, got {text}")
    if kind == "fall":
        if first < last:
            raise ValueError(f"{label}: expected bits that fall, such as 8-3, got {text!r}")
        first, last = last, first
    return widths(label, (first, last))


def _stages(head: str) -> tuple[tuple[int, int], ...]:
    """ "3-4-6-8/6-6-8-8" as pairs; one number of grad bits is that of all stages."""
    bits, slash, grad_bits = head.partition("/")
    forward, backward = _numbers("bits", bits), _numbers("grad bits", grad_bits if slash else "8")
    if len(backward) == 1:
        backward *= len(forward)
    if len(forward) != len(backward):
        raise ValueError(
            f"grad bits: expected one number, or {len(forward)}, one a stage, got {grad_bits!r}"
        )
    return tuple(zip(forward, backward, strict=True))


def _numbers(label: str, text: str) -> list[int]:
    try:
        return [whole(part) for part in text.split("-")]
    except ValueError as error:
        raise ValueError(f"{label}: {error}, got {text!r}") from None


def _formats(text: str) -> str | dict[int, str]:
    """ "float" and "fixed{bits}_f4" as they are, "3:e2m0_sat+4:fp4_e2m1" as a table."""
    if text in TABLES or "{bits}" in text:
        return text
    pairs = [part.partition(":") for part in text.split("+")]
    return {whole(bits): fmt for bits, _, fmt in pairs}

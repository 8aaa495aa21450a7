"""Schedules as text: "cpt:3-8/8,cycles=32".

    <kind>:<bits>[/<grad bits>][,<option>=<value>]...

A kind stands for settings of a Schedule: cpt for none, static and rise for one cycle, fall for one
that decays, shuffled for the bits of cpt in random order, and the ten names of NAMED (CR, LT, RTV,
...) for theirs in 8 cycles. pfq is PFQ, which rises by stages where the loss is flat.
bits: 3-8, or 8; of fall 8-3; of pfq one number for each stage, 3-4-6-8. Grad bits are 8 unless
given. Options are the arguments of PrecisionScheduler, Schedule and PFQ.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lpkernels.arithmetic.text import Option, options_of, read_options, whole
from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques.cpt.pfq import PFQ
from lpkernels.techniques.cpt.schedule import NAMED, Schedule
from lpkernels.techniques.cpt.scheduler import PrecisionScheduler, Targets

_KINDS: Mapping[str, Mapping[str, Any]] = {
    "cpt": {},
    "static": {"cycles": 1},
    "rise": {"cycles": 1},
    "fall": {"cycles": 1, "form": "triangular"},
    "shuffled": {"shuffled": True},
    "pfq": {},
    **{name: {"cycles": 8, **settings} for name, settings in NAMED.items()},
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

    def scheduler_of(
        targets: Targets, total_steps: int, *, seed: int = 0
    ) -> PrecisionScheduler | PFQ:
        if kind != "pfq":
            return PrecisionScheduler(targets, total_steps, **{"seed": seed, **values})
        period = values.get("period", max(1, round(total_steps / _PERIODS)))
        if period > total_steps:
            raise ValueError(
                f"period: expected at most the {total_steps} steps of the run, got {period}; give "
                "fewer, or leave period away"
            )
        return PFQ(targets, **{**values, "period": period})

    try:
        kind, values = _read(text)
        # The shortest run tells whether all values fit.
        scheduler_of(None, max(1, values.get("period", values.get("cycles", Schedule.cycles))))
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot read the schedule {text!r}: {error}") from error
    return scheduler_of


def _read(text: str) -> tuple[str, dict[str, Any]]:
    """The kind of a text, and the arguments of its scheduler."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in _KINDS:
        listed = nearest(kind, _KINDS, "docs/cyclic-precision.md lists all")
        raise ValueError(
            "expected <kind>:<bits>/<grad bits>,<option>=<value>,... such as "
            f"cpt:3-8/8,cycles=32; kinds are {listed}"
        )
    head, *parts = rest.split(",")
    bits, slash, grad_bits = head.partition("/")
    parts += [f"bits={bits}", f"grad_bits={grad_bits if slash else '8'}"]
    values = {**_KINDS[kind], **read_options(text, parts, _options(kind))}
    if kind == "pfq":
        forward, backward = values.pop("bits"), values.pop("grad_bits")
        if len(backward) == 1:
            backward *= len(forward)
        if len(forward) != len(backward):
            raise ValueError(f"grad_bits: expected one number, or {len(forward)}, one a stage")
        values["stages"] = tuple(zip(forward, backward, strict=True))
    return kind, values


def _options(kind: str) -> dict[str, Option]:
    """The options of a kind's text, from the signature of its scheduler."""
    eval_bits = {"name": "eval", "read": whole}
    if kind == "pfq":
        read = {"bits": _numbers, "grad_bits": _numbers, "period": whole}
        options = options_of(PFQ, stages=None, eval_bits=eval_bits)
    else:
        read = dict.fromkeys(("bits", "grad_bits"), partial(_pair, kind))
        options = options_of(Schedule, shuffled=None)
        options |= options_of(PrecisionScheduler, last_step=None, eval_bits=eval_bits)
    return options | {name: Option(name, None, reader) for name, reader in read.items()}


def _numbers(text: str) -> list[int]:
    return [whole(part) for part in text.split("-")]


def _pair(kind: str, text: str) -> tuple[int, int]:
    """ "3-8" as (3, 8), "8" as (8, 8); a schedule that falls is written from the highest down."""
    numbers = _numbers(text)[:: -1 if kind == "fall" else 1]
    low, high = numbers[0], numbers[-1]
    if len(numbers) > 2 or low > high or (kind == "static" and low < high):
        form = {"static": "8", "fall": "8-3 or 8"}.get(kind, "3-8 or 8")
        raise ValueError(f"expected {form}")
    return low, high

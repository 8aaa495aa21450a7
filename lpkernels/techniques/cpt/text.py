"""Schedules as text, read and written here alone: "cpt:3-8/8,cycles=32".

    <kind>:<bits>[/<grad bits>][,<option>=<value>]...

kind: cpt (cycles), static, rise (one cycle), fall (one that decays, its bits written 8-3), shuffled
(the bits of cpt in random order), pfq (rises by stages where the loss is flat), or one of the ten
names of NAMED (CR, LT, RTV, ...), which stand for cpt with other settings and 8 cycles.
bits: 3-8, 8, or none where only an accumulator is scheduled; of pfq one for each stage, 3-4-6-8.
Grad bits are 8 unless given.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpkernels.arithmetic.text import Option, options_of, read_options, whole, written_options
from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques import checks
from lpkernels.techniques.cpt.pfq import PFQ, checked_stages
from lpkernels.techniques.cpt.schedule import NAMED, Schedule, widths
from lpkernels.techniques.cpt.scheduler import PrecisionScheduler
from lpkernels.techniques.cpt.targets import (
    TABLES,
    Formats,
    Targets,
    accumulator_table,
    format_table,
)
from lpkernels.techniques.cpt.tracks import Tracks, costs

Widths = tuple[int, int]

# The settings that the name of a kind says already.
_IMPLIED: Mapping[str, Mapping[str, Any]] = {
    "cpt": {},
    "static": {"cycles": 1},
    "rise": {"cycles": 1},
    "fall": {"cycles": 1, "form": "triangular"},
    "shuffled": {"shuffled": True},
    "pfq": {},
    **{name: {"cycles": 8, **settings} for name, settings in NAMED.items()},
}
_KINDS = [kind for kind in _IMPLIED if kind not in NAMED]
_ANY = Schedule((8, 8))
# The published run on CIFAR has 64,000 steps and looks at the loss of every 400.
_PERIODS = 160


@dataclass(frozen=True)
class OpenLoop:
    """A schedule fixed in advance, of a run of any length; `str` is its text.

    Args:
        bits, grad_bits, weight, accumulator: (lowest, highest) of PrecisionScheduler's bits,
            grad_bits, weight_bits and accumulator_bits, or None.
        accumulators, formats, eval_bits: PrecisionScheduler's; a table of formats is pairs (width,
            format), and "" is None.
        settings: a Schedule, whose bits do not count.
    """

    bits: Widths | None = None
    grad_bits: Widths = (8, 8)
    weight: Widths | None = None
    accumulator: Widths | None = None
    accumulators: str = "e8m{bits}"
    formats: str | tuple[tuple[int, str], ...] = ""
    eval_bits: int | None = None
    settings: Schedule = _ANY

    def __post_init__(self) -> None:
        if self.bits is None and self.accumulator is None:
            raise ValueError("bits none: expected acc=<bits>, got neither bits nor acc")
        if self.bits is None and self.weight is not None:
            raise ValueError("weight: bits of weights need those of the inputs, got bits none")
        if self.accumulator is not None:
            accumulator_table(
                self.accumulators, range(self.accumulator[0], self.accumulator[1] + 1)
            )
        elif self.accumulators != OpenLoop.accumulators:
            raise ValueError("acc_format: belongs to acc=<bits>, got it without")
        if self.formats and self.bits is not None:
            format_table(self._meaning()["formats"], range(self.bits[0], self.bits[1] + 1))

    def _meaning(self) -> dict[str, Any]:
        """The arguments of a scheduler that give bits their meaning: formats, accumulators,
        eval_bits."""
        formats = _table(self.formats)
        return {
            "accumulators": self.accumulators,
            "eval_bits": self.eval_bits,
            "formats": formats,
        }

    def tracks(self, *, seed: int = 0) -> Tracks:
        """The schedules of its bits. seed: for shuffled schedules that have none in their text."""
        own = self.settings.seed
        base = self.settings.replace(seed=seed if own is None else own)

        def track(pair: Widths | None) -> Schedule | None:
            return None if pair is None else base.replace(bits=pair)

        grad_bits = None if self.bits is None else self.grad_bits
        return Tracks(
            track(self.bits), track(grad_bits), track(self.weight), track(self.accumulator)
        )

    def scheduler(self, targets: Targets, total_steps: int, *, seed: int = 0) -> PrecisionScheduler:
        """The scheduler of a run; seed: as of `tracks`.

        Raises: TypeError, ValueError: as PrecisionScheduler.
        """
        tracks = self.tracks(seed=seed)
        return PrecisionScheduler(
            targets,
            total_steps,
            bits=tracks.forward,
            grad_bits=tracks.backward or self.grad_bits,
            weight_bits=tracks.weight,
            accumulator_bits=tracks.accumulator,
            **self._meaning(),
        )

    def costs(self, total: int, kind: str = "bitops", *, seed: int = 0) -> np.ndarray:
        """The cost of each of `total` steps relative to float32, and of one at the highest bits
        behind them: (total + 1,) float64; kind: as of PrecisionScheduler.cost."""
        tracks = self.tracks(seed=seed)
        accumulators = {}
        if tracks.accumulator is not None:
            accumulators = accumulator_table(self.accumulators, tracks.accumulator.widths())
        return costs(tracks, total, kind, accumulators)

    @property
    def kind(self) -> str:
        settings, bits = self.settings, self.bits or self.accumulator or (8, 8)
        if settings.shuffled:
            return "shuffled"
        if settings.cycles > 1:
            return "cpt"
        if settings.form == "triangular":
            return "fall"
        return "static" if bits[0] == bits[1] else "rise"

    def __str__(self) -> str:
        falls, head = self.kind == "fall", f"{self.kind}:none"
        if self.bits is not None:
            pairs = (_pair_text(pair, falls) for pair in (self.bits, self.grad_bits))
            head = f"{self.kind}:{'/'.join(pairs)}"
        own = written_options(self.settings, _own_options(self.kind))
        return ",".join([head, *own, *written_options(self, _shared_options(falls))])


@dataclass(frozen=True)
class StagedLoop:
    """A precision that rises by stages where the training loss is flat (PFQ); `str` is its text.

    Args:
        stages, eps, decay, eval_bits: PFQ's.
        period: training steps between two looks at their mean loss; 0: the run's steps / 160,
            rounded, at least 1, as published for CIFAR.
        formats: as of OpenLoop.
    """

    stages: tuple[tuple[int, int], ...]
    period: int = 0
    eps: float = 0.05
    decay: float = 0.3
    formats: str | tuple[tuple[int, str], ...] = ""
    eval_bits: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", checked_stages(self.stages))
        checks.whole("period", self.period, 0)
        self._made(_Nothing(), self.period or 1)

    def scheduler(self, targets: Targets, total_steps: int) -> PFQ:
        """The scheduler of a run.

        Raises: TypeError, ValueError: as PFQ; a period longer than the run.
        """
        period = self.period or max(1, round(total_steps / _PERIODS))
        if period > total_steps:
            raise ValueError(
                f"period: expected at most the {total_steps} steps of the run, got {period}; give "
                "fewer, or leave period away"
            )
        return self._made(targets, period)

    def _made(self, targets: Targets, period: int) -> PFQ:
        settings = {"eps": self.eps, "decay": self.decay, "eval_bits": self.eval_bits}
        formats = _table(self.formats)
        return PFQ(targets, self.stages, period=period, formats=formats, **settings)  # type: ignore[arg-type]

    def __str__(self) -> str:
        forward, backward = zip(*self.stages, strict=True)
        grad_bits = backward[:1] if len(set(backward)) == 1 else backward
        head = "/".join("-".join(map(str, levels)) for levels in (forward, grad_bits))
        return ",".join([f"pfq:{head}", *written_options(self, _own_options("pfq"))])


class _Nothing:
    """A target that takes all settings."""

    def set_precision(self, forward: int, backward: int, *, formats: object = None) -> None: ...

    def set_accumulator(self, accumulator: object) -> None: ...


def parse_schedule(text: str) -> OpenLoop | StagedLoop:
    """The schedule of a text; `str` of it is a text of the same schedule.

    Args: text: such as "cpt:3-8/8,cycles=32"; docs/cyclic-precision.md has all forms.
    Raises: ValueError: the text is of no schedule; the error names the part that is wrong.

    >>> from lpkernels.techniques.cpt import parse_schedule
    >>> parse_schedule("cpt:3-8/8,cycles=2").tracks().forward.plan(12)
    array([3, 3, 4, 6, 7, 8, 3, 3, 4, 6, 7, 8])
    """
    try:
        return _parsed(text)
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot read the schedule {text!r}: {error}") from error


def _parsed(text: str) -> OpenLoop | StagedLoop:
    kind, colon, rest = text.partition(":")
    if not colon or kind not in _IMPLIED:
        raise ValueError(
            "expected <kind>:<bits>/<grad bits>,<option>=<value>,... such as cpt:3-8/8,cycles=32; "
            f"kinds are {nearest(kind, [*_KINDS, *NAMED], 'docs/cyclic-precision.md lists all')}"
        )
    falls, (head, *parts) = kind == "fall", rest.split(",")
    if kind == "pfq":
        return StagedLoop(_stages(head), **read_options(text, parts, _own_options(kind)))
    shared = _shared_options(falls)
    given = read_options(text, parts, {**_own_options(kind), **shared})
    fields = {name: given.pop(name) for name in shared if name in given}
    bits, slash, grad_bits = head.partition("/")
    fields["bits"] = None if bits == "none" else _pair("bits", bits, falls)
    if slash:
        fields["grad_bits"] = _pair("grad bits", grad_bits, falls)
    pair = fields["bits"] or fields.get("accumulator") or (8, 8)
    if kind == "static" and pair[0] != pair[1]:
        raise ValueError(f"static: expected one number of bits, got {_pair_text(pair)}")
    return OpenLoop(**fields, settings=_ANY.replace(**{**_IMPLIED[kind], **given}))


def _own_options(kind: str) -> dict[str, Option]:
    """The options that a kind has apart from the others."""
    if kind == "pfq":
        return options_of(StagedLoop, formats=_FORMATS, eval_bits=_EVAL)
    names = {
        "static": (),
        "rise": ("profile", "warmup"),
        "fall": ("profile", "reflection", "warmup"),
        "shuffled": ("cycles", "profile", "form", "reflection", "remainder", "warmup", "seed"),
    }.get(kind, ("cycles", "profile", "form", "reflection", "remainder", "warmup"))
    options = options_of(Schedule, seed={"read": whole})
    return {name: options[name] for name in names}


def _shared_options(falls: bool) -> dict[str, Option]:
    """The options of every kind but pfq; where bits fall, pairs of them are written so."""

    def pair(name: str) -> dict[str, Any]:
        return {
            "name": name,
            "read": lambda text: _pair(name, text, falls),
            "write": lambda value: _pair_text(value, falls),
        }

    return options_of(
        OpenLoop,
        settings=None,
        bits=None,
        grad_bits=None,
        weight=pair("weight"),
        accumulator=pair("acc"),
        accumulators={"name": "acc_format"},
        formats=_FORMATS,
        eval_bits=_EVAL,
    )


def _pair(label: str, text: str, falls: bool) -> Widths:
    """ "3-8" as (3, 8), "8" as (8, 8); where it falls the first is the highest."""
    numbers = _numbers(label, text)
    if len(numbers) > 2:
        raise ValueError(f"{label}: expected 3-8 or 8, got {text!r}")
    if falls and len(numbers) == 2:
        if numbers[0] < numbers[1]:
            raise ValueError(f"{label}: expected bits that fall, such as 8-3, got {text!r}")
        numbers.reverse()
    return widths(label, (numbers[0], numbers[-1]))


def _stages(head: str) -> tuple[tuple[int, int], ...]:
    """ "3-4-6-8/6-6-8-8" as pairs; one number of grad bits is that of all stages."""
    forward, slash, backward = head.partition("/")
    levels = [_numbers("bits", forward), _numbers("grad bits", backward) if slash else [8]]
    if len(levels[1]) == 1:
        levels[1] *= len(levels[0])
    if len(levels[0]) != len(levels[1]):
        raise ValueError(
            f"grad bits: expected one number, or {len(levels[0])}, one a stage, got {backward!r}"
        )
    return tuple(zip(*levels, strict=True))


def _numbers(label: str, text: str) -> list[int]:
    try:
        return [whole(part) for part in text.split("-")]
    except ValueError as error:
        raise ValueError(f"{label}: {error}, got {text!r}") from None


def _pair_text(pair: Widths, falls: bool = False) -> str:
    return "-".join(map(str, sorted(set(pair), reverse=falls)))


def _formats(text: str) -> str | tuple[tuple[int, str], ...]:
    """ "float" and "fixed{bits}_f4" as they are, "3:e2m0_sat+4:fp4_e2m1" as pairs."""
    if text in TABLES or "{bits}" in text:
        return text
    pairs = [part.partition(":") for part in text.split("+")]
    return tuple((whole(bits), fmt) for bits, _, fmt in pairs)


def _formats_text(formats: str | tuple[tuple[int, str], ...]) -> str:
    if isinstance(formats, str):
        return formats
    return "+".join(f"{bits}:{fmt}" for bits, fmt in formats)


def _table(formats: str | tuple[tuple[int, str], ...]) -> Formats | None:
    """The argument of a scheduler."""
    return (formats if isinstance(formats, str) else dict(formats)) or None


# The options that have the same form in all kinds.
_FORMATS: Mapping[str, Any] = {"read": _formats, "write": _formats_text}
_EVAL: Mapping[str, Any] = {"name": "eval", "read": whole}

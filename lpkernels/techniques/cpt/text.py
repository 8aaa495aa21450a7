"""Schedules as text, read and written here alone: "cpt:3-8/8,cycles=32".

    <kind>:<bits>[/<grad bits>][,<option>=<value>]...

kind: cpt (cycles), static, rise (one cycle), fall (one that decays, its bits written 8-3), shuffled
(the bits of cpt in random order), plateau (rises when the loss stops falling), or one of the ten
names of NAMED (CR, LT, RTV, ...), which stand for cpt with other settings and 8 cycles.
bits: 3-8, 8, or none where only an accumulator is scheduled. Grad bits are 8 unless given.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpkernels.techniques.cpt import _checks
from lpkernels.techniques.cpt.plateau import PrecisionOnPlateau
from lpkernels.techniques.cpt.schedule import NAMED, Schedule
from lpkernels.techniques.cpt.scheduler import PrecisionScheduler
from lpkernels.techniques.cpt.tables import TABLES, accumulator_table, format_table
from lpkernels.techniques.cpt.targets import Targets
from lpkernels.techniques.cpt.tracks import Tracks, costs

Pair = tuple[int, int]

_KINDS = ("cpt", "static", "rise", "fall", "shuffled", "plateau")
_DEFAULT = Schedule((8, 8))
# By option: the field it sets. The other options of a kind are the names of fields.
_NAMES = {"acc": "accumulator", "acc_format": "accumulators", "eval": "eval_bits"}
_TEXTS = ("profile", "form", "reflection", "remainder", "threshold_mode")


@dataclass(frozen=True)
class _Common:
    """What open and closed loops share: which bits are set, and what they mean."""

    bits: Pair | None = None
    grad_bits: Pair = (8, 8)
    weight: Pair | None = None
    accumulator: Pair | None = None
    accumulators: str = "e8m{bits}"
    formats: str | tuple[tuple[int, str], ...] = ""
    eval_bits: int | None = None

    def _meaning(self) -> dict[str, Any]:
        """The arguments of a scheduler that say what bits mean."""
        formats = dict(self.formats) if isinstance(self.formats, tuple) else self.formats
        return {
            "accumulators": self.accumulators,
            "eval_bits": self.eval_bits,
            "formats": formats or None,
        }

    def _check(self) -> None:
        if self.bits is None and self.accumulator is None:
            raise ValueError("bits none: expected acc=<bits>, got neither bits nor acc")
        if self.bits is None and self.weight is not None:
            raise ValueError("weight: bits of weights need those of the inputs, got bits none")
        if self.accumulator is not None:
            accumulator_table(
                self.accumulators, range(self.accumulator[0], self.accumulator[1] + 1)
            )
        elif self.accumulators != _Common.accumulators:
            raise ValueError("acc_format: belongs to acc=<bits>, got it without")
        if self.formats and self.bits is not None:
            format_table(self._meaning()["formats"], range(self.bits[0], self.bits[1] + 1))

    def _rest(self) -> list[str]:
        """The options that both print."""
        options = []
        if self.weight is not None:
            options.append(f"weight={_range(self.weight)}")
        if self.accumulator is not None:
            options.append(f"acc={_range(self.accumulator)}")
        if self.accumulators != _Common.accumulators:
            options.append(f"acc_format={self.accumulators}")
        if self.formats:
            options.append(f"formats={_formats_text(self.formats)}")
        if self.eval_bits is not None:
            options.append(f"eval={self.eval_bits}")
        return options


@dataclass(frozen=True)
class OpenLoop(_Common):
    """A schedule fixed in advance, of a run of any length; `str` is its text.

    settings: all but the bits. bits and the other pairs are (lowest, highest).
    """

    settings: Schedule = _DEFAULT

    def tracks(self, *, seed: int = 0) -> Tracks:
        """The schedules of its bits; seed: of shuffled ones whose text gives none."""
        own = self.settings.seed
        base = self.settings.replace(seed=seed if own is None else own)

        def track(pair: Pair | None) -> Schedule | None:
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
        kind = self.kind
        falls = kind == "fall"
        bits = "none" if self.bits is None else _range(self.bits, falls)
        head = f"{kind}:{bits}" + ("" if self.bits is None else f"/{_range(self.grad_bits, falls)}")
        options = []
        for field in dataclasses.fields(Schedule):
            value = getattr(self.settings, field.name)
            implied = field.name in ("bits", "shuffled") or (kind, field.name) in _IMPLIED
            if not implied and value != getattr(_DEFAULT, field.name):
                options.append(f"{field.name}={value}")
        return ",".join([head, *options, *self._rest()])


@dataclass(frozen=True)
class ClosedLoop(_Common):
    """A precision that rises on a plateau of the training loss; `str` is its text.

    every: training steps between two looks at their mean loss; 0 is an epoch's.
    The others are PrecisionOnPlateau's.
    """

    increment: int = 1
    patience: int = 10
    threshold: float = 1e-4
    threshold_mode: str = "rel"
    cooldown: int = 0
    every: int = 0

    def scheduler(self, targets: Targets) -> PrecisionOnPlateau:
        """The scheduler of a run.  Raises: TypeError, ValueError: as PrecisionOnPlateau."""
        return PrecisionOnPlateau(
            targets,
            bits=self.bits,
            grad_bits=self.grad_bits[0],
            accumulator_bits=self.accumulator,
            increment=self.increment,
            patience=self.patience,
            threshold=self.threshold,
            threshold_mode=self.threshold_mode,
            cooldown=self.cooldown,
            **self._meaning(),
        )

    def __str__(self) -> str:
        bits = "none" if self.bits is None else f"{_range(self.bits)}/{_range(self.grad_bits)}"
        own = [field for field in dataclasses.fields(self) if field.name in _PLATEAU]
        changed = [f for f in own if getattr(self, f.name) != f.default]
        options = [f"{field.name}={getattr(self, field.name)}" for field in changed]
        return ",".join([f"plateau:{bits}", *options, *self._rest()])


_PLATEAU = ("increment", "patience", "threshold", "threshold_mode", "cooldown", "every")
_SCHEDULE = ("cycles", "profile", "form", "reflection", "remainder", "warmup", "seed")
_SHARED = ("weight", "acc", "acc_format", "formats", "eval")
# What a kind's name says already, and its text does not.
_IMPLIED = {("static", "cycles"), ("rise", "cycles"), ("fall", "cycles"), ("fall", "form")}
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "cpt": tuple(name for name in _SCHEDULE if name != "seed"),
    "shuffled": _SCHEDULE,
    "static": (),
    "rise": ("profile", "warmup"),
    "fall": ("profile", "reflection", "warmup"),
    "plateau": _PLATEAU,
}


def parse_schedule(text: str) -> OpenLoop | ClosedLoop:
    """The schedule of a text; `str` of it is a text of the same schedule.

    Raises: ValueError: not such a text; the error says what of it.
    """
    try:
        return _parsed(text)
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot read the schedule {text!r}: {error}") from error


def _parsed(text: str) -> OpenLoop | ClosedLoop:
    kind, colon, rest = text.partition(":")
    if not colon or kind not in (*_KINDS, *NAMED):
        raise ValueError(
            "expected <kind>:<bits>/<grad bits>,<option>=<value>,... such as cpt:3-8/8,cycles=32; "
            f"kinds are {', '.join(_KINDS)} and {', '.join(NAMED)}"
        )
    implied: dict[str, Any] = {"cycles": 8, **NAMED[kind]} if kind in NAMED else {}
    kind = "cpt" if kind in NAMED else kind
    head, *parts = rest.split(",")
    options = {**implied, **_options(kind, parts)}
    widths, slash, grad = head.partition("/")
    falls = kind == "fall"
    fields: dict[str, Any] = {"bits": None if widths == "none" else _pair("bits", widths, falls)}
    if slash:
        fields["grad_bits"] = _pair("grad bits", grad, falls)
    for name in ("weight", "acc"):
        if name in options:
            fields[_NAMES.get(name, name)] = _pair(name, options.pop(name), falls)
    for name in ("acc_format", "eval", "formats"):
        if name in options:
            fields[_NAMES.get(name, name)] = options.pop(name)
    made = _plateau(fields, options) if kind == "plateau" else _open(kind, fields, options)
    made._check()
    return made


def _open(kind: str, fields: dict[str, Any], options: dict[str, Any]) -> OpenLoop:
    pair = fields["bits"] or fields.get("accumulator") or (8, 8)
    if kind in ("static", "rise", "fall"):
        options["cycles"] = 1
    if kind == "fall":
        options["form"] = "triangular"
    if kind == "static" and pair[0] != pair[1]:
        raise ValueError(f"static: expected one number of bits, got {_range(pair)}")
    return OpenLoop(**fields, settings=Schedule((8, 8), shuffled=kind == "shuffled", **options))


def _plateau(fields: dict[str, Any], options: dict[str, Any]) -> ClosedLoop:
    made = ClosedLoop(**fields, **options)
    if len(set(made.grad_bits)) > 1 or made.weight is not None:
        raise ValueError("plateau: expected one number of grad bits and no weight=, got others")
    if made.every < 0:
        raise ValueError(f"every: expected at least 0 steps, got {made.every}")
    # The settings are checked where they are used; here a target that does nothing uses them.
    made.scheduler(_Nothing())
    return made


class _Nothing:
    """A target that takes all settings."""

    def set_precision(self, forward: int, backward: int, *, formats: object = None) -> None: ...

    def set_accumulator(self, accumulator: object) -> None: ...


def _options(kind: str, parts: list[str]) -> dict[str, Any]:
    known = (*_OPTIONS[kind], *_SHARED)
    found: dict[str, Any] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name not in known:
            raise ValueError(f"{kind} has the options {', '.join(known)}, got {part!r}")
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = _reader(name)(value)
    return found


def _reader(name: str) -> Callable[[str], Any]:
    if name in _TEXTS or name in ("weight", "acc", "acc_format"):
        return str
    if name == "threshold":
        return float
    return _formats if name == "formats" else lambda value: _number(name, value)


def _number(label: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{label}: expected a whole number, got {text!r}")
    return int(text)


def _pair(label: str, text: str, falls: bool) -> Pair:
    """ "3-8" as (3, 8), "8" as (8, 8); where it falls the first is the highest."""
    numbers = [_number(label, part) for part in text.split("-")]
    if len(numbers) > 2:
        raise ValueError(f"{label}: expected 3-8 or 8, got {text!r}")
    if falls and len(numbers) == 2:
        if numbers[0] < numbers[1]:
            raise ValueError(f"{label}: expected bits that fall, such as 8-3, got {text!r}")
        numbers.reverse()
    return _checks.widths(label, (numbers[0], numbers[-1]))


def _range(pair: Pair, falls: bool = False) -> str:
    low, high = pair
    if low == high:
        return str(low)
    return f"{high}-{low}" if falls else f"{low}-{high}"


def _formats(text: str) -> str | tuple[tuple[int, str], ...]:
    """ "float" and "fixed{bits}_f4" as they are, "3:e2m0_sat+4:fp4_e2m1" as pairs."""
    if text in TABLES or "{bits}" in text:
        return text
    pairs = [part.partition(":") for part in text.split("+")]
    return tuple((_number("formats", bits), fmt) for bits, _, fmt in pairs)


def _formats_text(formats: str | tuple[tuple[int, str], ...]) -> str:
    if isinstance(formats, str):
        return formats
    return "+".join(f"{bits}:{fmt}" for bits, fmt in formats)

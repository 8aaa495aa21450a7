"""Precision as a function of the step: closed forms, without torch and without state.

Sources: Fu et al. 2021, "CPT: Efficient deep neural network training via cyclic precision", arXiv
2101.09868, and its code: cosine growth in repeated cycles. Wolfe and Kyrillidis 2024, "Better
schedules for low precision training of deep neural networks", arXiv 2403.02243, and its code: the
profiles linear, exp and rex, the triangular forms and the two reflections.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from lpkernels.rng import mix64
from lpkernels.techniques import checks

#: The profile of a schedule: a name of PROFILES, or a function of z in [0, 1] to [0, 1].
Profile = str | Callable[[float], float]

# Where the cosine of pi z is rational (Niven's theorem); elsewhere no value is a tie.
_COSINE = {
    Fraction(0): Fraction(0),
    Fraction(1, 3): Fraction(1, 4),
    Fraction(1, 2): Fraction(1, 2),
    Fraction(2, 3): Fraction(3, 4),
    Fraction(1): Fraction(1),
}


def cosine(z: Fraction) -> Fraction:
    """(1 - cos(pi z)) / 2."""
    exact = _COSINE.get(z)
    return Fraction(0.5 * (1 - math.cos(math.pi * z))) if exact is None else exact


#: Growth profiles by name: how far between the lowest and the highest precision, at z in [0, 1] of
#: a cycle. Values are exact rationals; a value that is not rational is rounded to float64.
PROFILES: Mapping[str, Callable[[Fraction], Fraction]] = {
    "cosine": cosine,
    "linear": lambda z: z,
    # It ends at 0.98.
    "exp": lambda z: Fraction(-math.expm1(-4 * z)),
    # 1 - y / (0.1 + 0.9 y) with y = 1 - z: low for long, then steep.
    "rex": lambda z: z / (10 - 9 * z),
}


def growth(profile: Profile, z: Fraction) -> Fraction:
    """The profile at z in [0, 1], exactly.

    Raises: ValueError: a function of the user's gives a number outside [0, 1].
    """
    if not callable(profile):
        return PROFILES[profile](z)
    value = float(profile(float(z)))
    if not 0 <= value <= 1:
        raise ValueError(
            f"profile: expected a function from [0, 1] to [0, 1], got {value} at z={float(z)}; "
            "bits are lowest + (highest - lowest) * profile(z)"
        )
    return Fraction(value)


FORMS = ("repeated", "triangular")
REFLECTIONS = ("horizontal", "vertical")
REMAINDERS = ("stretch", "partial", "hold_max")

# A float32's own.
_MAX_BITS = 32
# 2^64 over the golden ratio: multiples of it are far apart modulo 2^64.
_STRIDE = 0x9E3779B97F4A7C15


def width(label: str, value: Any) -> int:
    """A precision in bits."""
    bits = checks.whole(label, value, 1)
    if bits > _MAX_BITS:
        raise ValueError(
            f"{label}: expected 1 to {_MAX_BITS} bits, got {bits}; tensors are float32, so give "
            f"{_MAX_BITS}"
        )
    return bits


def widths(label: str, value: Any) -> tuple[int, int]:
    """(lowest, highest), or one number for both."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return (width(label, value),) * 2
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{label}: expected (lowest, highest) such as (3, 8), got {value!r}")
    low, high = width(label, value[0]), width(label, value[1])
    if low > high:
        raise ValueError(
            f"{label}: expected (lowest, highest), got ({low}, {high}); write ({high}, {low})"
        )
    return low, high


@dataclass(frozen=True)
class Schedule:
    """Bits of every step of a training run of any length.

    Over a cycle z runs from 0 towards 1 and the bits are lowest + (highest - lowest) * g(z),
    rounded half to even; the value is exact where it is rational, so that ties are ties.

    bits: (lowest, highest), 1 to 32, or one number for both. At more than 16 bits layers round
        nothing (`lpkernels.nn.Linear.set_precision`), and a step is counted as one in float32.
    cycles: in the steps after the warm-up.
    profile: g. cosine, linear, exp, rex, or a function from [0, 1] to [0, 1].
    form: "repeated": g grows in every cycle. "triangular": the first cycle decays, the second
        grows, and so on: an even number of cycles ends high.
    reflection: how a cycle decays, "horizontal": g(1 - z), or "vertical": 1 - g(z).
    remainder: where `cycles` does not divide the steps. "stretch": z is the fraction of step *
        cycles / steps, so that cycles share all steps evenly. "partial": cycles have floor(steps /
        cycles) steps, and the steps left over begin another cycle, which ends low; as published.
        "hold_max": the same, but the steps left over are at the highest bits.
    warmup: so many steps at the highest bits come first; the schedule takes those that are left.
    shuffled: the bits of the steps after the warm-up are in random order: there are as many steps
        at each precision, and so the cost is the same, but there are no cycles.
    seed: of the order; None is 0, or the run's seed where a run has one.

    Raises:
        TypeError: an argument of another type.
        ValueError: bits out of order or range, cycles below 1, an unknown name.
    """

    bits: tuple[int, int]
    cycles: int = 32
    profile: Profile = "cosine"
    form: str = "repeated"
    reflection: str = "horizontal"
    remainder: str = "stretch"
    warmup: int = 0
    shuffled: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", widths("bits", self.bits))
        checks.whole("cycles", self.cycles, 1)
        if not callable(self.profile):
            checks.choice("profile", self.profile, PROFILES)
        checks.choice("form", self.form, FORMS)
        checks.choice("reflection", self.reflection, REFLECTIONS)
        checks.choice("remainder", self.remainder, REMAINDERS)
        checks.whole("warmup", self.warmup, 0)
        if self.seed is not None:
            checks.whole("seed", self.seed, 0)

    @property
    def lowest(self) -> int:
        """The lowest bits of a step."""
        return self.bits[0]

    @property
    def highest(self) -> int:
        """The highest bits of a step."""
        return self.bits[1]

    def check(self, total: int) -> None:
        """Raises ValueError unless `total` steps hold the warm-up and a step of every cycle."""
        total = checks.whole("total", total, 1)
        if total - self.warmup < self.cycles:
            after = f" after {self.warmup} of warm-up" if self.warmup else ""
            raise ValueError(
                f"total: expected at least as many steps as cycles, got {total} steps{after} and "
                f"cycles={self.cycles}; give fewer cycles or more steps"
            )

    def bits_at(self, step: int, total: int) -> int:
        """The bits of step number `step`, from 0, of `total`; the highest from `total` on.

        Raises: TypeError, ValueError: no such step or total; see `check`.
        """
        self.check(total)
        step = checks.whole("step", step, 0)
        if step < self.warmup or step >= total:
            return self.highest
        step, steps = step - self.warmup, total - self.warmup
        if self.shuffled:
            step = int(_order(steps, self.seed or 0)[step])
        return self._at(step, steps)

    def plan(self, total: int) -> np.ndarray:
        """bits_at of every step: (total,) int64."""
        self.check(total)
        steps = total - self.warmup
        cycled = np.fromiter((self._at(step, steps) for step in range(steps)), np.int64, steps)
        if self.shuffled:
            cycled = cycled[_order(steps, self.seed or 0)]
        return np.concatenate([np.full(self.warmup, self.highest, np.int64), cycled])

    def widths(self) -> Sequence[int]:
        """All bits between the lowest and the highest."""
        return range(self.lowest, self.highest + 1)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values; of a function its name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if callable(self.profile):
            name = getattr(self.profile, "__qualname__", type(self.profile).__qualname__)
            values["profile"] = f"function {name}"
        return {**values, "bits": list(self.bits)}

    def replace(self, **changes: Any) -> "Schedule":
        """This schedule with other settings."""
        return dataclasses.replace(self, **changes)

    def _at(self, step: int, steps: int) -> int:
        """The bits of a step after the warm-up, in order."""
        if self.remainder == "stretch":
            cycle, numerator = divmod(step * self.cycles, steps)
            return _within(self, cycle % 2, numerator, steps)
        length = steps // self.cycles
        if self.remainder == "hold_max" and step >= self.cycles * length:
            return self.highest
        cycle, numerator = divmod(step, length)
        return _within(self, cycle % 2, numerator, length)


# A run asks for one or two schedules, whose cycles mostly repeat the same few thousand steps.
@lru_cache(maxsize=1 << 16)
def _within(schedule: Schedule, odd: int, numerator: int, length: int) -> int:
    """The bits of a schedule at z = numerator / length of an even or odd cycle."""
    z = Fraction(numerator, length)
    decays = schedule.form == "triangular" and not odd
    mirrored = decays and schedule.reflection == "horizontal"
    g = growth(schedule.profile, 1 - z if mirrored else z)
    if decays and not mirrored:
        g = 1 - g
    low, high = schedule.bits
    # Python rounds a fraction half to even, exactly.
    return round(low + (high - low) * g)


@lru_cache(maxsize=4)
def _order(steps: int, seed: int) -> np.ndarray:
    """A permutation of `steps` numbers that depends on nothing but (steps, seed)."""
    base = mix64(seed)
    keys = np.array([mix64(base + step * _STRIDE) for step in range(steps)], np.uint64)
    return np.argsort(keys, kind="stable")


#: The ten schedules of Wolfe and Kyrillidis by name: the profile (cosine, linear, exp, rex), then
#: repeated, or triangular with a vertical or horizontal reflection. Their scripts have 8 cycles.
NAMED: Mapping[str, Mapping[str, str]] = {
    "CR": {"profile": "cosine"},
    "CT": {"profile": "cosine", "form": "triangular"},
    "LR": {"profile": "linear"},
    "LT": {"profile": "linear", "form": "triangular"},
    "ER": {"profile": "exp"},
    "ETV": {"profile": "exp", "form": "triangular", "reflection": "vertical"},
    "ETH": {"profile": "exp", "form": "triangular"},
    "RR": {"profile": "rex"},
    "RTV": {"profile": "rex", "form": "triangular", "reflection": "vertical"},
    "RTH": {"profile": "rex", "form": "triangular"},
}


def named_schedule(
    name: str, bits: tuple[int, int], *, cycles: int = 8, remainder: str = "stretch"
) -> Schedule:
    """One of the ten schedules of Wolfe and Kyrillidis 2024 (arXiv 2403.02243): see NAMED.

    Args:
        name: of NAMED: profile, form and reflection.
        bits, cycles, remainder: Schedule's; their scripts have 8 cycles.

    Raises: ValueError: no such name; else as Schedule.
    """
    checks.choice("name", name, NAMED, "lpkernels.techniques.cpt.NAMED lists all")
    return Schedule(bits, cycles, remainder=remainder, **NAMED[name])  # type: ignore[arg-type]


def bits_at(
    step: int,
    total: int,
    *,
    bits: tuple[int, int],
    cycles: int = 32,
    profile: Profile = "cosine",
    form: str = "repeated",
    reflection: str = "horizontal",
    remainder: str = "stretch",
    warmup: int = 0,
) -> int:
    """The bits of step number `step`, from 0, of `total`: a pure function, from 1 to 32.

    Args:
        step, total: whole numbers; from step `total` on, the highest bits.
        bits, cycles, profile, form, reflection, remainder, warmup: Schedule's.

    Raises: TypeError, ValueError: as Schedule; total 0, or smaller than cycles after the warm-up.

    >>> from lpkernels.techniques.cpt import bits_at
    >>> [bits_at(step, 12, bits=(3, 8), cycles=2) for step in range(12)]
    [3, 3, 4, 6, 7, 8, 3, 3, 4, 6, 7, 8]
    """
    made = Schedule(bits, cycles, profile, form, reflection, remainder, warmup)
    return made.bits_at(step, total)

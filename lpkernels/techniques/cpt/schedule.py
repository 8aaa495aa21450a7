"""Precision as a function of the step, and the cost of a step: pure functions, without torch.

Sources: Fu et al. 2021, "CPT: Efficient deep neural network training via cyclic precision", arXiv
2101.09868, and its code: cosine growth in repeated cycles, and the cost. Wolfe and Kyrillidis 2024,
"Better schedules for low precision training of deep neural networks", arXiv 2403.02243, and its
code: the profiles linear, exp and rex, the triangular forms and the two reflections.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from lpkernels.arithmetic.precisions import MOST_AFFINE_BITS
from lpkernels.rng import mix64
from lpkernels.techniques import checks


def _cosine(z: Fraction) -> Fraction:
    """(1 - cos(pi z)) / 2. For z in thirds and halves it is exact, in quarters; elsewhere it is
    irrational (Niven's theorem), so that no value of it is a tie."""
    value = Fraction(0.5 * (1 - math.cos(math.pi * z)))
    return value.limit_denominator(4) if z.denominator <= 3 else value


#: Growth profiles by name: how far between the lowest and the highest precision, at z in [0, 1] of
#: a cycle. Values are exact rationals; a value that is not rational is rounded to float64.
PROFILES: Mapping[str, Callable[[Fraction], Fraction]] = {
    "cosine": _cosine,
    "linear": lambda z: z,
    # It ends at 0.98.
    "exp": lambda z: Fraction(-math.expm1(-4 * z)),
    # 1 - y / (0.1 + 0.9 y) with y = 1 - z: low for long, then steep.
    "rex": lambda z: z / (10 - 9 * z),
}

#: The ten schedules of Wolfe and Kyrillidis by name, as settings of a Schedule: the profile
#: (cosine, linear, exp, rex), then repeated, or triangular with a vertical or horizontal
#: reflection. Their scripts have 8 cycles.
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

# The bits of a float32.
_MOST_BITS = 32
# 2^64 over the golden ratio: multiples of it are far apart modulo 2^64.
_STRIDE = 0x9E3779B97F4A7C15


def width(label: str, value: Any) -> int:
    """A precision in bits, 1 to 32."""
    return checks.whole(label, value, 1, _MOST_BITS)


def widths(label: str, value: Any) -> tuple[int, int]:
    """(lowest, highest), or one number for both."""
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    low, high = (width(label, bits) for bits in (value if is_pair else (value, value)))
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

    bits: (lowest, highest), 1 to 32, or one number for both; layers round nothing above 16.
    cycles: in the training.
    profile: g. cosine, linear, exp, rex, or a function from [0, 1] to [0, 1].
    form: "repeated": g grows in every cycle. "triangular": the first cycle decays, the second
        grows, and so on: an even number of cycles ends high.
    reflection: how a cycle decays, "horizontal": g(1 - z), or "vertical": 1 - g(z).
    remainder: where `cycles` does not divide the steps. "stretch": z is the fraction of step *
        cycles / steps, so that cycles share all steps evenly. "partial": cycles have floor(steps /
        cycles) steps, and the steps left over begin another cycle, which ends low; as published.
        "hold_max": the same, but the steps left over are at the highest bits.
    shuffled: the same bits in random order, at the same cost.  seed: of the order.

    Raises: TypeError: an argument of another type.  ValueError: bits out of order or range, cycles
        below 1, an unknown name.
    """

    bits: tuple[int, int]
    cycles: int = 32
    profile: str | Callable[[float], float] = "cosine"
    form: str = "repeated"
    reflection: str = "horizontal"
    remainder: str = "stretch"
    shuffled: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", widths("bits", self.bits))
        checks.whole("cycles", self.cycles, 1)
        if not callable(self.profile):
            checks.choice("profile", self.profile, PROFILES)
        checks.choice("form", self.form, ("repeated", "triangular"))
        checks.choice("reflection", self.reflection, ("horizontal", "vertical"))
        checks.choice("remainder", self.remainder, ("stretch", "partial", "hold_max"))
        checks.whole("seed", self.seed, 0)

    def check(self, total: int) -> None:
        """Raises ValueError unless `total` steps hold a step of every cycle."""
        if checks.whole("total", total, 1) < self.cycles:
            raise ValueError(
                f"total: expected at least as many steps as cycles, got {total} steps and "
                f"cycles={self.cycles}; give fewer cycles or more steps"
            )

    def bits_at(self, step: int, total: int) -> int:
        """The bits of step number `step`, from 0, of `total`; the highest from `total` on.

        Raises: TypeError, ValueError: no such step or total; see `check`.
        """
        self.check(total)
        if checks.whole("step", step, 0) >= total:
            return self.bits[1]
        if self.shuffled:
            step = int(_order(total, self.seed)[step])
        place, length = step, total // self.cycles
        if self.remainder == "stretch":
            place, length = step * self.cycles, total
        cycle, place = divmod(place, length)
        if self.remainder == "hold_max" and cycle >= self.cycles:
            return self.bits[1]
        return _bits_in_cycle(self, cycle % 2, place, length)

    def plan(self, total: int) -> np.ndarray:
        """bits_at of every step: (total,) int64."""
        return np.array([self.bits_at(step, total) for step in range(total)], np.int64)


# A run has one or two schedules, and their cycles mostly repeat the same few thousand steps.
@lru_cache(maxsize=1 << 16)
def _bits_in_cycle(schedule: Schedule, odd: int, place: int, length: int) -> int:
    """The bits of a schedule at z = place / length of an even or odd cycle.

    Raises: ValueError: a profile of the user's gives a number outside [0, 1].
    """
    decays = schedule.form == "triangular" and not odd
    is_mirrored = decays and schedule.reflection == "horizontal"
    z = Fraction(length - place if is_mirrored else place, length)
    if callable(schedule.profile):
        value = float(schedule.profile(float(z)))
        if not 0 <= value <= 1:
            raise ValueError(
                f"profile: expected a function from [0, 1] to [0, 1], got {value} at z={float(z)}; "
                "bits are lowest + (highest - lowest) * profile(z)"
            )
        g = Fraction(value)
    else:
        g = PROFILES[schedule.profile](z)
    if decays and not is_mirrored:
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


def bits_at(step: int, total: int, *, bits: tuple[int, int], **settings: Any) -> int:
    """The bits of step number `step`, from 0, of `total`: a pure function, from 1 to 32.

    bits, settings: as of Schedule: cycles=32, profile="cosine", form="repeated", ...
    Raises: TypeError, ValueError: as Schedule, and `Schedule.bits_at`.

    >>> from lpkernels.techniques.cpt import bits_at
    >>> [bits_at(step, 12, bits=(3, 8), cycles=2) for step in range(12)]
    [3, 3, 4, 6, 7, 8, 3, 3, 4, 6, 7, 8]
    """
    return Schedule(bits, **settings).bits_at(step, total)


class Precision(NamedTuple):
    """Bits of one step: of the operands of fprop, and of the incoming gradient."""

    forward: int
    backward: int


def bitops(forward_bits: int, backward_bits: int) -> float:
    """The multiplied bits of a training step, relative to one in float32.

    (b^2 + 2 b g) / (3 * 32^2) with b forward_bits and g backward_bits, 1 to 32: fprop multiplies b
    by b bits, dgrad and wgrad b by g. Layers in float32 and additions are not counted. It counts
    multiply-accumulate bits: no speed-up of a GPU follows from it.

    Raises: TypeError, ValueError: no int, or other than 1 to 32.
    Reference: the code of Fu et al. 2021, arXiv 2101.09868. Differs: more than 16 bits count as
        32, since nothing is rounded there; the code counts them as they are.
    """
    widths = {"forward_bits": forward_bits, "backward_bits": backward_bits}
    checked = (width(f"bitops: {name}", bits) for name, bits in widths.items())
    b, g = (_MOST_BITS if bits > MOST_AFFINE_BITS else bits for bits in checked)
    return (b * b + 2 * b * g) / (3 * _MOST_BITS**2)

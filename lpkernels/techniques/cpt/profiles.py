"""Growth profiles: how far between the lowest and the highest precision, over one cycle.

Cosine: Fu et al. 2021, "CPT", arXiv 2101.09868. Linear, exp and rex, and the two reflections:
Wolfe and Kyrillidis 2024, "Better schedules for low precision training", arXiv 2403.02243, and
their code.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

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


def linear(z: Fraction) -> Fraction:
    """z."""
    return z


def exp(z: Fraction) -> Fraction:
    """1 - exp(-4 z), which ends at 0.98."""
    return Fraction(-math.expm1(-4 * z))


def rex(z: Fraction) -> Fraction:
    """1 - y / (0.1 + 0.9 y) with y = 1 - z, that is z / (10 - 9 z): low for long, then steep."""
    return z / (10 - 9 * z)


#: The profiles by name. Their values are exact rationals; a value that is not rational is rounded
#: to float64.
PROFILES: Mapping[str, Callable[[Fraction], Fraction]] = {
    "cosine": cosine,
    "linear": linear,
    "exp": exp,
    "rex": rex,
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

"""Operands on which emulated sums go wrong first, as data."""

import numpy as np

#: Kinds of operands; see operand().
KINDS = ("plain", "wide", "cancelling", "ties", "subnormal", "huge", "special")
_SPECIALS = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, 3e38], dtype=np.float32)


def operand(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """float32 values of one kind.

    "plain" has 24 significant bits around 1; "wide" magnitudes up to 2^40 apart; "cancelling" few
    values of both signs, so sums return to zero; "ties" short significands that meet halfway;
    "subnormal" values of float32 below and near 2^-126; "huge" near its maximum; "special" mixes
    infinities, NaN and both zeros in; "rare" has many zeros of one sign and few other such values,
    so that long sums stay finite in places.
    """
    plain = rng.standard_normal(shape)
    if kind == "wide":
        plain = plain * 2.0 ** rng.integers(-20, 21, shape)
    elif kind == "cancelling":
        plain = rng.choice([-1.0, 1.0, 0.5, -0.5, 0.0, -0.0], shape)
    elif kind == "ties":
        plain = rng.integers(-9, 10, shape) * 2.0 ** rng.integers(-7, 3, shape)
    elif kind == "subnormal":
        # Half of them scale a subnormal back into reach of the narrow formats.
        scale = rng.choice([2.0**-149, 2.0**-140, 2.0**-126, 2.0**120], shape)
        plain = rng.integers(-9, 10, shape) * scale
    elif kind == "huge":
        plain = plain * 2.0 ** rng.integers(100, 126, shape)
    x = plain.astype(np.float32)
    if kind == "special":
        x = np.where(rng.random(shape) < 0.2, rng.choice(_SPECIALS, shape), x).astype(np.float32)
    elif kind == "rare":
        chance = rng.random(shape)
        x[chance < 0.3] = -0.0
        x[chance < 0.04] = 1e-45
        x[chance < 0.01] = np.inf
        x[chance < 0.005] = np.nan
    return x

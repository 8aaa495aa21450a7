"""Student's t distribution, by the incomplete beta function."""

import math
from functools import lru_cache

# Relative to the fraction; a few units in the last place of a double, which it does reach.
_CONVERGED = 1e-15
# The fraction takes about sqrt(dof) terms.
_MOST_TERMS = 10_000


def two_sided_p(t: float, dof: int) -> float:
    """P(|T| >= |t|) for Student's T with `dof` degrees of freedom.

    Exact to 1e-10 of itself up to 1000 degrees of freedom.

    Reference: Abramowitz and Stegun 1964, 26.5.27 and 26.7.1: I_x(dof/2, 1/2), x = dof/(dof + t^2).
    """
    ratio = t * t / dof
    if math.isinf(ratio):
        return 0.0
    # Both x and 1 - x by a quotient: one of the two is close to 1, and 1 - it would cancel.
    return _incomplete_beta(dof / 2, 0.5, 1 / (1 + ratio), ratio / (1 + ratio))


@lru_cache(maxsize=64)
def critical_t(level: float, dof: int) -> float:
    """The t for which P(|T| <= t) = level, by bisection; 0 < level < 1."""
    low, high = 0.0, 1.0
    while two_sided_p(high, dof) > 1 - level:
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if two_sided_p(middle, dof) > 1 - level:
            low = middle
        else:
            high = middle


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """I_x(a, b), regularised, for x + y = 1."""
    if x == 0.0 or y == 0.0:
        return 0.0 if x == 0.0 else 1.0
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x)
    front = math.exp(front + b * math.log(y))
    # The fraction converges fast on this side of the mean; on the other I_x(a, b) = 1 - I_y(b, a).
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, y) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b), by Lentz's algorithm.

    Reference: NIST Digital Library of Mathematical Functions, 8.17.22 and 8.17.23.
    """
    numerator = 1.0
    denominator = value = 1 / (1 - (a + b) * x / (a + 1))
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            denominator = 1 / (1 + term * denominator)
            numerator = 1 + term / numerator
            value *= numerator * denominator
        if abs(numerator * denominator - 1) < _CONVERGED:
            return value
    raise ArithmeticError(f"incomplete beta: no convergence at a={a}, b={b}, x={x}")

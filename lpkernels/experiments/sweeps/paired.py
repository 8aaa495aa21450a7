"""Means of few numbers, and differences of pairs: intervals and tests."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lpkernels.experiments.sweeps.student import critical_t, two_sided_p


class Interval(NamedTuple):
    """Both ends of a confidence interval."""

    low: float
    high: float


def mean(values: Sequence[float]) -> float:
    """The mean of at least one number; the same in whatever order they come."""
    return math.fsum(values) / len(values)


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    if not _spread(values):
        return 0.0
    centre, count = mean(values), len(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (count - 1) / count)


def t_interval(values: Sequence[float], level: float) -> Interval | None:
    """Student's t interval of the mean.

    None for fewer than two values, and for values that are all equal: figures such as accuracies
    are counts, so that equal ones happen by chance, and an interval of no width would claim to be
    certain of a mean.
    """
    if not _spread(values):
        return None
    half = critical_t(level, len(values) - 1) * (standard_error(values) or 0.0)
    return Interval(mean(values) - half, mean(values) + half)


def bootstrap_interval(
    values: Sequence[float], level: float, *, resamples: int = 10_000, seed: int = 0
) -> Interval | None:
    """The percentile interval of the means of samples drawn from the values with replacement.

    The same for the same values in the same order and the same seed. None where t_interval is.

    Percentiles, not BCa: that estimates a third moment, which a handful of seeds does not
    determine. With few values they are too narrow, for want of the factor sqrt(n / (n - 1)) and of
    the tails of Student's t: of 5 normal ones a 95% interval covers the mean in about 84% of cases,
    of 20 in 92%. So judge by t_interval; this one shows whether a difference is skewed.

    Reference: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13.
    """
    if not _spread(values):
        return None
    drawn = np.random.default_rng(seed).choice(np.asarray(values), (resamples, len(values)))
    low, high = np.quantile(drawn.mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def differences(values: Sequence[float], reference: Sequence[float]) -> list[float]:
    """values - reference, pair by pair.

    Where all are equal but for the rounding of the subtraction, they are made equal: two accuracies
    that are 3/360 apart in every pair have no spread, whatever the last bits say.
    """
    found = [a - b for a, b in zip(values, reference, strict=True)]
    # Half a unit in the last place from each value and from the difference, with room to spare.
    noise = 4 * np.finfo(np.float64).eps * max(map(abs, [*values, *reference]), default=0.0)
    if not found or max(found) - min(found) > noise:
        return found
    return [found[0] if abs(found[0]) > noise else 0.0] * len(found)


def paired_p(found: Sequence[float]) -> float | None:
    """The two-sided p value for a mean difference of zero, by the paired t-test.

    None for fewer than two differences. Where all are equal t divides by zero: p is 1 if they are
    zero, else 2^(1 - n), the p value of the exact test that flips the signs of n differences. The
    limit of t, which is 0, would make two equal differences a certainty.
    """
    if len(found) < 2:
        return None
    if not _spread(found):
        return 1.0 if found[0] == 0.0 else 2.0 ** (1 - len(found))
    return two_sided_p(mean(found) / (standard_error(found) or 1.0), len(found) - 1)


def holm(raw: Sequence[float]) -> list[float]:
    """p values corrected for being several: the share of families with any false finding is kept.

    Reference: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    corrected = [0.0] * len(raw)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(raw)), key=raw.__getitem__)):
        highest = max(highest, min(1.0, (len(raw) - rank) * raw[index]))
        corrected[index] = highest
    return corrected


def _spread(values: Sequence[float]) -> bool:
    return len(values) > 1 and max(values) > min(values)

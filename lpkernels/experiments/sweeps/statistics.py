"""The figures of the arms of a sweep, and how they differ, seed by seed.

Figures are few: intervals and tests are those of Student's t and of a bootstrap.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lpkernels.experiments.sweeps.results import Axes, Cell, Result, figure_of, grouped
from lpkernels.formats.elsewhere import nearest

__all__ = ["ArmSummary", "Difference", "Interval", "summarise"]


class Interval(NamedTuple):
    """Both ends, `low` and `high`, of a confidence interval, in the unit of the figure."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """An arm minus the reference at the same values of the axes, paired by seed.

    reference: the name of the other arm.
    pairs: how many seeds have a figure in both; the others are left out.
    mean: of the differences; None without pairs.
    interval, bootstrap: of that mean, by Student's t and over resampled seeds; None for fewer than
        two pairs and for differences that are all equal.
    p_holm: two-sided paired t-test, corrected by Holm over all differences of the summary; None for
        fewer than two pairs. See `paired_p` for differences that are all equal.
    """

    reference: str
    pairs: int
    mean: float | None = None
    interval: Interval | None = None
    bootstrap: Interval | None = None
    p_holm: float | None = None


@dataclass(frozen=True)
class ArmSummary:
    """One arm at one combination of the axes' values, over its seeds.

    arm, axes: its name, and the value of each axis.
    mean: of the figures; None without any.
    seeds: how many there are: finished + diverged + failed.
    figures: how many of these runs have a figure, and so a part in the mean. A diverged run counts
        with the finite figure it ended on, since leaving it out would flatter the arm; where it has
        none, the mean is over fewer runs and reads too well, which `figures` and `diverged` give
        away.
    error: standard error of the mean; None for fewer than two figures.
    interval: Student's t; None for fewer than two figures and for figures that are all equal.
    level: of all intervals.
    difference: to the reference; None for the reference, or where none is named.
    """

    arm: str
    axes: Axes
    finished: int
    diverged: int
    failed: int
    figures: int
    mean: float | None
    error: float | None
    interval: Interval | None
    level: float
    difference: Difference | None = None

    @property
    def seeds(self) -> int:
        """How many seeds there are: finished + diverged + failed."""
        return self.ended + self.failed

    @property
    def ended(self) -> int:
        """The number of runs that came to a result; the diverged runs are a share of them."""
        return self.finished + self.diverged

    @property
    def diverged_share(self) -> float | None:
        """The share of the runs that diverged; None where none came to a result."""
        return self.diverged / self.ended if self.ended else None


def summarise(
    results: Sequence[Result],
    field: str,
    *,
    reference: str | None = None,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> list[ArmSummary]:
    """A summary for each arm at each combination of the axes' values, in the order they appear.

    results: of `lpkernels.experiments.sweeps.sweep.run_sweep`, or read from its folder.
    field: of the records, whose figures are summarised.  reference: the arm to compare with.
    level: of the intervals, between 0 and 1.
    resamples, seed: of the bootstrap, which is the same whatever other arms there are.

    Raises:
        ValueError: no results, no such arm or field, a field that holds no numbers, a status that
            means nothing, two results of one cell, or level or resamples out of range.
    """
    if not 0.0 < level < 1.0 or resamples < 1:
        raise ValueError(
            f"summarise: expected 0 < level < 1 and resamples >= 1, got {level} and {resamples}"
        )
    groups = grouped(results)
    _check_names(results, field, reference)
    figures = {key: _figures(group, field) for key, group in groups.items()}
    found: dict[Cell, Difference] = {}
    if reference is not None:
        pairs = _pairs(figures, reference)
        intervals = {
            key: bootstrap_interval(pair, level, resamples=resamples, seed=seed)
            for key, pair in pairs.items()
        }
        found = _differences(reference, pairs, intervals, level)
    return [
        _arm_summary(group, list(figures[key].values()), level, found.get(key))
        for key, group in groups.items()
    ]


def varied_axes(summaries: Sequence[ArmSummary]) -> list[str]:
    """The names of the axes that have more than one value among the summaries, in their order."""
    names = dict.fromkeys(name for summary in summaries for name, _ in summary.axes)
    values = [{name: repr(value) for name, value in summary.axes} for summary in summaries]
    return [name for name in names if len({found.get(name) for found in values}) > 1]


def _check_names(results: Sequence[Result], field: str, reference: str | None) -> None:
    arms = list(dict.fromkeys(result.arm for result in results))
    if reference is not None and reference not in arms:
        listed = nearest(reference, arms, "the records list all", shown=repr)
        raise ValueError(f"reference: expected one of the arms {listed}, got {reference!r}")
    known = list(dict.fromkeys(name for result in results for name in result.values))
    if known and field not in known:
        listed = nearest(field, known, "the records list all")
        raise ValueError(f"field: expected one of {listed}, got {field!r}")


def _figures(group: Sequence[Result], field: str) -> dict[int, float]:
    """The figures that there are, by seed."""
    found = {result.seed: figure_of(result, field) for result in group}
    return {seed: value for seed, value in found.items() if value is not None}


def _pairs(figures: Mapping[Cell, dict[int, float]], reference: str) -> dict[Cell, list[float]]:
    """The differences to the reference at the same place, in the order of their seeds."""
    pairs = {}
    for (place, arm), found in figures.items():
        if arm != reference:
            other = figures.get((place, reference), {})
            seeds = [seed for seed in found if seed in other]
            pairs[place, arm] = differences(
                [found[seed] for seed in seeds], [other[seed] for seed in seeds]
            )
    return pairs


def _differences(
    reference: str,
    pairs: Mapping[Cell, list[float]],
    bootstraps: Mapping[Cell, Interval | None],
    level: float,
) -> dict[Cell, Difference]:
    # Corrected over arms and places alike: a reader of the table sees the smallest p of them all.
    raw = {key: p for key, pair in pairs.items() if (p := paired_p(pair)) is not None}
    corrected = dict(zip(raw, holm(list(raw.values())), strict=True))
    return {
        key: Difference(
            reference=reference,
            pairs=len(pair),
            mean=mean(pair) if pair else None,
            interval=t_interval(pair, level),
            bootstrap=bootstraps[key],
            p_holm=corrected.get(key),
        )
        for key, pair in pairs.items()
    }


def _arm_summary(
    group: Sequence[Result], figures: Sequence[float], level: float, difference: Difference | None
) -> ArmSummary:
    statuses = [result.status for result in group]
    return ArmSummary(
        arm=group[0].arm,
        axes=group[0].axes,
        finished=statuses.count("finished"),
        diverged=statuses.count("diverged"),
        failed=statuses.count("failed"),
        figures=len(figures),
        mean=mean(figures) if figures else None,
        error=standard_error(figures),
        interval=t_interval(figures, level),
        level=level,
        difference=difference,
    )


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
    # It is imported here because it takes a second, and most commands have no table.
    from scipy.stats import t

    centre, error = mean(values), standard_error(values)
    return Interval(*map(float, t.interval(level, len(values) - 1, centre, error)))


def bootstrap_interval(
    values: Sequence[float], level: float, *, resamples: int = 10_000, seed: int = 0
) -> Interval | None:
    """The percentile interval of the means of samples drawn from the values with replacement.

    The same for the same values in the same order and the same seed. None where t_interval is.

    Percentiles, not BCa: BCa estimates a third moment, which a handful of seeds does not determine.
    With few values percentiles are too narrow, for want of the factor sqrt(n / (n - 1)) and of the
    tails of Student's t: of 5 normal ones a 95% interval covers the mean in about 84% of cases, of
    20 in 92%. So judge by t_interval; this one shows whether a difference is skewed.

    Reference: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13.
    """
    if not _spread(values):
        return None
    drawn = np.random.default_rng(seed).choice(np.asarray(values), (resamples, len(values)))
    low, high = np.quantile(drawn.mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def differences(values: Sequence[float], reference: Sequence[float]) -> list[float]:
    """values - reference, pair by pair.

    Where all differences are equal but for the rounding of the subtraction, they are made equal:
    two accuracies that are 3/360 apart in every pair have no spread, whatever the last bits say.
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
    from scipy.stats import t

    return float(2 * t.sf(abs(mean(found)) / (standard_error(found) or 1.0), len(found) - 1))


def holm(raw: Sequence[float]) -> list[float]:
    """p values corrected for their number: the share of families with any false finding is kept.

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

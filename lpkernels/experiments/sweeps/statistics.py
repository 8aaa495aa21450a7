"""The figures of the arms of a sweep and their differences, seed by seed, as a table of pandas.

Figures are few: intervals and tests are those of Student's t and of a bootstrap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lpkernels.experiments.workloads.workload import Metric
from lpkernels.formats.elsewhere import nearest

if TYPE_CHECKING:
    import pandas

__all__ = ["summarise"]

STATUSES = ("finished", "diverged", "failed")
# The square of a larger figure is not finite.
_LARGEST = 1e150


def summarise(
    cells: pandas.DataFrame,
    field: str,
    *,
    reference: str | None = None,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> pandas.DataFrame:
    """A row for each arm at each combination of the axes' values, in the order they appear.

    The columns are arm, the axes, and:

    - seeds, finished, diverged, failed: numbers of cells, the first of all of them.
    - figures: how many runs have a figure, and so a part in the mean. A diverged run counts with
      the finite figure it ended on, since leaving it out would flatter the arm; where it has none,
      the mean is over fewer runs and reads too well, which `figures` and `diverged` give away.
    - mean, standard_error, low, high: of the figures, with Student's t interval. The interval is
      missing for fewer than two figures, and for figures that are all equal: accuracies are counts,
      so that equal ones happen by chance, and an interval of no width would claim to be certain.
    - level: of all intervals.
    - reference, pairs: the arm that this one is compared with at the same values of the axes, and
      how many seeds have a figure in both. The reference itself has none.
    - difference, difference_low, difference_high: the mean of this arm minus the reference, seed by
      seed, with its t interval.
    - bootstrap_low, bootstrap_high: the interval of that mean over resampled seeds.
    - p_holm: two-sided paired t-test, corrected by Holm over all differences of the table. Where
      all n differences are equal t divides by zero: p is 1 if they are zero, else 2^(1 - n), the p
      value of the exact test that flips their signs.

    Numbers that there are not are missing (NaN).

    Args:
        cells: `Results.table` of `lpkernels.experiments.sweeps.results`.
        field: a column of it, whose figures are summarised.
        reference: the arm to compare with; None, or where there is no other arm: the table has no
            columns of differences.
        level: of the intervals, between 0 and 1.
        resamples, seed: of the bootstrap, which is the same whatever other arms there are.
    Raises:
        ValueError: no cells, no such arm or field, a field that holds no numbers, a status that
            means nothing, two results of one cell, or level or resamples out of range.
    """
    import pandas

    if not 0.0 < level < 1.0 or resamples < 1:
        raise ValueError(
            f"summarise: expected 0 < level < 1 and resamples >= 1, got {level} and {resamples}"
        )
    _check_cells(cells, reference)
    axes = axes_of(cells)
    table = cells[["arm", *axes, "seed", "status"]].assign(
        _figure=figures_of(cells, field),
        _point=cells.groupby(axes, sort=False).ngroup() if axes else 0,
        _arm=pandas.factorize(cells["arm"])[0],
    )
    groups = {key: own for key, own in table.sort_values("seed").groupby(["_point", "arm"])}
    order = table[["_point", "_arm", "arm"]].drop_duplicates().sort_values(["_point", "_arm"])
    compared = reference is not None and (order["arm"] != reference).any()
    rows = []
    for point, _, arm in order.itertuples(index=False):
        own = groups[point, arm]
        figures = own["_figure"].dropna().to_numpy()
        row = own.iloc[0][["arm", *axes]].to_dict() | {"seeds": len(own)}
        row |= {status: int((own["status"] == status).sum()) for status in STATUSES}
        row |= {"figures": len(figures), **_moments(figures, level), "level": level}
        if compared and arm != reference:
            pairs = _pairs(own, groups.get((point, reference), own[:0]))
            row |= {"reference": reference, "pairs": len(pairs)}
            row |= _difference(pairs, level, resamples, seed)
        rows.append(row)
    summary = pandas.DataFrame(rows)
    if compared:
        summary["p_holm"] = holm(summary["p_holm"].dropna())
    return summary


def axes_of(table: pandas.DataFrame) -> list[str]:
    """The axes of a table of cells or of a summary: its columns between arm and seed or seeds."""
    names = list(table.columns)
    return names[1 : names.index("seed" if "seed" in names else "seeds")]


def varied_axes(table: pandas.DataFrame) -> list[str]:
    """The axes that have more than one value in the table."""
    return [name for name in axes_of(table) if table[name].nunique() > 1]


def metric_named(field: str, own: Metric) -> Metric:
    """The metric of a field that a user asks for; "" and its field are those of `own`."""
    if field in ("", own.field):
        return own
    shares = "accuracy" in field
    return Metric(field, field.replace("_", " "), higher=shares, percent=shares)


def figures_of(cells: pandas.DataFrame, field: str) -> pandas.Series[float]:
    """The figures of a field: NaN for a cell without one, and where its square is not finite.

    Raises: ValueError: no cell has the field, or it holds something else than numbers.
    """
    import pandas

    names = list(cells.columns)[cells.columns.get_loc("cell") + 1 :]
    if names and field not in names:
        listed = nearest(field, names, "the records list all")
        raise ValueError(f"field: expected one of {listed}, got {field!r}")
    values = cells[field] if names else [None] * len(cells)
    for arm, value in zip(cells["arm"], values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ValueError(f"expected numbers in field {field!r}, got {value!r} in {arm!r}")
    figures = pandas.Series(list(values), cells.index, dtype="float64")
    return figures.where(figures.abs() < _LARGEST)


def _check_cells(cells: pandas.DataFrame, reference: str | None) -> None:
    if cells.empty:
        raise ValueError("expected the results of at least one cell, got none; run the sweep first")
    for cell in cells[~cells["status"].isin(STATUSES)].itertuples():
        raise ValueError(
            f"{cell.arm}, seed {cell.seed}: expected a status of {', '.join(STATUSES)}, got "
            f"{cell.status!r}"
        )
    twice = cells[cells.duplicated(["arm", *axes_of(cells), "seed"], keep=False)]
    if len(twice):
        raise ValueError(
            f"expected one result a cell, got two of arm {twice['arm'].iloc[0]!r}, seed "
            f"{twice['seed'].iloc[0]}: {' and '.join(twice['cell'].iloc[:2])}; keep one of them"
        )
    arms = list(cells["arm"].unique())
    if reference is not None and reference not in arms:
        listed = nearest(reference, arms, "the records list all", shown=repr)
        raise ValueError(f"reference: expected one of the arms {listed}, got {reference!r}")


def _moments(values: np.ndarray, level: float) -> dict[str, float]:
    """The mean of values, its standard error and t interval; NaN where the values are too few, an
    interval also where they are all equal."""
    # scipy.stats, which has the interval as a whole, takes a second to import.
    from scipy.special import stdtrit

    count = len(values)
    mean = values.mean() if count else math.nan
    error = values.std(ddof=1) / math.sqrt(count) if count > 1 else math.nan
    alike = not count or np.ptp(values) == 0
    half = math.nan if alike else stdtrit(count - 1, (1 + level) / 2) * error
    error = 0.0 if alike and count > 1 else error
    return {"mean": mean, "standard_error": error, "low": mean - half, "high": mean + half}


def _pairs(own: pandas.DataFrame, base: pandas.DataFrame) -> np.ndarray:
    """The differences of the figures of two arms, seed by seed.

    Differences that are equal but for the rounding of the subtraction are made equal: two
    accuracies that are 3/360 apart in every pair have no spread, whatever the last bits say.
    """
    pairs = own[["seed", "_figure"]].merge(base[["seed", "_figure"]], on="seed").dropna()
    figures = pairs[["_figure_x", "_figure_y"]].to_numpy()
    differences = figures[:, 0] - figures[:, 1]
    # Half a unit in the last place from each value and from the difference, with room to spare.
    noise = 4 * np.finfo(np.float64).eps * np.abs(figures).max(initial=0.0)
    if not len(pairs) or np.ptp(differences) > noise:
        return differences
    return np.full_like(differences, differences[0] if abs(differences[0]) > noise else 0.0)


def _difference(pairs: np.ndarray, level: float, resamples: int, seed: int) -> dict[str, float]:
    """The columns of `summarise` about paired differences, with a p value not yet corrected."""
    from scipy.special import stdtr

    count, moments = len(pairs), _moments(pairs, level)
    mean, error = moments["mean"], moments["standard_error"]
    p = math.nan if count < 2 else 2.0 ** (1 - count) if mean else 1.0
    if error > 0:
        p = 2 * stdtr(count - 1, -abs(mean / error))
    low, high = bootstrap_interval(pairs, level, resamples=resamples, seed=seed)
    return {
        "difference": mean, "difference_low": moments["low"], "difference_high": moments["high"],
        "bootstrap_low": low, "bootstrap_high": high, "p_holm": p,
    }  # fmt: skip


def bootstrap_interval(
    values: np.ndarray, level: float, *, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """The percentile interval of the means of samples drawn from the values with replacement.

    The same for the same values in the same order and the same seed. NaN for values that are all
    equal.

    Percentiles, not BCa: BCa estimates a third moment, which a handful of seeds does not determine.
    With few values percentiles are too narrow, for want of the factor sqrt(n / (n - 1)) and of the
    tails of Student's t: of 5 normal ones a 95% interval covers the mean in about 84% of cases, of
    20 in 92%. So judge by the t interval; this one shows whether a difference is skewed.

    Reference: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13.
    """
    if not len(values) or np.ptp(values) == 0:
        return np.nan, np.nan
    drawn = np.random.default_rng(seed).choice(values, (resamples, len(values)))
    low, high = np.quantile(drawn.mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def holm(raw: pandas.Series[float]) -> pandas.Series[float]:
    """p values corrected for their number: the share of families with any false finding is kept.

    Reference: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    ordered = raw.sort_values()
    factors = np.arange(len(raw), 0, -1)
    return (ordered * factors).clip(upper=1.0).cummax().reindex(raw.index)

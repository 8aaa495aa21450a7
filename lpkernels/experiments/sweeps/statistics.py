"""The figures of the arms of a sweep and their differences, seed by seed, as a table of pandas.

Figures are few: intervals and tests are those of Student's t and of a bootstrap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lpkernels.experiments.records import figure_names
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.formats.elsewhere import nearest

if TYPE_CHECKING:
    import pandas

__all__ = ["summarise"]

STATUSES = ("finished", "diverged", "failed")
#: The level of all intervals, and the resamples of a bootstrap.
LEVEL, RESAMPLES = 0.95, 10_000
# The square of a larger figure is not finite.
_LARGEST = 1e150


def summarise(
    cells: pandas.DataFrame, field: str, *, reference: str | None = None
) -> pandas.DataFrame:
    """A row for each arm at each combination of the axes' values, in the order they appear.

    The columns are arm, the axes, and:

    - seeds, finished, diverged, failed: numbers of cells, the first of all of them.
    - figures: how many runs have a figure, and so a part in the mean. A diverged run counts with
      the finite figure it ended on, since leaving it out would flatter the arm; where it has none,
      the mean is over fewer runs and reads too well, which `figures` and `diverged` give away.
    - mean, standard_error, low, high: of the figures, with Student's 95% t interval, which is
      missing for fewer than two figures and for figures that are all equal: accuracies are counts,
      so that equal ones happen by chance, and an interval of no width would claim to be certain.
    - reference, pairs: the arm that this one is compared with at the same values of the axes, and
      how many seeds have a figure in both. The reference itself has none.
    - difference, difference_low, difference_high: the mean of this arm minus the reference, seed by
      seed, with its 95% t interval.
    - bootstrap_low, bootstrap_high: the 95% percentile interval of that mean over resampled seeds
      (Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13). With few seeds it
      is too narrow: of 5 normal differences it covers the mean in about 84% of cases, of 20 in 92%.
      So judge by the t interval; this one shows whether a difference is skewed.
    - p_holm: two-sided paired t-test, corrected by Holm over all differences of the table. Where
      all n differences are equal t divides by zero: p is 1 if they are zero, else 2^(1 - n), the p
      value of the exact test that flips their signs.

    Numbers that there are not are missing (NaN).

    Args:
        cells: `Results.table` of `lpkernels.experiments.sweeps.results`.
        field: a column of it, whose figures are summarised.
        reference: the arm to compare with; None, or where there is no other arm: the table has no
            columns of differences.
    Raises:
        ValueError: no cells, no such arm or field, a field that holds no numbers, or two results of
            one cell.
    """
    import pandas

    _check_cells(cells, reference)
    axes, arms = axes_of(cells), cells["arm"].unique()
    table = cells[["arm", *axes, "seed", "status"]].assign(_figure=figures_of(cells, field))
    compared = reference is not None and (arms != reference).any()
    rows = []
    for point in [own for _, own in table.groupby(axes, sort=False)] if axes else [table]:
        figures = point.pivot(index="seed", columns="arm", values="_figure")
        for arm in (arm for arm in arms if arm in figures):
            own, values = point[point["arm"] == arm], figures[arm].dropna().to_numpy()
            row = own.iloc[0][["arm", *axes]].to_dict() | {"seeds": len(own)}
            row |= {status: int((own["status"] == status).sum()) for status in STATUSES}
            row |= {"figures": len(values), **_moments(values)}
            if compared and arm != reference:
                pairs = figures.reindex(columns=[arm, reference]).dropna().to_numpy()
                row |= {"reference": reference, "pairs": len(pairs), **_difference(pairs)}
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

    names = figure_names(cells)
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


def _moments(values: np.ndarray) -> dict[str, float]:
    """The mean of values, its standard error and t interval; NaN where the values are too few, an
    interval also where they are all equal."""
    # The import takes half a second, which only statistics pay.
    from scipy import stats

    count = len(values)
    mean, error, low, high = values.mean() if count else math.nan, math.nan, math.nan, math.nan
    if count > 1:
        error = stats.sem(values) if np.ptp(values) else 0.0
    if error > 0:
        low, high = stats.t.interval(LEVEL, count - 1, mean, error)
    return {"mean": mean, "standard_error": error, "low": low, "high": high}


def _difference(pairs: np.ndarray) -> dict[str, float]:
    """The columns of `summarise` about the figures (pairs, 2) of an arm and its reference, with a p
    value not yet corrected.

    Differences that are equal but for the rounding of the subtraction are made equal: two
    accuracies that are 3/360 apart in every pair have no spread, whatever the last bits say.
    """
    from scipy import stats

    differences, count = pairs[:, 0] - pairs[:, 1], len(pairs)
    # Half a unit in the last place from each value and from the difference, with room to spare.
    noise = 4 * np.finfo(np.float64).eps * np.abs(pairs).max(initial=0.0)
    if count and np.ptp(differences) <= noise:
        differences[:] = differences[0] if abs(differences[0]) > noise else 0.0
    moments, p, ends = _moments(differences), math.nan, (math.nan, math.nan)
    if moments["standard_error"] > 0:
        p = stats.ttest_rel(*pairs.T).pvalue
        # The draws are the same whatever other arms there are.
        drawn = stats.bootstrap(
            (differences,), np.mean, n_resamples=RESAMPLES, confidence_level=LEVEL,
            method="percentile", rng=0,
        )  # fmt: skip
        ends = drawn.confidence_interval
    elif count > 1:
        p = 2.0 ** (1 - count) if moments["mean"] else 1.0
    return {
        "difference": moments["mean"],
        **{f"difference_{end}": moments[end] for end in ("low", "high")},
        "bootstrap_low": ends[0], "bootstrap_high": ends[1], "p_holm": p,
    }  # fmt: skip


def holm(raw: pandas.Series[float]) -> pandas.Series[float]:
    """p values corrected for their number: the share of families with any false finding is kept.

    Reference: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    ordered = raw.sort_values()
    factors = np.arange(len(raw), 0, -1)
    return (ordered * factors).clip(upper=1.0).cummax().reindex(raw.index)

"""How sure a predicted frontier is, by a residual bootstrap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Bools, Floats
from lpkernels.techniques.pareto.completion import embed, filled, predict
from lpkernels.techniques.pareto.frontier import step_function


@dataclass(frozen=True)
class FrontierBand:
    """A frontier and the bands around it.

    Attributes:
        memory: (steps,) every memory that a configuration has, ascending.
        error: (steps,) the least predicted error with at most that memory.
        low, high: (steps,) the band around it.
        error_low, error_high: (configurations,) the band of each configuration; where it was
            measured, both are its measured error.
        level: the share of the draws within each band, point by point.
    """

    memory: Floats
    error: Floats
    low: Floats
    high: Floats
    error_low: Floats
    error_high: Floats
    level: float


def held_out_residuals(x: Any, rank: int, *, lam: float = 0.1) -> Floats:
    """The residuals of each row, fitted by embeddings of all other rows: (tasks, configurations).

    Each row is fitted by least squares to all its known entries. The residuals are scaled by sqrt(n
    / (n - rank)), with n known entries, to make up for the dimensions that were fitted.

    Args:
        x: (tasks, configurations) errors as they were measured, NaN where missing. A completed
            matrix has no noise and would give residuals that are too small.
        rank: of the embeddings.
        lam: as for `complete`, which fills the other rows where entries are missing.

    Returns:
        Residuals; NaN where the error is NaN, and in rows with no more than `rank` errors.

    Raises:
        TypeError, ValueError: as `complete` and `embed` raise them, for x without any one of its
            rows; no row with more than `rank` errors.
    """
    errors = checks.numbers("held_out_residuals: x", x, 2)
    if len(errors) < 2:
        raise ValueError(f"held_out_residuals: x must have at least 2 rows, got {len(errors)}")
    checks.whole("held_out_residuals: rank", rank, 1)
    seen = ~np.isnan(errors)
    counts = seen.sum(axis=1)
    if counts.max() <= rank:
        raise ValueError(
            f"held_out_residuals: no row has more than rank={rank} errors, at most {counts.max()}"
        )
    start = None if seen.all() else filled(errors, rank, lam)
    result = np.full(errors.shape, np.nan)
    for task in np.flatnonzero(counts > rank):
        rest = np.arange(len(errors)) != task
        before = None if start is None else start[rest]
        y = embed(filled(errors[rest], rank, lam, before), rank)[:, seen[task]]
        row = errors[task, seen[task]]
        left = row - np.linalg.lstsq(y.T, row, rcond=None)[0] @ y
        result[task, seen[task]] = left * np.sqrt(counts[task] / (counts[task] - rank))
    return result


def frontier_band(
    y: Any,
    indices: Any,
    errors: Any,
    memory: Any,
    *,
    residuals: Any,
    level: float = 0.9,
    draws: int = 500,
    seed: int = 0,
    clip: tuple[float, float] | None = (0, 1),
) -> FrontierBand:
    """The predicted frontier of a task and the band in which the true one is expected.

    Each draw takes residuals r of one task, for all configurations together, as the difference of
    the task from its fit. Then the fit to the measured errors is off by P r_S, where P takes
    measured errors to predicted ones, and the truth is prediction + r - P r_S. A measured error
    stays as measured: the noise of its own seeds is not in the band.

    Args:
        y, indices, errors: as `predict` takes them.
        memory: (configurations,).
        residuals: (tasks, configurations), as from `held_out_residuals`; where one is NaN, one of
            the others is drawn. Or (values,): each configuration draws its own value.
        level: the share of the draws within a band.
        draws, seed: of the bootstrap.
        clip: the range of an error, into which draws are moved; None: none.

    Raises:
        TypeError, ValueError: as `predict`; residuals or memory of another number of
            configurations; a level that is not between 0 and 1.
    """
    predicted = predict(y, indices, errors)
    m = checks.finite("frontier_band: memory", memory, 1)
    if len(m) != len(predicted):
        raise ValueError(
            f"frontier_band: memory has {len(m)} configurations, y has {len(predicted)}"
        )
    bounds = checks.clip_range("frontier_band: clip", clip)
    y = np.asarray(y, dtype=np.float64)
    known = np.isfinite(np.asarray(errors, dtype=np.float64))
    chosen = np.asarray(indices, dtype=np.int64)[known]
    r = draw_residuals("frontier_band", residuals, draws, len(m), seed)
    fitted = r[:, chosen] @ np.linalg.pinv(y[:, chosen]) @ y
    simulated = predicted + r - fitted
    simulated[:, chosen] = predicted[chosen]
    if bounds is not None:
        np.clip(simulated, *bounds, out=simulated)
    return band(m, predicted, simulated, level, "frontier_band")


def hopeful(memory: Any, low: Any, known_memory: Any, known_error: Any) -> Bools:
    """Whether each configuration may still reach the frontier of the known points.

    It may if the lower end of its band is below the least known error with at most its memory.
    Memory is exact.

    Args:
        memory, low: (configurations,) memory, and the lower end of the band of the error.
        known_memory, known_error: (points,), as measured; none: all are hopeful.

    Returns:
        (configurations,) bool.

    Raises:
        TypeError, ValueError: shapes that do not agree, values that are not finite.
    """
    m = checks.finite("hopeful: memory", memory, 1)
    lower = checks.finite("hopeful: low", low, 1)
    if len(m) != len(lower):
        raise ValueError(f"hopeful: got {len(m)} values of memory and {len(lower)} of low")
    if np.size(known_memory) == np.size(known_error) == 0:
        return np.ones(len(m), dtype=bool)
    at = checks.finite("hopeful: known_memory", known_memory, 1)
    found = checks.finite("hopeful: known_error", known_error, 1)
    if len(at) != len(found):
        raise ValueError(f"hopeful: got {len(at)} of known_memory and {len(found)} of known_error")
    result: Bools = lower < step_function(at, found, m)
    return result


def draw_residuals(function: str, residuals: Any, draws: int, size: int, seed: int) -> Floats:
    """(draws, size): rows of a matrix of residuals, or single values of a list of them."""
    checks.whole(f"{function}: draws", draws, 2)
    generator = np.random.default_rng(checks.whole(f"{function}: seed", seed, 0))
    pool = checks.numbers(f"{function}: residuals", residuals, 1 if np.ndim(residuals) == 1 else 2)
    found = pool[~np.isnan(pool)]
    if not len(found) or np.isinf(found).any():
        raise ValueError(f"{function}: residuals must be finite, or NaN where missing")
    if pool.ndim == 1:
        return generator.choice(found, (draws, size))
    if pool.shape[1] != size:
        raise ValueError(
            f"{function}: residuals have {pool.shape[1]} configurations, expected {size}"
        )
    whole = pool[~np.isnan(pool).all(axis=1)]
    rows = whole[generator.integers(len(whole), size=draws)]
    missing = np.isnan(rows)
    rows[missing] = generator.choice(found, int(missing.sum()))
    return rows


def band(
    memory: Floats, predicted: Floats, simulated: Floats, level: float, function: str
) -> FrontierBand:
    """The FrontierBand of (draws, configurations) simulated errors."""
    outside = (1 - checks.number(f"{function}: level", level, above=0, below=1)) / 2
    ends = [outside, 1 - outside]
    order = np.argsort(memory, kind="stable")
    steps = np.unique(memory)
    last = np.searchsorted(memory[order], steps, side="right") - 1
    least = np.minimum.accumulate(simulated[:, order], axis=1)[:, last]
    low, high = np.quantile(least, ends, axis=0)
    error_low, error_high = np.quantile(simulated, ends, axis=0)
    error = step_function(memory, predicted, steps)
    return FrontierBand(steps, error, low, high, error_low, error_high, level)

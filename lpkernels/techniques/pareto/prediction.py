"""The errors of a task, predicted from a few measurements and the errors of other tasks, with the
band in which its frontier is expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats
from lpkernels.techniques.pareto.completion import embed, filled, rank_of
from lpkernels.techniques.pareto.frontier import step_function


def predict(
    y: Any, indices: Any, errors: Any, *, keep_measured: bool = True, ridge: float = 0.0
) -> Floats:
    """The errors of all configurations of a task, predicted from a few measured ones.

    The embedding of the task is the least-squares solution of errors = task . y[:, indices], with
    `ridge` times its squared length added. The prediction is task . y, not clipped. Without ridge
    the prediction does not depend on the basis of y.

    Args:
        y: (rank, configurations), as from `embed`.
        indices: the measured configurations; one may occur once for each of its seeds.
        errors: one for each index. NaN counts as missing, with a warning.
        keep_measured: return a measured error as it was (the mean over seeds), not its fit.
        ridge: at least 0.

    Returns:
        (configurations,) float64.

    Raises:
        TypeError, ValueError: shapes that do not agree; without ridge, fewer measurements than the
            rank, or measurements whose embeddings depend on one another.

    Reference: Yang et al. 2021 (PEPPP). Differs: its code does not keep measured errors.
    """
    embeddings = checks.finite("predict: y", y, 2)
    checks.number("predict: ridge", ridge, least=0)
    chosen = checks.indices("predict: indices", indices, embeddings.shape[1], repeated=True)
    values = checks.numbers("predict: errors", errors, chosen.shape)
    measured = checks.without_nan("predict", values)
    if not measured.any():
        raise ValueError("predict: every measured error is NaN; measure another configuration")
    chosen, values = chosen[measured], values[measured]
    columns = embeddings[:, chosen]
    rank = len(embeddings)
    if ridge == 0:
        dimensions = rank_of(np.linalg.svd(columns, compute_uv=False), columns.shape)
        if dimensions < rank:
            raise ValueError(
                f"predict: {len(chosen)} measurements of rank {dimensions} cannot fix an "
                f"embedding of rank {rank}; measure more (`select` chooses), use a smaller rank or "
                "a ridge above 0"
            )
        task = np.linalg.lstsq(columns.T, values, rcond=None)[0]
    else:
        task = np.linalg.solve(columns @ columns.T + ridge * np.eye(rank), columns @ values)
    result = task @ embeddings
    if keep_measured:
        for index in np.unique(chosen):
            result[index] = values[chosen == index].mean()
    return result


@dataclass(frozen=True)
class FrontierBand:
    """A frontier and the bands around it.

    Attributes:
        memory: (steps,) every memory that a configuration has, ascending.
        error: (steps,) the least predicted error with at most that memory.
        low, high: (steps,) the band around it.
        error_low, error_high: (configurations,) the band of a configuration's error; where it was
            measured, both are its measured error.
        level: the share of the draws within a band, point by point.
    """

    memory: Floats
    error: Floats
    low: Floats
    high: Floats
    error_low: Floats
    error_high: Floats
    level: float


def held_out_residuals(x: Any, rank: int, *, lam: float = 0.1) -> Floats:
    """The residuals of every row, fitted by embeddings of all other rows: (tasks, configurations).

    A row is fitted by least squares to all its measured entries. The residuals are scaled by sqrt(n
    / (n - rank)), with n measured entries, to make up for the dimensions that were fitted.

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
    measured = ~np.isnan(errors)
    counts = measured.sum(axis=1)
    checks.whole("held_out_residuals: rank", rank, 1, int(counts.max()) - 1)
    start = filled(errors, rank, lam)
    result = np.full(errors.shape, np.nan)
    for task in np.flatnonzero(counts > rank):
        others, columns = np.arange(len(errors)) != task, measured[task]
        y = embed(filled(errors[others], rank, lam, start[others]), rank)[:, columns]
        row = errors[task, columns]
        residual = row - np.linalg.lstsq(y.T, row, rcond=None)[0] @ y
        result[task, columns] = residual * np.sqrt(counts[task] / (counts[task] - rank))
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

    A draw takes residuals r of one task, for all configurations together, as the difference of the
    task from its fit. Then the fit to the measured errors is off by P r_S, where P takes measured
    errors to predicted ones, and the truth is prediction + r - P r_S. A measured error stays as
    measured: the noise of its own seeds is not in the band.

    Args:
        y, indices, errors: as `predict` takes them.
        memory: (configurations,).
        residuals: (tasks, configurations), as from `held_out_residuals`; where one is NaN, one of
            the others is drawn. Or (values,): every configuration draws its own value.
        level: the share of the draws within a band.
        draws, seed: of the bootstrap.
        clip: the range of an error, into which draws are moved; None: none.

    Raises:
        TypeError, ValueError: as `predict`; residuals or memory of another number of
            configurations; a level that is not between 0 and 1.
    """
    predicted = predict(y, indices, errors)
    y = np.asarray(y, dtype=np.float64)
    measured = ~np.isnan(np.asarray(errors, dtype=np.float64))
    chosen = np.asarray(indices)[measured]
    m = checks.finite("frontier_band: memory", memory, predicted.shape)
    bounds = checks.clip_range("frontier_band: clip", clip)
    r = draw_residuals("frontier_band", residuals, draws, len(m), seed)
    simulated = predicted + r - r[:, chosen] @ np.linalg.pinv(y[:, chosen]) @ y
    simulated[:, chosen] = predicted[chosen]
    if bounds is not None:
        np.clip(simulated, *bounds, out=simulated)
    return band(m, predicted, simulated, level, "frontier_band")


def draw_residuals(function: str, residuals: Any, draws: int, size: int, seed: int) -> Floats:
    """(draws, size): rows of a matrix of residuals, or single values of a list of them."""
    checks.whole(f"{function}: draws", draws, 2)
    generator = np.random.default_rng(checks.whole(f"{function}: seed", seed, 0))
    pool = checks.numbers(f"{function}: residuals", residuals)
    values = pool[~np.isnan(pool)]
    if not len(values) or np.isinf(values).any():
        raise ValueError(f"{function}: residuals must be finite, or NaN where missing")
    if pool.ndim == 1:
        return generator.choice(values, (draws, size))
    checks.numbers(f"{function}: residuals", pool, (len(pool), size))
    tasks = pool[~np.isnan(pool).all(axis=1)]
    rows = tasks[generator.integers(len(tasks), size=draws)]
    missing = np.isnan(rows)
    rows[missing] = generator.choice(values, int(missing.sum()))
    return rows


def band(
    memory: Floats, predicted: Floats, simulated: Floats, level: float, function: str
) -> FrontierBand:
    """The FrontierBand of (draws, configurations) simulated errors."""
    outside = (1 - checks.number(f"{function}: level", level, above=0, below=1)) / 2
    ends = [outside, 1 - outside]
    order = np.argsort(memory, kind="stable")
    steps = np.unique(memory)
    ranks = np.searchsorted(memory[order], steps, side="right") - 1
    least = np.minimum.accumulate(simulated[:, order], axis=1)[:, ranks]
    low, high = np.quantile(least, ends, axis=0)
    error_low, error_high = np.quantile(simulated, ends, axis=0)
    error = step_function(memory, predicted, steps)
    return FrontierBand(steps, error, low, high, error_low, error_high, level)

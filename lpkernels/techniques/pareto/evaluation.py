"""Leaving one task out: how good each way of choosing measurements is on a known matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats, Ints
from lpkernels.techniques.pareto.completion import embed, filled
from lpkernels.techniques.pareto.frontier import convergence, hyperdiff, hypervolume, pareto_front
from lpkernels.techniques.pareto.prediction import predict
from lpkernels.techniques.pareto.selection import METHODS, select
from lpkernels.techniques.pareto.spaces import mean_over_seeds

_COLUMN_MEAN = "column_mean"
# Measurements of a baseline may depend on one another; the shortest solution is taken then.
_RIDGE = 1e-12


def leave_one_out(
    errors: Any,
    memory: Any,
    *,
    methods: Sequence[str],
    counts: Sequence[int],
    rank: int,
    observed: float = 1.0,
    lam: float = 0.1,
    cap: float | None = None,
    draws: int = 1,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Takes each task in turn as the new one: embeddings come from the other tasks, a few
    configurations of it are measured, and the rest is predicted and compared with the truth.

    With fewer measurements than the rank, only that many dimensions are used. Before points are
    compared, memory is divided by the task's largest; areas reach to the reference (1, 1).

    Args:
        errors: (tasks, configurations), or with a third axis of seeds, whose mean is the truth. An
            entry that is NaN is missing: it is not chosen and not compared.
        memory: (configurations,) or (tasks, configurations).
        methods: those of `select`, and "column_mean", which measures nothing and predicts the mean
            of the other tasks.
        counts: numbers of measurements; "column_mean" has 0.
        rank: of the embeddings.
        observed: the share of the other tasks' entries that is used, drawn anew for each task, with
            at least one in each row and column; the others are completed with `lam`.
        lam: as for `complete`, where entries are missing.
        cap: only configurations with at most so much memory are considered; None: all.
        draws: repetitions of "random".
        seed: of the drawn entries and of "random".

    Returns:
        A record for each task, method, count and draw: these four, and
        rank: the dimensions that were used; measured: configurations, as they were chosen;
        rmse: over the configurations that were not measured, None where every one was;
        hyperdiff, convergence: between the true and the predicted frontier;
        hypervolume: the area that the chosen configurations dominate by their true errors, as a
            share of the true frontier's; chosen are the measured ones and the predicted frontier;
        regret: by how much the best chosen configuration is worse than the best of all;
        noise: the standard error of the truth over seeds, root mean square, which is about the rmse
            of a perfect prediction; None with one seed.

    Raises:
        TypeError, ValueError: unknown methods; counts or a rank above the data; a cap below the
            cheapest configuration; a column that only one task has.

    Reference: Yang et al. 2021 (PEPPP), section on meta-leave-one-out. Differs: pivots count as
    measurements, measured errors are kept, and entries of the new task are never used to complete.
    """
    for method in methods:
        checks.choice("leave_one_out: methods", method, (*METHODS, _COLUMN_MEAN))
    for count in counts:
        checks.whole("leave_one_out: counts", count, 1, rank if "qr" in methods else None)
    checks.number("leave_one_out: observed", observed, above=0, most=1)
    checks.whole("leave_one_out: draws", draws, 1)
    limit = np.inf if cap is None else checks.number("leave_one_out: cap", cap, least=0)
    seeds = np.ndim(errors) == 3
    e = checks.numbers("leave_one_out: errors", errors, 3 if seeds else 2)
    e = e if seeds else e[:, :, None]
    truth = mean_over_seeds(e)
    tasks, configurations = truth.shape
    # One task is left out.
    checks.whole("leave_one_out: rank", rank, 1, min(tasks - 1, configurations))
    m = checks.finite("leave_one_out: memory", memory, truth.shape[2 - np.ndim(memory) :])
    m = np.broadcast_to(m, truth.shape)
    generator = np.random.default_rng(checks.whole("leave_one_out: seed", seed, 0))
    cases = [
        (method, count, draw)
        for method in methods
        for count in ([0] if method == _COLUMN_MEAN else counts)
        for draw in range(draws if method == "random" else 1)
    ]
    records = []
    for task, noise in enumerate(noise_floor(e)):
        valid = np.flatnonzero((m[task] <= limit) & ~np.isnan(truth[task]))
        if len(valid) < max([*counts, rank]):
            raise ValueError(
                f"leave_one_out: counts and rank: expected at most {len(valid)}, the "
                f"configurations that task {task} has below the cap, got {max([*counts, rank])}"
            )
        others = _others(truth, task, observed, generator)
        y = embed(filled(others, rank, lam)[:, valid], rank)
        row, sizes = truth[task, valid], m[task, valid]
        for method, count, draw in cases:
            chosen = np.array([], dtype=np.int64)
            embeddings = y[: count or rank]
            if method == _COLUMN_MEAN:
                predicted = np.nanmean(others, axis=0)[valid]
            else:
                drawn = int(generator.integers(2**31)) if method == "random" else 0
                chosen = select(embeddings, n=count, method=method, seed=drawn)
                predicted = predict(embeddings, chosen, row[chosen], ridge=_RIDGE)
            record = {"task": task, "method": method, "count": count, "draw": draw}
            record |= {"rank": len(embeddings), "measured": [int(i) for i in valid[chosen]]}
            record |= compare(row, predicted, sizes, chosen)
            records.append(record | {"noise": None if np.isnan(noise) else float(noise)})
    return records


def compare(truth: Floats, predicted: Floats, memory: Floats, measured: Ints) -> dict[str, Any]:
    """The figures of a record. truth, predicted, memory: (configurations,). measured: the indices
    of the measured configurations."""
    sizes = memory / memory.max()
    reference = (1.0, 1.0)
    true_front, predicted_front = pareto_front(sizes, truth), pareto_front(sizes, predicted)
    points = (
        np.column_stack([sizes, truth])[true_front],
        np.column_stack([sizes, predicted])[predicted_front],
    )
    chosen = np.union1d(predicted_front, measured).astype(np.int64)
    area = hypervolume(sizes, truth, reference)
    residuals = np.delete(truth - predicted, measured)
    return {
        "rmse": float(np.sqrt((residuals**2).mean())) if residuals.size else None,
        "hyperdiff": hyperdiff(*points, reference),
        "convergence": convergence(*points),
        "hypervolume": hypervolume(sizes[chosen], truth[chosen], reference) / area if area else 1.0,
        "regret": float(truth[chosen].min() - truth.min()),
    }


def noise_floor(errors: Floats) -> Floats:
    """The standard error of each task's mean over seeds, root mean square over configurations.

    errors: (tasks, configurations, seeds), NaN where missing; entries with fewer than two seeds are
        left out.
    Returns (tasks,) float64, NaN for a task without two seeds anywhere.
    """
    seeds = (~np.isnan(errors)).sum(axis=2)
    repeated = seeds > 1
    residuals = errors - mean_over_seeds(errors)[..., None]
    variance = np.nansum(residuals**2, axis=2) / np.maximum(seeds - 1, 1)
    squares = np.where(repeated, variance / np.maximum(seeds, 1), 0).sum(axis=1)
    cells = repeated.sum(axis=1)
    return np.where(cells > 0, np.sqrt(squares / np.maximum(cells, 1)), np.nan)


def _others(
    truth: Floats, left_out: int, observed: float, generator: np.random.Generator
) -> Floats:
    """The rows of the other tasks, NaN where an entry is missing or not drawn."""
    rows = np.delete(truth, left_out, axis=0)
    measured = ~np.isnan(rows)
    for axis, line in ((1, "task"), (0, "configuration")):
        if not measured.any(axis=axis).all():
            raise ValueError(
                f"leave_one_out: without task {left_out} a {line} has no error at all; leave it out"
            )
    if observed == 1:
        return rows
    # The smallest draw of every row and of every column is kept whatever the share.
    draw = np.where(measured, generator.random(rows.shape), np.inf)
    kept = draw < observed
    kept[np.arange(len(draw)), draw.argmin(axis=1)] = True
    kept[draw.argmin(axis=0), np.arange(draw.shape[1])] = True
    return np.where(kept, rows, np.nan)

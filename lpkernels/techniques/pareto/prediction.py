"""Frontiers of memory and error (both should be small), the errors of a task predicted from a few
measurements and the errors of other tasks, and how good each way of choosing measurements is on a
known matrix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats, Ints
from lpkernels.techniques.pareto.completion import embed, filled, rank_of, without_nan
from lpkernels.techniques.pareto.selection import METHODS, configurations, select
from lpkernels.techniques.pareto.spaces import mean_over_seeds

_COLUMN_MEAN = "column_mean"
# This share of the squared length of an embedding is added to its squared errors.
_RIDGE = 1e-12


def pareto_front(memory: Any, error: Any) -> Ints:
    """The points on the frontier, by ascending memory: no other point is as good as one of them in
    both memory and error and better in one.

    Of equal points the first stays. The order of the points does not matter otherwise.

    memory, error: (points,). A NaN error counts as missing, with a warning.
    Returns: (front,) int64 indices.
    Raises: TypeError, ValueError: other shapes, memory that is not finite, or no finite error.
    Reference: Yang et al. 2021 (PEPPP). Differs: in its code equal points rule each other out.

    >>> from lpkernels.techniques.pareto import pareto_front
    >>> pareto_front([1.0, 2.0, 3.0], [0.5, 0.6, 0.2])
    array([0, 2])
    """
    m, e = _points("pareto_front", memory, error)
    # The sort is stable: of equal points the first one stays first.
    order = np.lexsort((e, m))
    order = order[~np.isnan(e[order])]
    is_better = np.diff(np.minimum.accumulate(e[order]), prepend=np.inf) < 0
    return order[is_better].astype(np.int64)


def hypervolume(memory: Any, error: Any, reference: tuple[float, float]) -> float:
    """The area that the points dominate, up to a reference (memory, error); points may be in any
    order, and those beyond the reference add nothing.

    memory, error: as of `pareto_front`.
    Raises: as `pareto_front`; a reference that is not two finite numbers.
    """
    ends = checks.finite("hypervolume: reference (memory, error)", reference, (2,))
    m, e = _points("hypervolume", memory, error)
    inside = np.flatnonzero((m < ends[0]) & (e < ends[1]))
    if not len(inside):
        return 0.0
    front = inside[pareto_front(m[inside], e[inside])]
    return float(np.diff(m[front], append=ends[0]) @ (ends[1] - e[front]))


def hyperdiff(true_points: Any, predicted_points: Any, reference: tuple[float, float]) -> float:
    """How much the areas that two sets of points dominate differ, without sign.

    true_points, predicted_points: (points, 2): memory and error.  reference, and Raises: as of
    `hypervolume`.
    """
    pairs = _pairs("hyperdiff", true_points, predicted_points)
    true, predicted = (hypervolume(points[:, 0], points[:, 1], reference) for points in pairs)
    return abs(true - predicted)


def convergence(true_points: Any, predicted_points: Any) -> float:
    """The mean Euclidean distance of a predicted point from the nearest true one.

    true_points, predicted_points: as of `hyperdiff`; memory and error are best of the same scale.
    Raises: TypeError, ValueError: other shapes, or values that are not finite.
    """
    true, predicted = _pairs("convergence", true_points, predicted_points)
    distances = np.linalg.norm(predicted[:, None] - true[None], axis=2)
    return float(distances.min(axis=1).mean())


def choose(memory: Any, error: Any, cap: float) -> int:
    """The index of the configuration of least error with at most `cap` of memory. Of equally good
    ones it is the one of least memory, then the first.

    memory, error: as of `pareto_front`.
    Raises: as `pareto_front`; a cap below the cheapest configuration.
    """
    checks.number("choose: cap", cap, least=0)
    front = pareto_front(memory, error)
    sizes = np.asarray(memory, dtype=np.float64)[front]
    if sizes[0] > cap:
        raise ValueError(
            f"choose: the cap of {cap:g} is below the cheapest configuration's {sizes[0]:g}"
        )
    return int(front[sizes <= cap][-1])


def _points(function: str, memory: Any, error: Any) -> tuple[Floats, Floats]:
    m = checks.finite(f"{function}: memory", memory, 1)
    e = checks.numbers(f"{function}: error", error, m.shape)
    if not without_nan(function, e).any():
        raise ValueError(f"{function}: every error is NaN")
    return m, e


def _pairs(function: str, true_points: Any, predicted_points: Any) -> list[Floats]:
    """Both sets of points as (points, 2): memory and error."""
    sets = {"true_points": true_points, "predicted_points": predicted_points}
    arrays = {f"{function}: {name}": np.asarray(points) for name, points in sets.items()}
    return [checks.finite(label, x, (x.size // 2 or 1, 2)) for label, x in arrays.items()]


def predict(y: Any, indices: Any, errors: Any, *, keep_measured: bool = True) -> Floats:
    """The errors of all configurations of a task, predicted from a few measured ones.

    The embedding of the task is the least-squares solution of errors = task . y[:, indices]. The
    prediction is task . y, not clipped, and does not depend on the basis of y.

    y: (rank, configurations), as from `embed`.
    indices: the measured configurations; one may occur once for each of its seeds.
    errors: one for each index. NaN counts as missing, with a warning.
    keep_measured: return a measured error as it was (the mean over seeds), not its fit.
    Returns: (configurations,) float64.
    Raises: TypeError, ValueError: shapes that do not agree; fewer measurements than the rank, or
        measurements whose embeddings depend on one another.
    Reference: Yang et al. 2021 (PEPPP). Differs: its code does not keep measured errors.
    """
    embeddings = checks.finite("predict: y", y, 2)
    chosen = configurations("predict: indices", indices, embeddings.shape[1], repeated=True)
    values = checks.numbers("predict: errors", errors, chosen.shape)
    measured = without_nan("predict", values)
    if not measured.any():
        raise ValueError("predict: every measured error is NaN; measure another configuration")
    chosen, values = chosen[measured], values[measured]
    columns = embeddings[:, chosen]
    dimensions = rank_of(np.linalg.svd(columns, compute_uv=False), columns.shape)
    if dimensions < len(embeddings):
        raise ValueError(
            f"predict: {len(chosen)} measurements of rank {dimensions} cannot fix an embedding of "
            f"rank {len(embeddings)}; measure more (`select` chooses) or use a smaller rank"
        )
    result = np.linalg.lstsq(columns.T, values, rcond=None)[0] @ embeddings
    if keep_measured:
        for index in np.unique(chosen):
            result[index] = values[chosen == index].mean()
    return result


def leave_one_out(
    errors: Any,
    memory: Any,
    *,
    methods: Sequence[str],
    counts: Sequence[int],
    rank: int,
    observed: float = 1.0,
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
            at least one in each row and column; the others are completed with lam 0.1.
        cap: the most memory of the configurations that are considered; None: all are.
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
    Raises: TypeError, ValueError: unknown methods; counts or a rank above the data; a cap below the
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
        others = _drawn(np.delete(truth, task, axis=0), observed, generator)
        y = embed(filled(others, rank)[:, valid], rank)
        row, sizes = truth[task, valid], m[task, valid]
        for method, count, draw in cases:
            embeddings = y[: count or rank]
            if method == _COLUMN_MEAN:
                chosen, predicted = np.array([], np.int64), np.nanmean(others, axis=0)[valid]
            else:
                chosen, predicted = _trial(embeddings, row, method, count, generator)
            record = {"task": task, "method": method, "count": count, "draw": draw}
            record |= {"rank": len(embeddings), "measured": [int(i) for i in valid[chosen]]}
            record |= compare(row, predicted, sizes, chosen)
            records.append(record | {"noise": None if np.isnan(noise) else float(noise)})
    return records


def _trial(
    y: Floats, row: Floats, method: str, count: int, generator: np.random.Generator
) -> tuple[Ints, Floats]:
    """The configurations that a method measures, and the row that they predict. The prediction is
    that of `predict`, also where a random choice has embeddings that depend on one another: the
    shortest solution is taken then."""
    seed = int(generator.integers(2**31)) if method == "random" else 0
    chosen = select(y, n=count, method=method, seed=seed)
    columns = y[:, chosen]
    system = columns @ columns.T + _RIDGE * np.eye(len(y))
    predicted = np.linalg.solve(system, columns @ row[chosen]) @ y
    predicted[chosen] = row[chosen]
    return chosen, predicted


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
    with warnings.catch_warnings():
        # An entry with fewer than two seeds, and a task without others, is NaN.
        warnings.simplefilter("ignore", RuntimeWarning)
        variance = np.nanvar(errors, axis=2, ddof=1)
        return np.sqrt(np.nanmean(variance / np.maximum(seeds, 1), axis=1))


def _drawn(rows: Floats, observed: float, generator: np.random.Generator) -> Floats:
    """A share of the entries of the other tasks, NaN where an entry is missing or not drawn."""
    if observed == 1:
        return rows
    # The smallest draw of every row and of every column is kept whatever the share.
    draw = np.where(np.isnan(rows), np.inf, generator.random(rows.shape))
    drawn = draw < observed
    drawn[np.arange(len(draw)), draw.argmin(axis=1)] = True
    drawn[draw.argmin(axis=0), np.arange(draw.shape[1])] = True
    return np.where(drawn, rows, np.nan)

"""Leaving one task out: how good each way of choosing measurements is on a known matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Bools, Floats, Ints
from lpkernels.techniques.pareto.completion import embed, filled, predict
from lpkernels.techniques.pareto.errors import mean_over_seeds
from lpkernels.techniques.pareto.frontier import convergence, hyperdiff, hypervolume, pareto_front
from lpkernels.techniques.pareto.selection import METHODS, select

COLUMN_MEAN = "column_mean"
# Measurements of a baseline may depend on one another; the shortest solution is taken then.
_RIDGE = 1e-12
#: By which memory of points is divided: by the largest of the task, or of the matrix.
SCALES = ("task", "matrix")
#: The figures that `averages` averages, beside the noise.
FIGURES = ("rmse", "hyperdiff", "convergence", "hypervolume", "regret")


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
    scale: str = "task",
) -> list[dict[str, Any]]:
    """Takes each task in turn as the new one: embeddings come from the other tasks, a few
    configurations of it are measured, and the rest is predicted and compared with the truth.

    The embeddings are learned without the task itself. With fewer measurements than the rank, only
    that many dimensions are used. Before points are compared, memory is divided by a largest value
    (`scale`); areas reach to the reference (1, 1).

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
        scale: memory is divided by its largest value among the task's configurations under the cap
            ("task"), or by the largest of `memory`, as in the paper's code ("matrix").

    Returns:
        A record for each task, method, count and draw: these four, and
        rank: the dimensions that were used; measured: configurations, as they were chosen;
        rmse: over the configurations that were not measured, None where none is left;
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
    study = _study(errors, memory, methods, counts, rank, observed, cap, scale)
    checks.whole("leave_one_out: draws", draws, 1)
    generator = np.random.default_rng(checks.whole("leave_one_out: seed", seed, 0))
    records = []
    for task in range(len(study.truth)):
        valid = study.valid(task, max([*counts, rank]))
        others = study.others(task, observed, generator)
        y = embed(filled(others, rank, lam)[:, valid], rank)
        truth, at = study.truth[task, valid], study.memory[task, valid]
        noise = None if np.isnan(study.floor[task]) else float(study.floor[task])
        for method, count, draw in _cases(methods, counts, draws):
            chosen = np.array([], dtype=np.int64)
            part = y[: count or rank]
            if method == COLUMN_MEAN:
                predicted = np.nanmean(others, axis=0)[valid]
            else:
                drawn = int(generator.integers(2**31)) if method == "random" else 0
                chosen = select(part, n=count, method=method, seed=drawn)
                predicted = predict(part, chosen, truth[chosen], ridge=_RIDGE)
            record = {"task": task, "method": method, "count": count, "draw": draw}
            record |= {"rank": len(part), "measured": [int(i) for i in valid[chosen]]}
            record |= compare(truth, predicted, at, chosen, largest=study.largest)
            records.append(record | {"noise": noise})
    return records


def compare(
    truth: Floats,
    predicted: Floats,
    memory: Floats,
    measured: Ints,
    *,
    largest: float | None = None,
) -> dict[str, Any]:
    """The figures of a record. truth, predicted, memory: (configurations,) each. measured: the
    indices of the measured configurations. largest: memory is divided by it; None: by its own
    largest value."""
    at = memory / (memory.max() if largest is None else largest)
    reference = (1.0, 1.0)
    front, found = pareto_front(at, truth), pareto_front(at, predicted)
    points = np.column_stack([at, truth])[front], np.column_stack([at, predicted])[found]
    tried = np.union1d(found, measured).astype(np.int64)
    whole = hypervolume(at, truth, reference)
    left = np.delete(truth - predicted, measured)
    return {
        "rmse": float(np.sqrt((left**2).mean())) if left.size else None,
        "hyperdiff": hyperdiff(*points, reference),
        "convergence": convergence(*points),
        "hypervolume": hypervolume(at[tried], truth[tried], reference) / whole if whole else 1.0,
        "regret": float(truth[tried].min() - truth.min()),
    }


def averages(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each method and count: the number of tasks, and each figure's mean and standard
    error.

    Args: records: of `leave_one_out`.

    Draws of one task are averaged first; the standard error is that over tasks, None for one task.
    """
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["method"], record["count"]), []).append(record)
    rows = []
    for (method, count), group in groups.items():
        row: dict[str, Any] = {"method": method, "count": count}
        row["tasks"] = len({record["task"] for record in group})
        for figure in (*FIGURES, "noise"):
            row[figure], row[f"{figure}_error"] = _mean_and_error(group, figure)
        rows.append(row)
    return rows


def noise_floor(errors: Any) -> Floats:
    """The standard error of each task's mean over seeds, root mean square over configurations.

    Args:
        errors: (tasks, configurations, seeds), NaN where missing; entries with fewer than two seeds
            are left out.

    Returns:
        (tasks,) float64, NaN for a task without two seeds anywhere.

    Raises: TypeError, ValueError: another shape.
    """
    e = checks.numbers("noise_floor: errors", errors, 3)
    seeds = (~np.isnan(e)).sum(axis=2)
    repeated = seeds > 1
    spread = np.nansum((e - mean_over_seeds(e)[..., None]) ** 2, axis=2) / np.maximum(seeds - 1, 1)
    squares = np.where(repeated, spread / np.maximum(seeds, 1), 0).sum(axis=1)
    cells = repeated.sum(axis=1)
    return np.where(cells > 0, np.sqrt(squares / np.maximum(cells, 1)), np.nan)


@dataclass(frozen=True)
class _Study:
    """The matrix, checked. truth: the mean over seeds, NaN where missing or above the cap. largest:
    the memory by which that of every task is divided; None: by its own."""

    truth: Floats
    memory: Floats
    allowed: Bools
    floor: Floats
    largest: float | None

    def valid(self, task: int, least: int) -> Ints:
        """The configurations of a task that can be chosen and compared."""
        found = np.flatnonzero(self.allowed[task] & ~np.isnan(self.truth[task]))
        if len(found) < least:
            raise ValueError(
                f"leave_one_out: counts: expected at most the {len(found)} configurations that "
                f"task {task} has to choose from, as for the rank, got {least}"
            )
        return found

    def others(self, task: int, observed: float, generator: np.random.Generator) -> Floats:
        """The rows of the other tasks, NaN where an entry is missing or not drawn."""
        rest = np.delete(self.truth, task, axis=0)
        there = ~np.isnan(rest)
        for axis, what in ((1, "task"), (0, "configuration")):
            if not there.any(axis=axis).all():
                raise ValueError(
                    f"leave_one_out: without task {task} a {what} has no error at all; leave it out"
                )
        if observed == 1:
            return rest
        # The smallest draw of every row and of every column is kept whatever the share.
        draw = np.where(there, generator.random(rest.shape), np.inf)
        kept = draw < observed
        kept[np.arange(len(draw)), draw.argmin(axis=1)] = True
        kept[draw.argmin(axis=0), np.arange(draw.shape[1])] = True
        return np.where(kept, rest, np.nan)


def _study(
    errors: Any,
    memory: Any,
    methods: Sequence[str],
    counts: Sequence[int],
    rank: int,
    observed: float,
    cap: float | None,
    scale: str,
) -> _Study:
    checks.choice("leave_one_out: scale", scale, SCALES)
    for method in methods:
        known = (*METHODS, COLUMN_MEAN)
        checks.choice("leave_one_out: methods", method, known)
    for count in counts:
        checks.whole("leave_one_out: counts", count, 1)
    checks.number("leave_one_out: observed", observed, above=0, most=1)
    seeds = np.ndim(errors) == 3
    e = checks.numbers("leave_one_out: errors", errors, 3 if seeds else 2)
    truth = mean_over_seeds(e) if seeds else e
    if checks.whole("leave_one_out: rank", rank, 1) > min(len(truth) - 1, truth.shape[1]):
        raise ValueError(
            f"leave_one_out: rank must be at most {min(len(truth) - 1, truth.shape[1])} for "
            f"{len(truth)} tasks and {truth.shape[1]} configurations, one task left out; got {rank}"
        )
    if "qr" in methods and max(counts, default=0) > rank:
        raise ValueError(
            f"leave_one_out: 'qr' has pivots up to the rank, {rank}, got counts up to {max(counts)}"
        )
    m = checks.finite("leave_one_out: memory", memory, 2 if np.ndim(memory) == 2 else 1)
    if m.shape not in (truth.shape, truth.shape[1:]):
        raise ValueError(
            f"leave_one_out: memory must be {truth.shape[1:]} or {truth.shape}, got {m.shape}"
        )
    everywhere = np.broadcast_to(m, truth.shape)
    limit = np.inf if cap is None else checks.number("leave_one_out: cap", cap, least=0)
    if (everywhere.min(axis=1) > limit).any():
        raise ValueError(
            "leave_one_out: cap: expected at least the cheapest configuration's "
            f"{everywhere.min(axis=1).max():g}, got {limit:g}"
        )
    floor = noise_floor(e if seeds else e[:, :, None])
    largest = float(m.max()) if scale == "matrix" else None
    return _Study(truth, everywhere, everywhere <= limit, floor, largest)


def _cases(
    methods: Sequence[str], counts: Sequence[int], draws: int
) -> Iterator[tuple[str, int, int]]:
    for method in methods:
        if method == COLUMN_MEAN:
            yield method, 0, 0
            continue
        for count in counts:
            for draw in range(draws if method == "random" else 1):
                yield method, count, draw


def _mean_and_error(
    group: Sequence[dict[str, Any]], figure: str
) -> tuple[float | None, float | None]:
    tasks: dict[int, list[float]] = {}
    for record in group:
        if record[figure] is not None:
            tasks.setdefault(record["task"], []).append(record[figure])
    if not tasks:
        return None, None
    values = [float(np.mean(each)) for each in tasks.values()]
    if len(values) == 1:
        return values[0], None
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))

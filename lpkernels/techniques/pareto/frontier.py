"""Frontiers of memory and error (both should be small), and how far apart two frontiers are."""

from __future__ import annotations

from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats, Ints


def pareto_front(memory: Any, error: Any) -> Ints:
    """The points on the frontier, by ascending memory: no other point is as good as one of them in
    both memory and error and better in one.

    Of equal points the first stays. The order of the points does not matter otherwise.

    Args:
        memory, error: (points,). A NaN error counts as missing, with a warning.

    Returns:
        (front,) int64 indices.

    Raises:
        TypeError, ValueError: other shapes, memory that is not finite, or no finite error.

    Reference: Yang et al. 2021 (PEPPP). Differs: in its code equal points rule each other out.

    >>> from lpkernels.techniques.pareto import pareto_front
    >>> pareto_front([1.0, 2.0, 3.0], [0.5, 0.6, 0.2])
    array([0, 2])
    """
    m, e = _points("pareto_front", memory, error)
    points = np.flatnonzero(~np.isnan(e))
    order = points[np.lexsort((points, e[points], m[points]))]
    best = np.minimum.accumulate(e[order])
    better = np.ones(len(order), dtype=bool)
    better[1:] = e[order][1:] < best[:-1]
    return order[better].astype(np.int64)


def hypervolume(memory: Any, error: Any, reference: tuple[float, float]) -> float:
    """The area that the points dominate, up to a reference (memory, error); points may be in any
    order, and those beyond the reference add nothing.

    Args:
        memory, error: as of `pareto_front`.
        reference: (memory, error), up to which the area reaches.
    Raises: as `pareto_front`; a reference that is not two finite numbers.
    """
    ends = checks.finite("hypervolume: reference (memory, error)", reference, (2,))
    m, e = _points("hypervolume", memory, error)
    inside = (m < ends[0]) & (e < ends[1])
    if not inside.any():
        return 0.0
    front = pareto_front(m[inside], e[inside])
    steps, levels = m[inside][front], e[inside][front]
    return float(np.diff(steps, append=ends[0]) @ (ends[1] - levels))


def hyperdiff(true_points: Any, predicted_points: Any, reference: tuple[float, float]) -> float:
    """How much the areas that two sets of points dominate differ, without sign.

    Args:
        true_points, predicted_points: (points, 2): memory and error; the predicted points have the
            errors that were predicted.
        reference: (memory, error), up to which areas reach.

    Raises: as `hypervolume`.
    """
    pairs = _pairs("hyperdiff", true_points, predicted_points)
    true, predicted = (hypervolume(points[:, 0], points[:, 1], reference) for points in pairs)
    return abs(true - predicted)


def convergence(true_points: Any, predicted_points: Any) -> float:
    """The mean Euclidean distance of a predicted point from the nearest true one.

    Memory and error are best brought to the same scale before the call.

    Args:
        true_points, predicted_points: as of `hyperdiff`.

    Raises: TypeError, ValueError: other shapes, or values that are not finite.
    """
    true, predicted = _pairs("convergence", true_points, predicted_points)
    distances = np.linalg.norm(predicted[:, None] - true[None], axis=2)
    return float(distances.min(axis=1).mean())


def choose(memory: Any, error: Any, cap: float) -> int:
    """The configuration of least error with at most `cap` of memory. Of equally good ones it is the
    one of least memory, then the first.

    Args:
        memory, error: as of `pareto_front`.
        cap: in the unit of memory.
    Returns: its index.
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


def step_function(memory: Floats, error: Floats, at: Floats) -> Floats:
    """The least error of the points with at most that much memory, inf where there are none."""
    order = np.lexsort((error, memory))
    best = np.minimum.accumulate(error[order])
    place = np.searchsorted(memory[order], at, side="right")
    return np.where(place > 0, best[np.maximum(place, 1) - 1], np.inf)


def _points(function: str, memory: Any, error: Any) -> tuple[Floats, Floats]:
    m = checks.finite(f"{function}: memory", memory, 1)
    e = checks.numbers(f"{function}: error", error, m.shape)
    if not checks.without_nan(function, e).any():
        raise ValueError(f"{function}: every error is NaN")
    return m, e


def _pairs(function: str, true_points: Any, predicted_points: Any) -> list[Floats]:
    """Both sets of points as (points, 2): memory and error."""
    sets = [
        checks.finite(f"{function}: {name}", points, 2)
        for name, points in (("true_points", true_points), ("predicted_points", predicted_points))
    ]
    if any(points.shape[1] != 2 for points in sets):
        raise ValueError(
            f"{function}: points must be (points, 2), memory and error, got shapes "
            f"{sets[0].shape} and {sets[1].shape}"
        )
    return sets

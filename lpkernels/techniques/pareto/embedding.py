"""Embeddings of configurations, and predictions with them from a few measurements."""

from __future__ import annotations

from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats, Ints


def embed(x: Any, rank: int) -> Floats:
    """The first right singular vectors of an error matrix: (rank, configurations), orthonormal.

    Each has its largest entry above zero, so that equal matrices give equal embeddings.

    Args:
        x: (tasks, configurations) errors without gaps, such as `complete(...).values`.
        rank: 1 .. the rank of x, beyond which singular vectors are arbitrary.

    Raises:
        TypeError, ValueError: x with NaN or infinity; a rank above the rank of x.
    """
    errors = checks.finite("embed: x", x, 2, "complete(...) fills what is missing")
    checks.whole("embed: rank", rank, 1)
    _, values, vt = np.linalg.svd(errors, full_matrices=False)
    found = _rank(values, errors.shape)
    if rank > found:
        raise ValueError(
            f"embed: x, {errors.shape[0]} x {errors.shape[1]}, has rank {found}, got rank={rank}; "
            "use a smaller rank, or complete with a larger rank or a smaller lam"
        )
    y = vt[:rank]
    largest = np.take_along_axis(y, np.abs(y).argmax(axis=1)[:, None], axis=1)
    return np.where(largest < 0, -y, y)


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
    chosen, found = measurements("predict", indices, errors, embeddings.shape[1])
    part = embeddings[:, chosen]
    rank = len(embeddings)
    if ridge == 0:
        depth = _rank(np.linalg.svd(part, compute_uv=False), part.shape)
        if depth < rank:
            raise ValueError(
                f"predict: {len(chosen)} measurements of rank {depth} cannot fix an embedding of "
                f"rank {rank}; measure more (`select` chooses), use a smaller rank or a "
                "ridge above 0"
            )
        task = np.linalg.lstsq(part.T, found, rcond=None)[0]
    else:
        task = np.linalg.solve(part @ part.T + ridge * np.eye(rank), part @ found)
    result = task @ embeddings
    if keep_measured:
        for index in np.unique(chosen):
            result[index] = found[chosen == index].mean()
    return result


def measurements(function: str, indices: Any, errors: Any, size: int) -> tuple[Ints, Floats]:
    """Checked indices and errors, without those that are NaN.

    Raises: TypeError, ValueError: not as many errors as indices, or none that is a number.
    """
    chosen = checks.indices(f"{function}: indices", indices, size, repeated=True)
    found = checks.numbers(f"{function}: errors", errors, 1)
    if len(found) != len(chosen):
        raise ValueError(f"{function}: got {len(chosen)} indices and {len(found)} errors")
    seen = checks.without_nan(function, found)
    if not seen.any():
        raise ValueError(f"{function}: every measured error is NaN; measure another configuration")
    return chosen[seen], found[seen]


def _rank(values: Floats, shape: tuple[int, ...]) -> int:
    """How many singular values are above those that rounding makes of zero."""
    return int((values > values.max(initial=0) * max(shape) * np.finfo(np.float64).eps).sum())

"""An error matrix is filled from some of its entries by soft-impute, and gives embeddings of
configurations."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Bools, Floats

_LAM = 0.1
# At least this share of a singular value is left, however much smaller a start makes it.
_LEAST = 0.01


@dataclass(frozen=True)
class Completion:
    """A completed matrix and how it was reached.

    values: (rows, columns) float64, every entry estimated, the observed ones too.
    converged: whether the last step was within the tolerance.  steps: how many were taken.
    change: the last step's change, relative to the matrix, in the Frobenius norm.
    """

    values: Floats
    converged: bool
    steps: int
    change: float


def complete(
    x: Any,
    mask: Any,
    *,
    rank: int,
    lam: float,
    clip: tuple[float, float] | None = (0, 1),
    steps: int = 2500,
    tolerance: float = 1e-4,
) -> Completion:
    """Estimates every entry of x from the observed ones.

    It looks for the min over Z of 1/2 sum over observed of (Z - x)^2 + lam ||Z||_* with a rank of
    at most `rank`, as a product of two factors, which are fitted in turn. Where `rank` is below the
    rank of the minimum the problem is not convex, and the result depends on the start.

    Args:
        x: (rows, columns) errors; entries that were not observed are never read. A NaN in an
            observed entry counts as missing, with a warning.
        mask: (rows, columns) bool: True where observed.
        rank: 1..min(rows, columns).
        lam: at least 0: by how much a singular value is made smaller, where all is observed.
        clip: the range of an error, or None. Estimates are moved into it at the end; observed
            errors outside of it are refused.
        steps, tolerance: it stops after this number of steps, or at a step below the tolerance,
            relative to the matrix in the Frobenius norm. With a rank above the rank of the errors
            without noise, many small steps at the end fit noise and make no estimate better.
    Raises: TypeError, ValueError: arguments of other kinds or shapes; a row or a column without an
        observed entry, about which nothing is known; an infinite error.
    Reference: Hastie, Mazumder, Lee, Zadeh 2015 (soft-impute by alternating least squares), as used
    by Yang et al. 2021 (PEPPP), with rank 5 and lam 0.1. Differs: its code takes proximal gradient
    steps and clips in each of them, and weights observed entries by the inverse of the probability
    with which they were observed.
    """
    checks.whole("complete: steps", steps, 1)
    lam = checks.number("complete: lam", lam, least=0)
    checks.number("complete: tolerance", tolerance, least=0)
    errors = checks.numbers("complete: x", x, 2)
    checks.whole("complete: rank", rank, 1, min(errors.shape))
    bounds = None
    if clip is not None:
        low, high = bounds = tuple(checks.numbers("complete: clip", clip, (2,)).tolist())
        if not low < high:
            raise ValueError(f"complete: clip: expected (low, high) with low < high, got {clip!r}")
    observed = _observed(errors, mask, bounds)
    errors[~observed] = 0
    left, right = _factors(_additive_fill(errors, observed), rank, lam)
    weights, change, count = observed.astype(np.float64), np.inf, 0
    while change > tolerance and count < steps:
        left, right, change = _step(weights, errors, lam, left, right)
        count += 1
    values = left @ right.T
    if bounds is not None:
        np.clip(values, *bounds, out=values)
    return Completion(values, change <= tolerance, count, change)


def filled(errors: Floats, rank: int, *, clip: tuple[float, float] | None = None) -> Floats:
    """Errors whose missing entries, NaN, are completed with the lambda of the paper's code; the
    matrix itself if there are none."""
    observed = ~np.isnan(errors)
    if observed.all():
        return errors
    return complete(errors, observed, rank=rank, lam=_LAM, clip=clip).values


def embed(x: Any, rank: int) -> Floats:
    """The first right singular vectors of an error matrix: (rank, configurations), orthonormal.

    The largest entry of a vector is above zero, so that equal matrices give equal embeddings.

    x: (tasks, configurations) errors without gaps, such as `complete(...).values`.
    rank: 1 .. the rank of x, beyond which singular vectors are arbitrary.
    Raises: TypeError, ValueError: x with NaN or infinity; a rank above the rank of x.
    """
    errors = checks.finite("embed: x", x, 2, "complete(...) fills what is missing")
    checks.whole("embed: rank", rank, 1)
    _, values, vt = np.linalg.svd(errors, full_matrices=False)
    most = rank_of(values, errors.shape)
    if rank > most:
        raise ValueError(
            f"embed: x, {errors.shape[0]} x {errors.shape[1]}, has rank {most}, got rank={rank}; "
            "use a smaller rank, or complete with a larger rank or a smaller lam"
        )
    y = vt[:rank]
    largest = np.take_along_axis(y, np.abs(y).argmax(axis=1)[:, None], axis=1)
    return np.where(largest < 0, -y, y)


def rank_of(values: Floats, shape: tuple[int, ...]) -> int:
    """The number of singular values above the error of rounding."""
    return int((values > values.max(initial=0) * max(shape) * np.finfo(np.float64).eps).sum())


def _factors(z: Floats, rank: int, less: float) -> tuple[Floats, Floats]:
    """(rows, rank) and (columns, rank), of equal scale along every direction, whose product is the
    closest to z of that rank, with every singular value made smaller by `less`.

    That is a proximal step, which leaves a minimum where it is. At least a share of every value is
    left, because a direction that is zero in both factors would stay zero.
    """
    if z.shape[0] < z.shape[1]:
        right, left = _factors(z.T, rank, less)
        return left, right
    # The decomposition goes through the smaller Gram matrix.
    right = np.linalg.eigh(z.T @ z)[1][:, -rank:]
    left = z @ right
    values = np.linalg.norm(left, axis=0)
    root = np.sqrt(np.maximum(values - less, _LEAST * values))
    return left * (root / np.where(values > 0, values, 1)), right * root


def _step(
    weights: Floats, x: Floats, lam: float, left: Floats, right: Floats
) -> tuple[Floats, Floats, float]:
    """The next factors, and how far their product moved, relative to its norm.

    The rows of left minimise 1/2 sum_j (left_i . right_j - x_ij)^2 + lam / 2 |left_i|^2 over the
    observed entries, whose weight is 1: one small linear system for each; then right's. At the
    minimum |left|^2 + |right|^2 is twice the nuclear norm of the product (Srebro, Rennie, Jaakkola
    2004).
    """
    rank = left.shape[1]
    next_left = _fit(weights, x, lam, right)
    next_right = _fit(weights.T, x.T, lam, next_left)
    # One QR of both products at once: its leading part is that of the new product, and their
    # difference is taken without forming them.
    q, r = np.linalg.qr(np.hstack([next_left, left]))
    p, s = np.linalg.qr(np.hstack([next_right, right]))
    new, old = r[:, :rank] @ s[:, :rank].T, r[:, rank:] @ s[:, rank:].T
    change = float(np.linalg.norm(new - old)) / (float(np.linalg.norm(new)) or 1.0)
    # Both factors get the same scale, as at the minimum: else the scale would drift there in steps
    # of size lam.
    a, values, b = np.linalg.svd(new)
    half = np.sqrt(values[:rank])
    return q @ (a[:, :rank] * half), p @ (b[:rank].T * half), change


def _fit(weights: Floats, x: Floats, lam: float, fixed: Floats) -> Floats:
    rank = fixed.shape[1]
    # Every pair of directions is taken once: the systems are symmetric.
    first, second = np.triu_indices(rank)
    system = np.empty((len(weights), rank, rank))
    pairs = weights @ (fixed[:, first] * fixed[:, second])
    system[:, first, second] = system[:, second, first] = pairs
    sides = (x @ fixed)[..., None]
    if lam == 0:
        # With fewer observations than the rank, or a zero direction: the shortest solution.
        return (np.linalg.pinv(system, hermitian=True) @ sides)[..., 0]
    system[:, range(rank), range(rank)] += lam
    return np.linalg.solve(system, sides)[..., 0]


def _additive_fill(x: Floats, observed: Bools) -> Floats:
    """x where observed; elsewhere the row's mean plus the column's mean less the mean of all."""
    sums = np.where(observed, x, 0)
    rows = sums.sum(axis=1, keepdims=True) / observed.sum(axis=1, keepdims=True)
    columns = sums.sum(axis=0) / observed.sum(axis=0)
    return np.where(observed, x, rows + columns - sums.sum() / observed.sum())


def without_nan(label: str, errors: Floats, observed: Bools | None = None) -> Bools:
    """The observed entries (None: all) that are not NaN; warns of NaN.

    Raises: ValueError: an observed error is infinite.
    """
    observed = np.ones(errors.shape, dtype=bool) if observed is None else observed
    expected = "errors that are finite or NaN (missing)"
    checks.refuse_first(label, errors, np.isinf(errors) & observed, expected)
    missing = int(np.isnan(errors[observed]).sum())
    if missing:
        text = f"{missing} of {int(observed.sum())} measured errors are NaN and count as missing"
        warnings.warn(f"{label}: {text}", stacklevel=3)
    return observed & ~np.isnan(errors)


def _observed(errors: Floats, mask: Any, bounds: tuple[float, float] | None) -> Bools:
    """The checked mask, without entries that are NaN."""
    mask = np.asarray(mask)
    if mask.dtype != np.bool_:
        raise TypeError(f"complete: mask must hold bools, True where observed; got {mask.dtype}")
    if mask.shape != errors.shape:
        raise ValueError(f"complete: mask has shape {mask.shape}, x has {errors.shape}")
    mask = without_nan("complete", errors, mask)
    for axis, line in ((1, "row"), (0, "column")):
        empty = np.flatnonzero(~mask.any(axis=axis))
        if len(empty):
            raise ValueError(
                f"complete: {line} {empty[0]} has no observed entry ({len(empty)} {line}(s) have "
                f"none); measure one of it, or leave the {line} out"
            )
    low, high = errors[mask].min(), errors[mask].max()
    if bounds is not None and (low < bounds[0] or high > bounds[1]):
        raise ValueError(
            f"complete: errors must be in clip={bounds}, got {low:g} to {high:g}; scale them, or "
            "pass the range as clip (None: without)"
        )
    return mask

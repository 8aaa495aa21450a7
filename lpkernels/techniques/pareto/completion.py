"""Filling an error matrix from some of its entries: weighted soft-impute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lpkernels.formats.checks import checked_int
from lpkernels.techniques.pareto import checks
from lpkernels.techniques.pareto._factors import Alternation, Factors, additive_fill
from lpkernels.techniques.pareto.checks import Bools, Floats


@dataclass(frozen=True)
class Completion:
    """A completed matrix and how it was reached.

    Attributes:
        values: (rows, columns) float64, every entry estimated, the observed ones too.
        observed: (rows, columns) bool: the entries that were used.
        converged: whether the last step was within the tolerance.
        steps: how many were taken.
        change: the last step's change, relative to the matrix, in the Frobenius norm.
    """

    values: Floats
    observed: Bools
    converged: bool
    steps: int
    change: float

    def __str__(self) -> str:
        rows, columns = self.values.shape
        end = "converged" if self.converged else "NOT converged"
        share = self.observed.mean()
        return (
            f"{rows} x {columns}, {share:.0%} observed: {end} after {self.steps} steps, the last "
            f"one {self.change:.2g}"
        )


def complete(
    x: Any,
    mask: Any,
    *,
    rank: int,
    lam: float,
    clip: tuple[float, float] | None = (0, 1),
    weights: Any = None,
    propensities: Any = None,
    start: Any = None,
    steps: int = 2500,
    tolerance: float = 1e-4,
) -> Completion:
    """Estimates every entry of x from those that the mask says were observed.

    It looks for the min over Z of 1/2 sum over observed of w (Z - x)^2 + lam ||Z||_* with a rank of
    at most `rank`, as a product of two factors, which are fitted in turn (`Alternation`). Where the
    rank is below that of the minimum the problem is not convex, and what is found depends on the
    start.

    Args:
        x: (rows, columns) errors; what stands in entries that were not observed is never read. A
            NaN in an observed entry counts as missing, with a warning.
        mask: (rows, columns) bool: True where observed.
        rank: 1..min(rows, columns).
        lam: at least 0: by how much each singular value is made smaller, where all is observed.
        clip: the range of an error, or None. Estimates are moved into it at the end; observed
            errors outside of it are refused.
        weights: (rows, columns) w, above zero where observed; None: 1.
        propensities: (rows, columns) the probability with which an entry was observed, above zero
            where it was; its inverse multiplies w. Weights and propensities of other entries are
            not read.
        start: a matrix that stands for what was not observed at first, such as the `values` of an
            earlier completion; None: the means of row and column.
        steps, tolerance: it stops after so many steps, or at a step below the tolerance, relative
            to the matrix in the Frobenius norm. A rank above that of what is behind the noise takes
            many small steps at the end, which fit noise and no longer make estimates better.

    Returns:
        A Completion; `.converged` says whether it stopped by the tolerance.

    Raises:
        TypeError, ValueError: arguments of other kinds or shapes; a row or a column without an
            observed entry, about which nothing is known; an infinite error.

    Reference: Hastie, Mazumder, Lee, Zadeh 2015 (soft-impute by alternating least squares); Ma,
    Chen 2019, arXiv 1910.12774 (propensities); as used by Yang et al. 2021 (PEPPP), with rank 5 and
    lam 0.1. Differs: its code takes proximal gradient steps of length 1 / max w and clips in each
    of them; a step here costs about as much, needs no length, and goes as far with propensities.
    """
    checked_int("complete", "steps", steps, 1)
    lam = checks.number("complete", "lam", lam, least=0)
    checks.number("complete", "tolerance", tolerance, least=0)
    errors = checks.numbers("complete", "x", x, 2)
    _check_rank(rank, errors.shape)
    bounds = checks.clip_range("complete", clip)
    observed = _observed(errors, mask, bounds)
    w = _weights(observed, weights, propensities)
    errors[~observed] = 0
    length = 1 / float(w.max())
    if start is None:
        before = additive_fill(errors, observed)
    else:
        before = _start(start, errors.shape)
        before -= length * w * (before - errors)
    factors, change, done = Factors.of(before, rank, length * lam), np.inf, 0
    alternation = Alternation(errors, w, lam)
    while change > tolerance and done < steps:
        factors, change = alternation.step(factors)
        done += 1
    values = factors.product
    if bounds is not None:
        np.clip(values, *bounds, out=values)
    return Completion(values, observed, change <= tolerance, done, change)


def _check_rank(rank: int, shape: tuple[int, ...]) -> None:
    if checked_int("complete", "rank", rank, 1) > min(shape):
        raise ValueError(
            f"complete: rank must be in 1..{min(shape)} for a matrix of {shape[0]} x {shape[1]}, "
            f"got {rank}"
        )


def _observed(errors: Floats, mask: Any, bounds: tuple[float, float] | None) -> Bools:
    seen = np.asarray(mask)
    if seen.dtype != np.bool_:
        raise TypeError(f"complete: mask must hold bools, True where observed; got {seen.dtype}")
    if seen.shape != errors.shape:
        raise ValueError(f"complete: mask has shape {seen.shape}, x has {errors.shape}")
    seen = checks.without_nan("complete", errors, seen)
    for axis, what in ((1, "row"), (0, "column")):
        empty = np.flatnonzero(~seen.any(axis=axis))
        if len(empty):
            raise ValueError(
                f"complete: {what} {empty[0]} has no observed entry ({len(empty)} {what}(s) have "
                f"none); measure one of it, or leave the {what} out"
            )
    if bounds is not None:
        values = errors[seen]
        if values.min() < bounds[0] or values.max() > bounds[1]:
            raise ValueError(
                f"complete: errors must be in clip={bounds}, got {values.min():g} to "
                f"{values.max():g}; scale them, or pass the range as clip (None: without)"
            )
    return seen


def _weights(observed: Bools, weights: Any, propensities: Any) -> Floats:
    """w where observed and 0 elsewhere."""
    w = observed.astype(np.float64)
    for name, value in (("weights", weights), ("propensities", propensities)):
        if value is None:
            continue
        array = checks.numbers("complete", name, value, 2)
        if array.shape != observed.shape:
            raise ValueError(f"complete: {name} has shape {array.shape}, x has {observed.shape}")
        given = array[observed]
        if not (np.isfinite(given) & (given > 0)).all():
            raise ValueError(
                f"complete: {name} must be finite and above 0 where an entry was observed, got "
                f"{given[~(np.isfinite(given) & (given > 0))][0]}"
            )
        if name == "propensities" and given.max() > 1:
            raise ValueError(f"complete: propensities are probabilities, got {given.max():g}")
        w[observed] *= given if name == "weights" else 1 / given
    return w


def _start(start: Any, shape: tuple[int, ...]) -> Floats:
    z = checks.finite("complete", "start", start, 2)
    if z.shape != shape:
        raise ValueError(f"complete: start has shape {z.shape}, x has {shape}")
    return z

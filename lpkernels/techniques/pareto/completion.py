"""An error matrix is filled from some of its entries by weighted soft-impute. It gives embeddings
of configurations, and these give predictions from a few measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Bools, Floats, Ints

# At least this share of a singular value is left, however much smaller a start makes it.
_LEAST = 0.01


@dataclass(frozen=True)
class Factors:
    """z = left right^T: (rows, rank) and (columns, rank), of equal scale along every direction."""

    left: Floats
    right: Floats

    @property
    def product(self) -> Floats:
        return self.left @ self.right.T

    @classmethod
    def of(cls, z: Floats, rank: int, less: float) -> Factors:
        """The closest z of that rank, each of its singular values made smaller by `less`.

        That is a proximal step, which leaves a minimum where it is. At least a share of every value
        is left, because a direction that is zero in both factors would stay zero.
        """
        if z.shape[0] < z.shape[1]:
            turned = cls.of(z.T, rank, less)
            return cls(turned.right, turned.left)
        # The decomposition goes through the smaller Gram matrix.
        right = np.linalg.eigh(z.T @ z)[1][:, -rank:]
        left = z @ right
        values = np.linalg.norm(left, axis=0)
        kept = np.sqrt(np.maximum(values - less, _LEAST * values))
        return cls(left * (kept / np.where(values > 0, values, 1)), right * kept)


class Alternation:
    """Each half of a step fits one factor to the observed entries, the other being fixed.

    The rows of left minimise 1/2 sum_j w_ij (left_i . right_j - x_ij)^2 + lam / 2 |left_i|^2, one
    small linear system each; then right's. At the minimum |left|^2 + |right|^2 is twice the nuclear
    norm of the product (Srebro, Rennie, Jaakkola 2004).
    """

    def __init__(self, x: Floats, w: Floats, lam: float) -> None:
        self._w, self._wx, self._lam = w, w * x, lam

    def step(self, before: Factors) -> tuple[Factors, float]:
        """The next factors, and how far their product moved, relative to its norm."""
        left = self._fit(self._w, self._wx, before.right)
        right = self._fit(self._w.T, self._wx.T, left)
        rank = left.shape[1]
        # One QR of both products at once: its leading part is that of the new product, and their
        # difference is taken without forming them.
        q, r = np.linalg.qr(np.hstack([left, before.left]))
        p, s = np.linalg.qr(np.hstack([right, before.right]))
        new, old = r[:, :rank] @ s[:, :rank].T, r[:, rank:] @ s[:, rank:].T
        size = float(np.linalg.norm(new))
        change = float(np.linalg.norm(new - old)) / (size or 1.0)
        # Both factors get the same scale, as at the minimum: else the scale would drift there in
        # steps of size lam.
        a, values, b = np.linalg.svd(new)
        half = np.sqrt(values[:rank])
        return Factors(q @ (a[:, :rank] * half), p @ (b[:rank].T * half)), change

    def _fit(self, w: Floats, wx: Floats, fixed: Floats) -> Floats:
        rank = fixed.shape[1]
        # Every pair of directions is taken once: the systems are symmetric.
        first, second = np.triu_indices(rank)
        pairs = w @ (fixed[:, first] * fixed[:, second])
        system = np.empty((len(w), rank, rank))
        system[:, first, second] = system[:, second, first] = pairs
        sides = (wx @ fixed)[..., None]
        if self._lam == 0:
            # With fewer observations than the rank, or a zero direction: the shortest solution.
            return (np.linalg.pinv(system, hermitian=True) @ sides)[..., 0]
        system[:, range(rank), range(rank)] += self._lam
        return np.linalg.solve(system, sides)[..., 0]


def additive_fill(x: Floats, observed: Bools) -> Floats:
    """x where observed; elsewhere the row's mean plus the column's mean less the mean of all."""
    seen = np.where(observed, x, 0)
    rows = seen.sum(axis=1, keepdims=True) / observed.sum(axis=1, keepdims=True)
    columns = seen.sum(axis=0) / observed.sum(axis=0)
    return np.where(observed, x, rows + columns - seen.sum() / observed.sum())


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
    propensities: Any = None,
    start: Any = None,
    steps: int = 2500,
    tolerance: float = 1e-4,
) -> Completion:
    """Estimates every entry of x from those that the mask says were observed.

    It looks for the min over Z of 1/2 sum over observed of w (Z - x)^2 + lam ||Z||_* with a rank of
    at most `rank`, as a product of two factors, which are fitted in turn (`Alternation`). Where
    `rank` is below the rank of the minimum the problem is not convex, and the result depends on the
    start.

    Args:
        x: (rows, columns) errors; entries that were not observed are never read. A NaN in an
            observed entry counts as missing, with a warning.
        mask: (rows, columns) bool: True where observed.
        rank: 1..min(rows, columns).
        lam: at least 0: by how much each singular value is made smaller, where all is observed.
        clip: the range of an error, or None. Estimates are moved into it at the end; observed
            errors outside of it are refused.
        propensities: (rows, columns) the probability with which an entry was observed, above zero
            where it was; w is its inverse. The probabilities of other entries are not read. None: w
            is 1.
        start: a matrix with the first estimates of entries that were not observed, such as the
            `values` of an earlier completion; None: the means of row and column.
        steps, tolerance: it stops after so many steps, or at a step below the tolerance, relative
            to the matrix in the Frobenius norm. With a rank above that of the errors without noise,
            many small steps at the end fit noise and no longer make estimates better.

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
    checks.whole("complete: steps", steps, 1)
    lam = checks.number("complete: lam", lam, least=0)
    checks.number("complete: tolerance", tolerance, least=0)
    errors = checks.numbers("complete: x", x, 2)
    _check_rank(rank, errors.shape)
    bounds = checks.clip_range("complete: clip", clip)
    observed = _observed(errors, mask, bounds)
    w = _weights(observed, propensities)
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
    if checks.whole("complete: rank", rank, 1) > min(shape):
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


def _weights(observed: Bools, propensities: Any) -> Floats:
    """w where observed and 0 elsewhere."""
    w = observed.astype(np.float64)
    if propensities is None:
        return w
    array = checks.numbers("complete: propensities", propensities, 2)
    if array.shape != observed.shape:
        raise ValueError(f"complete: propensities has shape {array.shape}, x has {observed.shape}")
    given = array[observed]
    wrong = given[~((given > 0) & (given <= 1))]
    if wrong.size:
        raise ValueError(
            "complete: propensities: expected probabilities above 0 where an entry was observed, "
            f"got {wrong[0]:g}"
        )
    w[observed] = 1 / given
    return w


def _start(start: Any, shape: tuple[int, ...]) -> Floats:
    z = checks.finite("complete: start", start, 2)
    if z.shape != shape:
        raise ValueError(f"complete: start has shape {z.shape}, x has {shape}")
    return z


def filled(errors: Floats, rank: int, lam: float, start: Floats | None = None) -> Floats:
    """Errors whose missing entries, NaN, are completed; the matrix itself if there are none."""
    seen = ~np.isnan(errors)
    if seen.all():
        return errors
    return complete(errors, seen, rank=rank, lam=lam, clip=None, start=start).values


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

"""Two factors whose product fits what was observed: alternating ridge regressions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lpkernels.techniques.pareto.checks import Bools, Floats

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
    """x where observed; elsewhere the mean of the row plus that of the column less that of all."""
    seen = np.where(observed, x, 0)
    rows = seen.sum(axis=1, keepdims=True) / observed.sum(axis=1, keepdims=True)
    columns = seen.sum(axis=0) / observed.sum(axis=0)
    return np.where(observed, x, rows + columns - seen.sum() / observed.sum())

"""Which configurations to measure: D-optimal designs, and the choices they are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats, Ints

METHODS = ("greedy", "qr", "random")

# A pivot whose residual is below this share of a unit vector adds no direction but rounding.
_DEPENDENT = 1e-10
# The weight of a dimension that no affordable configuration reaches, where all of y has weight 1.
_PRIOR = 1e-6


def select(
    y: Any,
    *,
    n: int | None = None,
    cost: Any = None,
    budget: float | None = None,
    method: str = "greedy",
    measured: Any = (),
    among: Any = None,
    seed: int = 0,
) -> Ints:
    """The configurations to measure, in the order in which they are chosen.

    By every method, a configuration that is too dear for the rest of the budget is skipped and the
    next one is considered. The D-optimal methods seek the largest log det of the sum of y_j y_j^T
    over the measured; y is made orthonormal first, so that no choice depends on its basis.

    Args:
        y: (rank, configurations) of full rank, as from `embed`.
        n: the most that are chosen, pivots included; None: as many as the budget allows. With "qr"
            1..rank.
        cost: (configurations,) above zero, such as hours or bytes; None: 1.
        budget: the most that their costs may sum to; None: only n counts.
        method:
            "greedy": the pivots of a pivoted QR, one for each dimension, then always the
            configuration that adds most to log det for its cost. With a budget the pivots are among
            those that cost at most budget / (2 rank), then budget / rank, then the cheapest that
            add a direction.
            "qr": the pivots alone, one for each dimension that is not measured; beyond these they
            would be arbitrary.
            "random": in random order.
        measured: configurations that are measured already; these are not chosen, counted or paid.
        among: the configurations that may be chosen, such as those below a memory cap; None: all.
        seed: of "random"; other methods draw nothing.
    Returns: (chosen,) int64; fewer than n where the budget or `among` ends first.
    Raises: TypeError, ValueError: neither n nor budget; n above the number that may be chosen, or
        above the rank with "qr"; a budget below the cheapest, or without cost; y of less than full
        rank.
    Reference: Yang et al. 2021 (PEPPP), greedy; here pivots count in n. Choices with costs are as
    in Yang, Akimoto, Kim, Udell 2019 (OBOE), here with the gain of log det per cost.
    """
    design = _design(y, n, cost, budget, method, measured, among)
    if method == "random":
        generator = np.random.default_rng(checks.whole("select: seed", seed, 0))
        return design.affordable(generator.permutation(design.candidates))
    if method == "qr":
        return design.affordable(design.pivots(design.candidates))
    return _greedy(design)


@dataclass(frozen=True)
class _Design:
    """The checked arguments of `select`; y is orthonormal."""

    y: Floats
    cost: Floats
    n: int
    budget: float
    measured: Ints
    candidates: Ints

    def affordable(self, order: Iterable[int]) -> Ints:
        """The configurations that the count and the budget allow, taken in this order."""
        chosen: list[int] = []
        rest = self.budget
        for index in order:
            if len(chosen) < self.n and self.cost[index] <= rest:
                chosen.append(int(index))
                rest -= self.cost[index]
        return np.array(chosen, dtype=np.int64)

    def pivots(self, candidates: Ints, *, in_order: bool = False) -> list[int]:
        """The candidates that a QR with column pivoting takes, beyond the measured configurations.

        in_order: take the first one that adds a direction, in place of the one that adds the
            longest.
        """
        u, s, _ = np.linalg.svd(self.y[:, self.measured], full_matrices=False)
        basis = u[:, s > _DEPENDENT]
        columns = self.y[:, candidates]
        lengths = np.linalg.norm(columns, axis=0)
        columns = columns - basis @ (basis.T @ columns)
        chosen: list[int] = []
        while len(chosen) < len(self.y) and len(candidates):
            residual = np.linalg.norm(columns, axis=0)
            longest = residual.max()
            new = residual > _DEPENDENT * np.maximum(lengths, longest)
            if not new.any() or longest < _DEPENDENT:
                break
            pick = int(new.argmax()) if in_order else int(residual.argmax())
            chosen.append(int(candidates[pick]))
            direction = columns[:, pick] / residual[pick]
            columns = columns - np.outer(direction, direction @ columns)
            # The column is exactly zero from here on, so that it is not taken again.
            columns[:, pick] = 0
        return chosen

    def first(self) -> list[int]:
        """Pivots for every dimension that is not measured, within the budget if any are."""
        pivots = self.pivots(self.candidates)
        if not np.isfinite(self.budget):
            return pivots
        cost = self.cost[self.candidates]
        for parts in (2 * len(self.y), len(self.y)):
            cheap = self.pivots(self.candidates[cost <= self.budget / parts])
            if len(cheap) == len(pivots):
                return cheap
        return self.pivots(self.candidates[np.argsort(cost, kind="stable")], in_order=True)


def _greedy(design: _Design) -> Ints:
    y, cost = design.y, design.cost
    start = design.affordable(design.first())
    if len(start) == design.n:
        return start
    measured = y[:, [*design.measured, *start]]
    information = measured @ measured.T
    if np.linalg.matrix_rank(measured, tol=_DEPENDENT) < len(y):
        # The budget is too small for every dimension: the affordable ones count.
        information += _PRIOR * np.eye(len(y))
    inverse = np.linalg.inv(information)
    chosen, spent = list(start), cost[start].sum()
    candidates = np.setdiff1d(design.candidates, start)
    while len(chosen) < design.n:
        candidates = candidates[cost[candidates] <= design.budget - spent]
        if not len(candidates):
            break
        columns = y[:, candidates]
        gain = np.log1p(np.einsum("ij,ij->j", columns, inverse @ columns))
        best = int((gain / cost[candidates]).argmax())
        index = int(candidates[best])
        chosen.append(index)
        spent += cost[index]
        candidates = np.delete(candidates, best)
        # Sherman, Morrison: the inverse with one more y y^T.
        v = inverse @ y[:, index]
        inverse -= np.outer(v, v) / (1 + y[:, index] @ v)
    return np.array(chosen, dtype=np.int64)


def configurations(label: str, value: Any, size: int, *, repeated: bool = False) -> Ints:
    """Numbers of configurations, 0..size - 1; none may occur twice unless `repeated`."""
    array = np.asarray(value, dtype=None if np.size(value) else np.int64)
    if array.ndim != 1:
        raise TypeError(f"{label}: expected a sequence of ints, got one of shape {array.shape}")
    what = f"configurations in 0..{size - 1}"
    array = checks.wholes(label, array, 0, size - 1, what).astype(np.int64)
    if not repeated and len(np.unique(array)) != len(array):
        raise ValueError(f"{label}: expected each configuration once, got {list(array)}")
    return array


def _design(
    y: Any, n: Any, cost: Any, budget: Any, method: str, measured: Any, among: Any
) -> _Design:
    checks.choice("select: method", method, METHODS)
    embeddings = checks.finite("select: y", y, 2)
    rank, size = embeddings.shape
    measured = configurations("select: measured", measured, size)
    allowed = np.arange(size) if among is None else configurations("select: among", among, size)
    candidates = np.setdiff1d(allowed, measured)
    orthonormal = _orthonormal(embeddings, np.union1d(allowed, measured))
    if not len(candidates):
        raise ValueError("select: every configuration that may be chosen is measured already")
    if n is None and budget is None:
        raise ValueError("select: give n, a number of measurements, or cost and budget")
    if cost is None and budget is not None:
        raise ValueError("select: a budget needs cost, a number for every configuration")
    price = np.ones(size) if cost is None else checks.positive("select: cost", cost, (size,))
    most = min(len(candidates), rank) if method == "qr" else len(candidates)
    count = most if n is None else checks.whole("select: n", n, 1, most)
    total = np.inf if budget is None else checks.number("select: budget", budget, least=0)
    if price[candidates].min() > total:
        raise ValueError(
            f"select: the budget of {total:g} is below the cheapest configuration's "
            f"{price[candidates].min():g}"
        )
    return _Design(orthonormal, price, count, total, measured, candidates)


def _orthonormal(y: Floats, columns: Ints) -> Floats:
    """y in a basis in which these columns have orthonormal rows."""
    u, s, _ = np.linalg.svd(y[:, columns], full_matrices=False)
    if len(s) < len(y) or s[-1] <= s[0] * len(columns) * np.finfo(np.float64).eps:
        raise ValueError(
            f"select: y has {len(y)} rows, but the {len(columns)} configurations that may be "
            "chosen or are measured span fewer dimensions; use a smaller rank"
        )
    return (u / s).T @ y

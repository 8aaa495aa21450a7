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
        n: at most so many are chosen, the first ones included; None: as many as the budget allows.
        cost: (configurations,) above zero, such as hours or bytes; None: 1.
        budget: their costs sum to at most so much; None: only n counts.
        method:
            "greedy": the pivots of a pivoted QR, one for each dimension, then always the
            configuration that adds most to log det for its cost. With a budget the pivots are among
            those that cost at most budget / (2 rank), then budget / rank, then the cheapest that
            add a direction.
            "qr": the pivots alone, one for each dimension that is not measured; beyond these they
            would be arbitrary.
            "random": in random order.
        measured: configurations that are known already; these are not chosen, counted or paid for.
        among: the configurations that may be chosen, such as those below a memory cap; None: all.
        seed: of "random"; other methods draw nothing.

    Returns:
        (chosen,) int64; fewer than n where the budget or `among` ends first.

    Raises:
        TypeError, ValueError: neither n nor budget; n above the number that may be chosen, or above
            the rank with "qr"; a budget below the cheapest, or without cost; y of less than full
            rank.

    Reference: Yang et al. 2021 (PEPPP), greedy; here pivots count in n. Choices with costs are as
    in Yang, Akimoto, Kim, Udell 2019 (OBOE), here with the gain of log det per cost.
    """
    problem = _problem(y, n, cost, budget, method, measured, among)
    if method == "random":
        generator = np.random.default_rng(checks.whole("select: seed", seed, 0))
        return problem.take(generator.permutation(problem.open))
    if method == "qr":
        return problem.take(_pivots(problem, problem.open, len(problem.y)))
    return _greedy(problem)


@dataclass(frozen=True)
class _Problem:
    """The arguments of `select`, checked; y is orthonormal."""

    y: Floats
    cost: Floats
    n: int
    budget: float
    known: Ints
    open: Ints

    def take(self, order: Iterable[int]) -> Ints:
        """The configurations that the count and the budget allow, taken in this order."""
        chosen: list[int] = []
        left = self.budget
        for index in order:
            if len(chosen) < self.n and self.cost[index] <= left:
                chosen.append(int(index))
                left -= self.cost[index]
        return np.array(chosen, dtype=np.int64)


def _greedy(problem: _Problem) -> Ints:
    start = problem.take(_first(problem))
    chosen = list(start)
    y = problem.y
    spent = problem.cost[start].sum()
    design = y[:, [*problem.known, *start]]
    information = design @ design.T
    if len(start) == problem.n:
        return start
    if np.linalg.matrix_rank(design, tol=_DEPENDENT) < len(y):
        # The budget is too small for every dimension: the affordable ones count.
        information += _PRIOR * np.eye(len(y))
    inverse = np.linalg.inv(information)
    candidates = np.setdiff1d(problem.open, start)
    while len(chosen) < problem.n:
        candidates = candidates[problem.cost[candidates] <= problem.budget - spent]
        if not len(candidates):
            break
        part = y[:, candidates]
        gain = np.log1p(np.einsum("ij,ij->j", part, inverse @ part))
        best = int((gain / problem.cost[candidates]).argmax())
        index = int(candidates[best])
        chosen.append(index)
        spent += problem.cost[index]
        candidates = np.delete(candidates, best)
        # Sherman, Morrison: the inverse with one more y y^T.
        v = inverse @ y[:, index]
        inverse -= np.outer(v, v) / (1 + y[:, index] @ v)
    return np.array(chosen, dtype=np.int64)


def _first(problem: _Problem) -> list[int]:
    """Pivots for every dimension that is not measured, within the budget if any are."""
    rank = len(problem.y)
    if not np.isfinite(problem.budget):
        return _pivots(problem, problem.open, rank)
    cost = problem.cost[problem.open]
    needed = len(_pivots(problem, problem.open, rank))
    for part in (2 * rank, rank):
        found = _pivots(problem, problem.open[cost <= problem.budget / part], rank)
        if len(found) == needed:
            return found
    cheapest = problem.open[np.argsort(cost, kind="stable")]
    return _pivots(problem, cheapest, rank, in_order=True)


def _pivots(problem: _Problem, candidates: Ints, most: int, *, in_order: bool = False) -> list[int]:
    """The candidates that a QR with column pivoting takes, beyond the measured configurations.

    in_order: take the first one that adds a direction, in place of the one that adds the longest.
    """
    basis = _orthonormal(problem.y[:, problem.known])
    left = problem.y[:, candidates]
    left = left - basis @ (basis.T @ left)
    lengths = np.linalg.norm(problem.y[:, candidates], axis=0)
    found: list[int] = []
    while len(found) < most and len(candidates):
        residual = np.linalg.norm(left, axis=0)
        free = residual > _DEPENDENT * np.maximum(lengths, residual.max(initial=0))
        if not free.any() or residual.max() < _DEPENDENT:
            break
        pick = int(free.argmax()) if in_order else int(residual.argmax())
        found.append(int(candidates[pick]))
        direction = left[:, pick] / residual[pick]
        left = left - np.outer(direction, direction @ left)
        # The column is exactly zero from here on, so that it is not taken again.
        left[:, pick] = 0
    return found


def _orthonormal(vectors: Floats) -> Floats:
    """A basis of the columns' span."""
    u, s, _ = np.linalg.svd(vectors, full_matrices=False)
    return u[:, s > _DEPENDENT]


def _problem(
    y: Any, n: Any, cost: Any, budget: Any, method: str, measured: Any, among: Any
) -> _Problem:
    checks.choice("select: method", method, METHODS)
    embeddings = checks.finite("select: y", y, 2)
    rank, size = embeddings.shape
    known = checks.indices("select: measured", measured, size)
    allowed = np.arange(size) if among is None else checks.indices("select: among", among, size)
    candidates = np.setdiff1d(allowed, known)
    orthonormal = _basis_free(embeddings, np.union1d(allowed, known))
    if not len(candidates):
        raise ValueError("select: every configuration that may be chosen is measured already")
    if n is None and budget is None:
        raise ValueError("select: give n, a number of measurements, or cost and budget")
    if cost is None and budget is not None:
        raise ValueError("select: a budget needs cost, a number for each configuration")
    price = np.ones(size) if cost is None else checks.positive("select: cost", cost, 1)
    if len(price) != size:
        raise ValueError(
            f"select: cost: expected a number for each of the {size} configurations, got "
            f"{len(price)}"
        )
    most = min(len(candidates), rank) if method == "qr" else len(candidates)
    count = most if n is None else checks.whole("select: n", n, 1)
    if count > most:
        why = (
            f"the rank of y, {rank}"
            if method == "qr" and most == rank
            else f"the {most} that may be chosen"
        )
        raise ValueError(f"select: n must be at most {why}, got {n}")
    total = np.inf if budget is None else checks.number("select: budget", budget, least=0)
    if price[candidates].min() > total:
        raise ValueError(
            f"select: the budget of {total:g} is below the cheapest configuration's "
            f"{price[candidates].min():g}"
        )
    return _Problem(orthonormal, price, count, total, known, candidates)


def _basis_free(y: Floats, columns: Ints) -> Floats:
    """y in a basis in which these columns have orthonormal rows."""
    rank = len(y)
    u, s, _ = np.linalg.svd(y[:, columns], full_matrices=False)
    if len(s) < rank or s[-1] <= s[0] * len(columns) * np.finfo(np.float64).eps:
        raise ValueError(
            f"select: y has {rank} rows, but the {len(columns)} configurations that may be chosen "
            "or are measured span fewer dimensions; use a smaller rank"
        )
    return (u / s).T @ y

"""Which configurations to measure: D-optimal designs, and the choices they are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats, Ints

METHODS = ("greedy", "qr", "convex", "random", "cheapest")

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
            "convex": log det is maximised over shares 0..1 of each configuration, and those with
            the largest shares are taken. Where shares are equal, those that add more for their cost
            are first (`relaxed`).
            "random": in random order.  "cheapest": in the order of cost, which it needs.
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
    if method == "cheapest":
        return problem.take(problem.open[np.argsort(problem.cost[problem.open], kind="stable")])
    if method == "qr":
        return problem.take(_pivots(problem, problem.open, len(problem.y)))
    if method == "convex":
        shares, rates = relax(problem.y, problem.cost, problem.known, problem.open, problem.limit)
        order = np.lexsort((-rates[problem.open], -shares[problem.open]))
        return problem.take(problem.open[order])
    return _greedy(problem)


def relaxed(
    y: Any, *, n: int | None = None, cost: Any = None, budget: float | None = None
) -> Floats:
    """The share 0..1 of each configuration for the largest log det of sum_j share_j y_j y_j^T.

    The shares sum to n, or, with cost and budget, cost . shares is the budget. log det, in the
    basis in which y is orthonormal, is within 1e-6 of the largest, and no choice of whole
    configurations has a larger one.

    Args: y, n, cost, budget: as of `select`.
    Raises: as `select`.

    Returns:
        (configurations,) float64.
    """
    problem = _problem(y, n, cost, budget, "convex", (), None)
    return relax(problem.y, problem.cost, problem.known, problem.open, problem.limit)[0]


@dataclass(frozen=True)
class _Problem:
    """The arguments of `select`, checked; y is orthonormal."""

    y: Floats
    cost: Floats
    n: int
    budget: float
    known: Ints
    open: Ints

    @property
    def limit(self) -> tuple[bool, float]:
        """Whether it is the cost that is limited, and to how much."""
        paid = np.isfinite(self.budget)
        return paid, self.budget if paid else float(self.n)

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
    if cost is None and (budget is not None or method == "cheapest"):
        wanted = "a budget" if budget is not None else "method='cheapest'"
        raise ValueError(f"select: {wanted} needs cost, a number for each configuration")
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


# Exchanges end when log det cannot grow by more than this; the bound comes from concavity.
_TOLERANCE = 1e-6
_EXCHANGES = 20_000


def relax(
    y: Floats, cost: Floats, known: Ints, candidates: Ints, limit: tuple[bool, float]
) -> tuple[Floats, Floats]:
    """The shares that maximise log det (sum over known of y_j y_j^T + sum_j share_j y_j y_j^T).

    Mass moves between two configurations at a time, from the one that loses least to the one that
    gains most per unit of the limit: each move is the maximum of a quadratic, in closed form.

    Args:
        y: (rank, configurations); candidates and known together span every dimension.
        limit: (False, n): shares sum to n; (True, budget): cost . shares is at most the budget.

    Returns:
        (configurations,) shares; (configurations,) growth of log det per unit of the limit.

    """
    paid, most = limit
    part, price = y[:, candidates], cost[candidates] if paid else np.ones(len(candidates))
    shares = np.full(len(candidates), min(1.0, most / price.sum()))
    fixed = y[:, known] @ y[:, known].T
    if shares[0] < 1:
        _exchange(part, price, fixed, shares)
    result = np.zeros((2, y.shape[1]))
    inverse = np.linalg.inv(fixed + (part * shares) @ part.T)
    result[:, candidates] = shares, _rates(part, inverse, price)
    return result[0], result[1]


def _exchange(y: Floats, price: Floats, fixed: Floats, shares: Floats) -> None:
    """Changes shares so that price . shares stays the same."""
    inverse = np.linalg.inv(fixed + (y * shares) @ y.T)
    for _ in range(_EXCHANGES):
        rates = _rates(y, inverse, price)
        up = int(np.where(shares < 1, rates, -np.inf).argmax())
        down = int(np.where(shares > 0, rates, np.inf).argmin())
        if _bound(rates, price, shares) < _TOLERANCE:
            return
        a, b = y[:, up], y[:, down]
        aa, bb, ab = a @ inverse @ a, b @ inverse @ b, a @ inverse @ b
        # det grows by 1 + d (aa / p - bb / q) - d^2 (aa bb - ab^2) / (p q), d the moved cost.
        p, q = price[up], price[down]
        bend = 2 * (aa * bb - ab * ab) / (p * q)
        room = min((1 - shares[up]) * p, shares[down] * q)
        moved = min(room, (rates[up] - rates[down]) / bend) if bend > 0 else room
        # A full move ends exactly at the bound, so that it is not tried again.
        shares[up] = 1.0 if moved == (1 - shares[up]) * p else shares[up] + moved / p
        shares[down] = 0.0 if moved == shares[down] * q else shares[down] - moved / q
        inverse = np.linalg.inv(fixed + (y * shares) @ y.T)


def _rates(y: Floats, inverse: Floats, price: Floats) -> Floats:
    rates: Floats = np.einsum("ij,ij->j", y, inverse @ y) / price
    return rates


def _bound(rates: Floats, price: Floats, shares: Floats) -> float:
    """By how much log det can grow at most: the best value of the linear problem less the present
    one."""
    order = np.argsort(-rates)
    total = price @ shares
    filled = np.clip((total - (np.cumsum(price[order]) - price[order])) / price[order], 0, 1)
    return float((rates * price)[order] @ filled - (rates * price) @ shares)

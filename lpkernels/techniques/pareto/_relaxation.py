"""The convex relaxation of a D-optimal design."""

from __future__ import annotations

import numpy as np

from lpkernels.techniques.pareto.checks import Floats, Ints

# Exchanges end when log det cannot grow by more than this; the bound comes from concavity.
_TOLERANCE = 1e-6
_EXCHANGES = 20_000


def relax(
    y: Floats, cost: Floats, known: Ints, candidates: Ints, limit: tuple[bool, float]
) -> tuple[Floats, Floats]:
    """The shares that maximise log det of what is known and sum_j share_j y_j y_j^T.

    Mass moves between two configurations at a time, from the one that loses least to the one that
    gains most per unit of what is limited: each move is the maximum of a quadratic, in closed form.

    Args:
        y: (rank, configurations); candidates and known together span every dimension.
        limit: (False, n): shares sum to n; (True, budget): cost . shares is at most the budget.

    Returns:
        (configurations,) shares; (configurations,) growth of log det per unit of what is limited.

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

"""The variance retention ratio of a reduced-precision sum, evaluated as the variance it loses.

Source: Sakr et al. 2019, "Accumulation bit-width scaling for ultra-low precision training of deep
networks" (arXiv 1901.06588). n independent products of mean 0 and standard deviation s are added
one by one to a float of m_acc mantissa bits. With T = 2^m_acc and 2Q(x) = erfc(x / sqrt 2):

- full swamping: the sum passes T s at step i and absorbs nothing more,
      q_i = 2Q(T / sqrt i) (1 - 2Q(T / sqrt(i - 1))),   i = 2 .. n - 1;
- partial swamping, stage j: the low bits of a product of m_p mantissa bits are dropped, which by
  the end of stage r has cost the variance of a_r products,
      a_r = 2^(m_acc - 3 m_p) / 3 * sum_{j=1..r} 2^j (2^j - 1) (2^(j+1) - 1);
- neither: 1 - 2Q(2^(m_acc - m_p + 1) / sqrt n).

VRR is the mean of the variance kept over these cases. Here 1 - VRR is formed from the variance
lost in each case, so that no difference of nearly equal numbers is taken.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch

from lpkernels.techniques.checks import Floats

# This many terms of the sum over i are added one by one. The others are integrated, in 24 panels of
# 64 Gauss-Legendre points over log i. The loss then differs from the full sum by less than 1e-7 of
# it.
_HEAD = 4096
_PANELS = 24
_POINTS = 64
# Sums of one array operation, which bounds its memory.
_BLOCK = 256


def erf(x: Floats) -> Floats:
    return torch.special.erf(torch.from_numpy(x)).numpy()


def erfc(x: Floats) -> Floats:
    return torch.special.erfc(torch.from_numpy(x)).numpy()


@functools.cache
def _nodes() -> tuple[Floats, Floats]:
    """Positions in 0..1 and weights of the composite rule."""
    x, w = np.polynomial.legendre.leggauss(_POINTS)
    left = np.arange(_PANELS)[:, None]
    return ((left + (x + 1) / 2) / _PANELS).ravel(), np.tile(w / 2 / _PANELS, _PANELS)


def _swamped_at(i: Floats, threshold: Floats) -> Floats:
    """q_i: the sum first exceeds the threshold at step i."""
    scaled = threshold / math.sqrt(2)
    return erfc(scaled / np.sqrt(i)) * erf(scaled / np.sqrt(i - 1))


def _head(
    first: Floats, last: Floats, terms: int, threshold: Floats, rest: Floats
) -> tuple[Floats, Floats]:
    """Sums over the first `terms` steps of q_i and of (rest - i) q_i. All arguments (B, 1)."""
    i = first + np.arange(terms)
    q = np.where(i <= last, _swamped_at(i, threshold), 0.0)
    return q.sum(axis=1), (q * (rest - i)).sum(axis=1)


def _tail(first: Floats, last: Floats, threshold: Floats, rest: Floats) -> tuple[Floats, Floats]:
    """The same over the steps first..last as integrals; zero where there are none."""
    some = first <= last
    low = np.log(np.where(some, first, 2.0) - 0.5)
    width = np.log(np.where(some, last, 2.0) + 0.5) - low
    position, weight = _nodes()
    i = np.exp(low + width * position)
    q = np.where(some, _swamped_at(i, threshold) * weight * width * i, 0.0)
    return q.sum(axis=1), (q * (rest - i)).sum(axis=1)


def _stages(m_acc: Floats, m_p: Floats, n: Floats) -> tuple[Floats, Floats, Floats]:
    """k2, the sum of a_jr q'_jr, and a itself; each (B,). Stages 2..m_p are the columns."""
    stage = np.arange(1, max(2, int(m_p.max()) + 1), dtype=np.float64)
    cost = np.exp2(stage) * (np.exp2(stage) - 1) * (np.exp2(stage + 1) - 1)
    used = stage <= m_p
    a = np.exp2(m_acc - 3 * m_p) / 3 * np.cumsum(np.where(used, cost, 0.0), axis=1)
    # Columns of the stages jr = 2, 3, ...: what was lost before is a at jr - 1.
    before, jr = a[:, :-1], stage[1:]
    edge = np.exp2(m_acc - m_p + jr)
    reached = erfc(edge / 2 / np.sqrt(2 * n)) * erf(edge / np.sqrt(2 * n))
    weight = np.where((jr <= m_p) & (n > before), edge * reached, 0.0)
    return weight.sum(axis=1), (weight * before).sum(axis=1), a[:, -1]


def lost(m_acc: Floats, m_p: Floats, n: Floats, *, partial: bool) -> Floats:
    """1 - VRR for 1-D float64 arrays of one length, n at least 2.

    Without `partial` only full swamping is counted (the paper's lemma).
    """
    parts = [
        _lost_block(m_acc[s, None], m_p[s, None], n[s, None], partial)
        for s in (slice(start, start + _BLOCK) for start in range(0, len(n), _BLOCK))
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def _lost_block(m_acc: Floats, m_p: Floats, n: Floats, partial: bool) -> Floats:
    threshold = np.exp2(m_acc)
    if partial:
        k2, lost2, a = _stages(m_acc, m_p, n)
        k3 = erf(np.exp2(m_acc - m_p + 1) / np.sqrt(2 * n))[:, 0]
    else:
        k2 = lost2 = a = np.zeros(len(n))
        k3 = erf(threshold / np.sqrt(2 * n))[:, 0]
    first = np.maximum(2.0, np.floor(a) + 1)[:, None]
    last, rest = n - 1, n + a[:, None]
    terms = int(np.clip((last - first).max() + 1, 0, _HEAD))
    head = _head(first, last, terms, threshold, rest)
    tail = _tail(first + _HEAD, last, threshold, rest)
    k1, lost1 = head[0] + tail[0], head[1] + tail[1]
    return (lost1 + lost2) / ((k1 + k2 + k3) * n[:, 0])

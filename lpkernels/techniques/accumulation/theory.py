"""How many mantissa bits a sum of n products needs: the variance and the error criterion.

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

Departures and choices where the paper is silent:

- inner and outer sums are each held to the threshold at their own length ("level"); "total"
  multiplies the loss of both levels with the whole length and asks for 2 to 4 bits more;
- the mantissa of a chunk's sum entering the outer sum is m_p + floor(log2 chunk), at most m_acc;
- the companion criterion "nmse" is not the paper's: see `nmse`.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import numpy as np
import torch

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats

CRITERIA = ("level", "total")
METRICS = ("vrr", "nmse")
#: Error constants c of NMSE = c n 4^-m_acc, by rounding.
NMSE_CONSTANTS = {
    # A step rounds by an error of variance ulp^2 / 12; over sums of log-uniform significand the
    # mean of (ulp / |sum|)^2 is 3 / (8 ln 2) 4^-m, and the squared sums add up to n^2 / 2 terms.
    "nearest_even": 3 / (8 * math.log(2)) / 24,
    # The error of a stochastic rounding has twice the variance, for a uniform fraction.
    "stochastic": 3 / (8 * math.log(2)) / 12,
    # Measured for 2 <= 2^m / sqrt n <= 4 over lengths 2^8..2^20: 0.0549 with a standard error of
    # 0.0006, 4096 sums at each of 14 points (bench/accumulation.py). No derivation.
    "aligned_truncation": 0.055,
}
#: What the variance criterion does not see of roundings other than nearest even.
UNSEEN_BY_VRR = {
    "stochastic": "stochastic rounding loses no variance, it adds noise, which the criterion does "
    'not see: use metric="nmse"',
    "aligned_truncation": "aligned truncation loses more variance than the formula counts: add 3 "
    'bits and more, or use metric="nmse"',
}
# The last mantissa width that is tried; far above any that a sum of 2^53 products asks for.
_MOST_BITS = 52
# From this length on the formula's answer jumps by 3 bits, which no simulated sum shows.
MODEL_LIMIT = 1 << 22
# This many terms of the sum over i are added one by one; the others are integrated over log i. The
# loss then differs from the full sum by less than 1e-7 of it.
_HEAD = 4096
_PANELS = 24
_POINTS = 64
# Sums of one array operation, which bounds its memory.
_BLOCK = 256


class ModelWarning(UserWarning):
    """The question lies outside of the range in which the theory holds."""


def vrr(m_acc: Any, m_p: Any, n: Any, *, nzr: Any = 1.0) -> tuple[Any, Any]:
    """The variance retention ratio of a sum of n products, and the loss 1 - VRR.

    VRR = Var(reduced-precision sum) / (n Var(product)), for independent products of mean zero. The
    loss is good to a relative 1e-6 however small it is. The paper accepts a sum where n times the
    loss, the number of products whose variance is lost, is below ln 50 = 3.912.

    Args:
        m_acc: mantissa bits of the accumulator, without the hidden one, 1..52.
        m_p: mantissa bits of a product, 0..105; two operands of m bits give 2 m + 1.
        n: products of one sum, at least 1; n = 1 loses nothing.
        nzr: share of the products that are not zero, 0..1: the sum then counts as one of
            max(2, round(nzr n)) products.

    The four numbers broadcast against one another.

    Returns: (VRR, loss): two floats, or two float64 arrays if any argument is an array.
    Raises: TypeError, ValueError: bits, lengths or shares out of range.

    >>> from lpkernels.techniques.accumulation import vrr
    >>> ratio, lost = vrr(7, 5, 4096)
    >>> round(ratio, 3), round(lost, 3)
    (0.922, 0.078)
    """
    scalar = all(np.ndim(value) == 0 for value in (m_acc, m_p, n, nzr))
    bits, product, length, share = np.broadcast_arrays(
        _bits("vrr: m_acc", m_acc, 1, _MOST_BITS),
        _bits("vrr: m_p", m_p, 0, 105),
        _lengths("vrr: n", n),
        _shares("vrr: nzr", nzr),
    )
    loss = _loss(bits, product, _effective_length(length, share))
    return (1.0 - float(loss), float(loss)) if scalar else (1.0 - loss, loss)


def min_mantissa_bits(
    n: Any,
    m_p: Any,
    *,
    chunk: Any = None,
    nzr: Any = 1.0,
    cutoff: float = 50.0,
    criterion: str = "level",
    metric: str = "vrr",
    eps: float = 1e-3,
    rounding: str = "nearest_even",
) -> Any:
    """The fewest mantissa bits of an accumulator that sums n products well enough.

    Args:
        n: products of one sum, at least 1.
        m_p: mantissa bits of a product, 0..105. "nmse" does not depend on it.
        chunk: length of the inner sums; each sum of a chunk is then added to an outer accumulator
            of the same width. None, or at least n: one sum.
        nzr: share of the products that are not zero. Chunks become as much shorter; their number,
            and the width of their sums, stay.
        cutoff: "vrr" accepts a sum when v(n) = exp(n (1 - VRR)) is below it; above 1.
        criterion: with chunks, "level" asks this of both sums at their own length, "total" asks it
            of VRR_inner VRR_outer at the whole length, which costs 2 to 4 bits.
        metric: "vrr" (the paper's), or "nmse": the predicted error of :func:`nmse` is at most eps.
        eps: for "nmse", above 0.
        rounding: of the sums, as :func:`accumulator_of` makes them: "nearest_even", "stochastic" or
            "aligned_truncation". It enters "nmse" alone. Sums rounded toward_zero drift, and
            neither metric holds.

    n, m_p, chunk and nzr broadcast against one another.

    Returns: an int, or an int64 array if any of those is an array.
    Warns: ModelWarning: "vrr" for a sum of 2^22 products or more, where the formula asks for about
        3 bits too many, and for roundings whose loss it does not see.
    Raises: TypeError, ValueError: arguments out of range, unknown names; no width of at most 52
        bits is enough.

    >>> from lpkernels.techniques.accumulation import min_mantissa_bits
    >>> min_mantissa_bits(4096, 5)
    9
    >>> min_mantissa_bits(4096, 5, chunk=64)
    4
    """
    name = "min_mantissa_bits"
    checks.choice(f"{name}: criterion", criterion, CRITERIA)
    checks.choice(f"{name}: metric", metric, METRICS)
    checks.choice(f"{name}: rounding", rounding, NMSE_CONSTANTS)
    checks.number(f"{name}: cutoff", cutoff, above=1)
    checks.number(f"{name}: eps", eps, above=0)
    products = _bits(f"{name}: m_p", m_p, 0, 105)
    arrays = np.broadcast_arrays(products, *_levels(name, n, chunk, nzr))
    product, chunk, inner, outer = (array.ravel() for array in arrays)
    bits = np.zeros(len(product), dtype=np.int64)
    if metric == "nmse":
        error = _error(inner, outer, rounding)
        needed = np.ceil((np.log2(np.where(error > 0, error, eps)) - math.log2(eps)) / 2)
        bits[:] = np.where(needed > _MOST_BITS, 0, np.maximum(1, needed))
    else:
        longest = int(max(inner.max(initial=0), outer.max(initial=0)))
        if longest >= MODEL_LIMIT:
            warnings.warn(
                f"{name}: a sum of {longest} products: from 2^22 on the formula asks for about 3 "
                'bits more than simulated sums need; pass chunk=, or metric="nmse"',
                ModelWarning,
                stacklevel=2,
            )
        if rounding in UNSEEN_BY_VRR:
            warnings.warn(f"{name}: {UNSEEN_BY_VRR[rounding]}", ModelWarning, stacklevel=2)
        # The loss does not fall with every bit from 2^22 products on: a bisection could miss it.
        for m in range(1, _MOST_BITS + 1):
            rows = np.flatnonzero(bits == 0)
            if not len(rows):
                break
            lost = _log_variance_lost(
                np.full(len(rows), float(m)), product[rows], chunk[rows], inner[rows], outer[rows],
                criterion,
            )  # fmt: skip
            bits[rows[lost < math.log(cutoff)]] = m
    if (bits == 0).any():
        raise ValueError(
            f"{name}: no accumulator of at most {_MOST_BITS} mantissa bits is enough; use a larger "
            "cutoff or eps, or a chunk"
        )
    return int(bits[0]) if arrays[0].ndim == 0 else bits.reshape(arrays[0].shape)


def nmse(
    m_acc: Any, n: Any, *, chunk: Any = None, nzr: Any = 1.0, rounding: str = "nearest_even"
) -> Any:
    """The predicted error of a sum: E[(sum - exact)^2] / (n Var(product)) = c n 4^-m_acc.

    With chunks it is c (n1 + n2) 4^-m_acc, where n2 counts with the c of the outer sum's rounding.
    The law is not the paper's. c is 0.0225 for nearest_even and 0.0451 for stochastic (an upper
    bound once products have few bits); for aligned_truncation it is measured, 0.055. The law holds
    while the ulp of the sum is above the last bit of the products, for products of mean zero.

    m_acc: mantissa bits of the accumulator, 1..52.  n, chunk, nzr, rounding: as in
        :func:`min_mantissa_bits`.
    Returns: a float, or a float64 array.
    Raises: TypeError, ValueError: arguments out of range, an unknown rounding.

    >>> from lpkernels.techniques.accumulation import nmse
    >>> nmse(9, 4096) / nmse(10, 4096)
    4.0
    """
    checks.choice("nmse: rounding", rounding, NMSE_CONSTANTS)
    _, inner, outer = _levels("nmse", n, chunk, nzr)
    bits = _bits("nmse: m_acc", m_acc, 1, _MOST_BITS)
    error = _error(inner, outer, rounding) * np.exp2(-2 * bits)
    return float(error) if error.ndim == 0 else error


def _log_variance_lost(
    m_acc: Floats, m_p: Floats, chunk: Floats, inner: Floats, outer: Floats, criterion: str
) -> Floats:
    """ln v of chunked sums, for 1-D arrays: n (1 - VRR), which is compared with ln cutoff.

    chunk: the nominal length of the inner sums. inner, outer: products that count in both sums.
    """
    sum_bits = np.minimum(m_acc, m_p + np.floor(np.log2(chunk)))
    loss1, loss2 = _loss(m_acc, m_p, inner), _loss(m_acc, sum_bits, outer)
    if criterion == "level":
        return np.maximum(inner * loss1, outer * loss2)
    return inner * outer * (loss1 + loss2 - loss1 * loss2)


def _error(inner: Floats, outer: Floats, rounding: str) -> Floats:
    """The error law without its 4^-m: c n1 + c' n2, or c n1 where there is one sum."""
    outer_rounding = "nearest_even" if rounding == "aligned_truncation" else rounding
    chunks = np.where(outer > 1, outer, 0.0)
    error = NMSE_CONSTANTS[rounding] * inner + NMSE_CONSTANTS[outer_rounding] * chunks
    # A single product is not added to anything.
    return np.where(inner + chunks > 1, error, 0.0)


def _levels(function: str, n: Any, chunk: Any, nzr: Any) -> tuple[Floats, Floats, Floats]:
    """The nominal length of a chunk, and the products that count in inner and in outer sums."""
    lengths = _lengths(f"{function}: n", n)
    chunks = lengths if chunk is None else _lengths(f"{function}: chunk", chunk)
    chunks = np.minimum(chunks, lengths)
    inner = _effective_length(chunks, _shares(f"{function}: nzr", nzr))
    return chunks, inner, np.ceil(lengths / chunks)


def _effective_length(n: Floats, nzr: Floats) -> Floats:
    """Products that count: max(2, round(nzr n)), and 1 where n is 1."""
    return np.where(n <= 1, 1.0, np.maximum(2.0, np.round(nzr * n)))


def _loss(m_acc: Floats, m_p: Floats, n: Floats) -> Floats:
    """1 - VRR for arrays of one shape, n already effective; 0 where n is 1."""
    bits, product, length = (np.array(x, dtype=np.float64).ravel() for x in (m_acc, m_p, n))
    loss = np.zeros(len(length))
    sums = np.flatnonzero(length > 1)
    for start in range(0, len(sums), _BLOCK):
        block = sums[start : start + _BLOCK]
        loss[block] = _lost(*(x[block, None] for x in (bits, product, length)))
    return loss.reshape(np.shape(n))


def _lost(m_acc: Floats, m_p: Floats, n: Floats) -> Floats:
    """1 - VRR, (B,), for (B, 1) float64 arrays, n at least 2."""
    k2, lost2, a = _stages(m_acc, m_p, n)
    k3 = erf(np.exp2(m_acc - m_p + 1) / np.sqrt(2 * n))[:, 0]
    threshold = np.exp2(m_acc)
    first = np.maximum(2.0, np.floor(a) + 1)[:, None]
    last, rest = n - 1, n + a[:, None]
    terms = int(np.clip((last - first).max() + 1, 0, _HEAD))
    head = _head(first, last, terms, threshold, rest)
    tail = _tail(first + _HEAD, last, threshold, rest)
    k1, lost1 = head[0] + tail[0], head[1] + tail[1]
    return (lost1 + lost2) / ((k1 + k2 + k3) * n[:, 0])


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
    # Columns of the stages jr = 2, 3, ...: the loss before a stage is a at jr - 1.
    before, jr = a[:, :-1], stage[1:]
    edge = np.exp2(m_acc - m_p + jr)
    reached = erfc(edge / 2 / np.sqrt(2 * n)) * erf(edge / np.sqrt(2 * n))
    weight = np.where((jr <= m_p) & (n > before), edge * reached, 0.0)
    return weight.sum(axis=1), (weight * before).sum(axis=1), a[:, -1]


def _bits(label: str, value: Any, least: int, most: int) -> Floats:
    what = f"mantissa bits in {least}..{most}, without the hidden one"
    return checks.wholes(label, value, least, most, what)


def _lengths(label: str, value: Any) -> Floats:
    return checks.wholes(label, value, 1, 2.0**53, "a number of products in 1..2^53")


def _shares(label: str, value: Any) -> Floats:
    array = checks.numbers(label, value)
    wrong = array[~((array >= 0) & (array <= 1))]
    if wrong.size:
        raise ValueError(
            f"{label}: expected the share of products that are not zero, in 0..1, got "
            f"{wrong.flat[0]}"
        )
    return array

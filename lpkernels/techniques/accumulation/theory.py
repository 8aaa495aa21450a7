"""How many mantissa bits a sum of n products needs: the variance and the error criterion.

Source: Sakr et al. 2019 (arXiv 1901.06588); the formulas are in `_retention`. Departures and
choices where the paper is silent:

- inner and outer sums are each held to the threshold at their own length ("level"); "total"
  multiplies the loss of both levels with the whole length and asks for 2 to 4 bits more;
- the mantissa of a chunk's sum entering the outer sum is m_p + floor(log2 chunk), at most m_acc;
- the companion criterion "nmse" is not the paper's: see `nmse`.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lpkernels.techniques import checks
from lpkernels.techniques.accumulation._retention import lost
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
CUTOFF = 50.0
EPS = 1e-3
# The last mantissa width that is tried; far above any that a sum of 2^53 products asks for.
_MOST_BITS = 52
# From this length on the formula's answer jumps by 3 bits, which no simulated sum shows.
MODEL_LIMIT = 1 << 22


class ModelWarning(UserWarning):
    """The question lies where the theory is known to be wrong."""


@overload
def vrr(
    m_acc: int, m_p: int, n: int, *, nzr: float = ..., partial: bool = ...
) -> tuple[float, float]: ...
@overload
def vrr(
    m_acc: ArrayLike,
    m_p: ArrayLike,
    n: ArrayLike,
    *,
    nzr: ArrayLike = ...,
    partial: bool = ...,
) -> tuple[Floats, Floats]: ...
def vrr(
    m_acc: Any,
    m_p: Any,
    n: Any,
    *,
    nzr: Any = 1.0,
    partial: bool = True,
) -> tuple[Any, Any]:
    """The variance retention ratio of a sum of n products, and the loss 1 - VRR.

    VRR = Var(reduced-precision sum) / (n Var(product)), for independent products of mean zero. The
    loss is formed directly and is good to a relative 1e-6 however small it is.

    Args:
        m_acc: mantissa bits of the accumulator, without the hidden one, 1..52.
        m_p: mantissa bits of a product, 0..105; two operands of m bits give 2 m + 1.
        n: products of one sum, at least 1; n = 1 loses nothing.
        nzr: share of the products that are not zero, 0..1: the sum then counts as one of
            max(2, round(nzr n)) products.
        partial: count the bits lost before full swamping too (the paper's theorem); False is its
            lemma.

    The four numbers broadcast against one another.

    Returns:
        (VRR, loss): two floats, or two float64 arrays if any argument is an array.

    Raises:
        TypeError, ValueError: bits, lengths or shares out of range.

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
    loss = _loss(bits, product, effective_length(length, share), partial)
    return (1.0 - float(loss), float(loss)) if scalar else (1.0 - loss, loss)


def log_variance_lost(m_acc: Any, m_p: Any, n: Any, *, nzr: Any = 1.0) -> Any:
    """ln v(n) = n (1 - VRR), n times the share nzr: a sum is accepted below ln 50 = 3.912.

    This is the number of whole products whose variance is expected to be lost.

    Args:
        m_acc, m_p, n, nzr: as in :func:`vrr`; they broadcast against one another.

    Returns:
        A float, or a float64 array.

    Raises:
        TypeError, ValueError: as :func:`vrr`.
    """
    loss = vrr(m_acc, m_p, n, nzr=nzr)[1]
    length = np.broadcast_to(effective_length(np.asarray(n), np.asarray(nzr)), np.shape(loss))
    return float(length * loss) if np.ndim(loss) == 0 else length * loss


def effective_length(n: NDArray[Any], nzr: NDArray[Any]) -> Floats:
    """Products that count: max(2, round(nzr n)), and 1 where n is 1."""
    return np.where(n <= 1, 1.0, np.maximum(2.0, np.round(nzr * n)))


def _loss(m_acc: Floats, m_p: Floats, n: Floats, partial: bool = True) -> Floats:
    """1 - VRR for arrays of one shape, n already effective; 0 where n is 1."""
    shape = np.shape(n)
    columns = [np.array(x, dtype=np.float64).ravel() for x in (m_acc, m_p, n)]
    loss = np.zeros(columns[2].size)
    some = columns[2] > 1
    loss[some] = lost(*(x[some] for x in columns), partial=partial)
    return loss.reshape(shape)


def min_mantissa_bits(
    n: Any,
    m_p: Any,
    *,
    chunk: Any = None,
    nzr: Any = 1.0,
    cutoff: float = CUTOFF,
    criterion: str = "level",
    metric: str = "vrr",
    eps: float = EPS,
    rounding: str = "nearest_even",
) -> Any:
    """The fewest mantissa bits of an accumulator that sums n products well enough.

    The widths are tried from 1 upwards and the first that passes is returned: the variance lost
    does not fall with every bit once n reaches 2^22, so a bisection could miss it.

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
        rounding: of the sums: "nearest_even", "stochastic" or "aligned_truncation" (the sum and
            each product cut toward zero at the last place of the larger, as
            :func:`accumulator_of` makes them). It enters "nmse" alone. If the result itself is
            truncated (toward_zero), sums drift, and neither metric holds.

    n, m_p, chunk and nzr broadcast against one another.

    Returns:
        An int, or an int64 array if any of those is an array.

    Warns:
        ModelWarning: "vrr" for a sum of 2^22 products or more, where the formula asks for about 3
            bits that no simulation needs; for stochastic rounding, which loses no variance and adds
            noise instead; for aligned truncation, which loses more than the formula counts (3 bits
            and more).

    Raises:
        TypeError, ValueError: arguments out of range, unknown names; no width of at most 52 bits
            is enough.

    >>> from lpkernels.techniques.accumulation import min_mantissa_bits
    >>> min_mantissa_bits(4096, 5)
    9
    >>> min_mantissa_bits(4096, 5, chunk=64)
    4
    """
    name = "min_mantissa_bits"
    check_criteria(name, criterion, metric, rounding)
    checks.number(f"{name}: cutoff", cutoff, above=1)
    checks.number(f"{name}: eps", eps, above=0)
    scalar = all(np.ndim(value) == 0 for value in (n, m_p, nzr, 1 if chunk is None else chunk))
    lengths = _lengths(f"{name}: n", n)
    chunks = lengths if chunk is None else _lengths(f"{name}: chunk", chunk)
    arrays = np.broadcast_arrays(
        lengths,
        _bits(f"{name}: m_p", m_p, 0, 105),
        np.minimum(chunks, lengths),
        _shares(f"{name}: nzr", nzr),
    )
    sums = ChunkedSums(*(np.array(x, dtype=np.float64).ravel() for x in arrays))
    if metric == "nmse":
        bits = _bits_for_error(sums, eps, rounding)
    else:
        _warn(sums, rounding)
        bits = _bits_for_variance(sums, math.log(cutoff), criterion)
    return int(bits[0]) if scalar else bits.reshape(arrays[0].shape)


class ChunkedSums:
    """The two sums of a chunked accumulation, for 1-D arrays; one sum where chunk >= n."""

    def __init__(self, n: Floats, m_p: Floats, chunk: Floats, nzr: Floats) -> None:
        self.m_p, self.nominal = m_p, chunk
        self.inner = effective_length(chunk, nzr)
        self.outer = np.ceil(n / chunk)

    def log_variance_lost(self, m_acc: Floats, criterion: str, rows: NDArray[np.bool_]) -> Floats:
        """ln v of the chosen rows, which is compared with ln cutoff."""
        m_p, nominal, inner, outer = (
            x[rows] for x in (self.m_p, self.nominal, self.inner, self.outer)
        )
        sum_bits = np.minimum(m_acc, m_p + np.floor(np.log2(nominal)))
        loss1 = _loss(m_acc, m_p, inner)
        loss2 = _loss(m_acc, sum_bits, outer)
        if criterion == "level":
            return np.maximum(inner * loss1, outer * loss2)
        return inner * outer * (loss1 + loss2 - loss1 * loss2)

    def error(self, rounding: str) -> Floats:
        """The error law without its 4^-m: c n1 + c' n2, or c n1 where there is one sum."""
        outer = "nearest_even" if rounding == "aligned_truncation" else rounding
        chunks = np.where(self.outer > 1, self.outer, 0.0)
        error = NMSE_CONSTANTS[rounding] * self.inner + NMSE_CONSTANTS[outer] * chunks
        # A single product is not added to anything.
        return np.where(self.inner + chunks > 1, error, 0.0)


def _bits_for_variance(sums: ChunkedSums, limit: float, criterion: str) -> NDArray[np.int64]:
    bits = np.zeros(len(sums.inner), dtype=np.int64)
    for m in range(1, _MOST_BITS + 1):
        rows = bits == 0
        if not rows.any():
            return bits
        width = np.full(int(rows.sum()), float(m))
        passed = sums.log_variance_lost(width, criterion, rows) < limit
        bits[np.flatnonzero(rows)[passed]] = m
    return _all_found(bits)


def _bits_for_error(sums: ChunkedSums, eps: float, rounding: str) -> NDArray[np.int64]:
    error = sums.error(rounding)
    needed = np.ceil((np.log2(np.where(error > 0, error, eps)) - math.log2(eps)) / 2)
    bits = np.maximum(1, needed).astype(np.int64)
    return _all_found(np.where(bits > _MOST_BITS, 0, bits))


def _all_found(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    if (bits == 0).any():
        raise ValueError(
            f"min_mantissa_bits: no accumulator of at most {_MOST_BITS} mantissa bits is enough; "
            "use a larger cutoff or eps, or a chunk"
        )
    return bits


def nmse(
    m_acc: Any, n: Any, *, chunk: Any = None, nzr: Any = 1.0, rounding: str = "nearest_even"
) -> Any:
    """The predicted error of a sum: E[(sum - exact)^2] / (n Var(product)) = c n 4^-m_acc.

    With chunks it is c (n1 + n2) 4^-m_acc. The law is not the paper's. For nearest_even (0.0225)
    and stochastic (0.0451; an upper bound once products have few bits) c follows from rounding
    errors that are independent and uniform in half an ulp and in one ulp. For aligned_truncation it
    is measured (0.055); sums of chunks are then added with rounding to nearest even, and n2 counts
    with the c of that mode. It holds while the ulp of the sum is above the last bit of the
    products, for products of mean zero.

    Args:
        m_acc: mantissa bits of the accumulator, 1..52.
        n, chunk, nzr, rounding: as in :func:`min_mantissa_bits`.

    Returns:
        A float, or a float64 array.

    Raises:
        TypeError, ValueError: arguments out of range, an unknown rounding.

    >>> from lpkernels.techniques.accumulation import nmse
    >>> nmse(9, 4096) / nmse(10, 4096)
    4.0
    """
    checks.choice("nmse: rounding", rounding, NMSE_CONSTANTS)
    lengths = _lengths("nmse: n", n)
    chunks = lengths if chunk is None else _lengths("nmse: chunk", chunk)
    bits = _bits("nmse: m_acc", m_acc, 1, _MOST_BITS)
    sums = ChunkedSums(lengths, bits, np.minimum(chunks, lengths), _shares("nmse: nzr", nzr))
    error = sums.error(rounding) * np.exp2(-2 * bits)
    return float(error) if error.ndim == 0 else error


def _warn(sums: ChunkedSums, rounding: str) -> None:
    longest = int(max(sums.inner.max(initial=0), sums.outer.max(initial=0)))
    doubts = []
    if longest >= MODEL_LIMIT:
        doubts.append(
            f"a sum of {longest} products: from 2^22 on the formula asks for about 3 bits more "
            'than simulated sums need; pass chunk=, or metric="nmse"'
        )
    if rounding in UNSEEN_BY_VRR:
        doubts.append(UNSEEN_BY_VRR[rounding])
    for doubt in doubts:
        # The caller of min_mantissa_bits.
        warnings.warn(f"min_mantissa_bits: {doubt}", ModelWarning, stacklevel=3)


def check_criteria(function: str, criterion: str, metric: str, rounding: str) -> None:
    """Checks the names that `min_mantissa_bits` takes.  Raises ValueError."""
    checks.choice(f"{function}: criterion", criterion, CRITERIA)
    checks.choice(f"{function}: metric", metric, METRICS)
    checks.choice(f"{function}: rounding", rounding, NMSE_CONSTANTS)


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

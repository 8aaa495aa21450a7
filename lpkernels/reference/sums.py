"""The step every emulated sum is made of, for whole arrays of outputs: acc = round(acc + p), one
rounding.

A product of two float32 values has at most 48 significant bits, so it is exact in float64. Its sum
with the accumulator is split into the nearest float64 and the error (two-sum, Knuth, The Art of
Computer Programming vol. 2, 4.2.2) and made odd: a sum rounded to odd in 53 bits gives, rounded
once more to at most 24 bits and 24 random ones, the bits of the exact sum (Boldo and Melquiond,
IEEE Transactions on Computers 57(4), 2008).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.reference.values import Float64, widen
from lpkernels.rng import SITE_BIAS, SITE_OUTER, SITE_PRODUCT, SITE_SUM, draws
from lpkernels.rounding import round_array

Number = FloatFormat | FixedFormat
Integers = NDArray[np.integer]
Present = NDArray[np.bool_] | None

# A product of 2^50 quanta or more has its last bit at 2^3 quanta or above: it is a whole number of
# quanta.
_WHOLE_QUANTA = 2.0**50


def odd_sum(a: Float64, b: Float64) -> Float64:
    """a + b to odd: the nearest float64 if exact or odd, else its neighbour towards the error."""
    with np.errstate(invalid="ignore"):
        s = np.asarray(a + b)
        b_part = s - a
        error = (a - (s - b_part)) + (b - b_part)
        # Ordered comparisons: an infinite or NaN sum has a NaN for error and stays as it is.
        above, below = error > 0, error < 0
        bits = s.view(np.int64)
        inexact_even = (above | below) & ((bits & 1) == 0)
        outward = above == (s > 0)
    return (bits + np.where(inexact_even, np.where(outward, 1, -1), 0)).view(np.float64)


def _with_zero_sign(s: Float64, a: Float64, b: Float64) -> Float64:
    """toward_negative: an exact zero sum is -0 unless both addends are +0."""
    return np.where((s == 0) & (np.signbit(a) | np.signbit(b)), -0.0, s)


def _wrapped_addend(b: Float64, fmt: FixedFormat) -> Float64:
    """b modulo the range of a wrapping format, where b is a whole number of quanta.

    Making the sum odd then cannot reach the bits that wrapping keeps. Smaller b keep their value,
    whose sign directed modes need.
    """
    whole = np.isfinite(b) & (np.abs(b) >= _WHOLE_QUANTA * fmt.quantum)
    if not whole.any():
        return b
    return np.where(whole, np.fmod(np.where(whole, b, 0.0), 2.0**fmt.word_bits * fmt.quantum), b)


def add(
    total: Float64,
    addend: Float64,
    fmt: Number,
    rounding: str,
    *,
    draws: NDArray[np.uint32] | None = None,
    random_bits: int = 32,
) -> Float64:
    """total + addend rounded once to fmt.

    Zeros of equal sign keep it, any other exact zero sum is +0 (-0 under toward_negative; a
    FixedFormat only has +0). inf - inf is NaN; an infinite sum becomes what fmt.overflow says.

    Args:
        total: values of fmt. addend: exact products or values of at most 48 significant bits. They
            broadcast.
        draws: the random bits of a stochastic sum, of the sum's shape.
    """
    if isinstance(fmt, FixedFormat) and fmt.overflow == "wrap":
        addend = _wrapped_addend(addend, fmt)
    s = odd_sum(total, addend)
    if rounding == "toward_negative":
        s = _with_zero_sign(s, total, addend)
    return round_array(s, fmt, rounding, draws=draws, random_bits=random_bits)


class Sums:
    """Running sums of many outputs in one Accumulator: fed the products of one k after the other.

    ``row`` and ``col`` are integer arrays that broadcast to the shape of the outputs; they key the
    draws.
    """

    def __init__(
        self, shape: tuple[int, ...], acc: Accumulator, seed: int, row: Integers, col: Integers
    ):
        self.acc, self.seed, self.row, self.col = acc, seed, row, col
        self.inner: Float64 = np.zeros(shape)
        self.outer: Float64 = np.zeros(shape)
        self.k = 0

    def _draws(self, site: int, k: int, rounding: str) -> NDArray[np.uint32] | None:
        if rounding != "stochastic":
            return None
        acc = self.acc
        return draws(self.seed, site, self.row, self.col, k, acc.random_bits, acc.rng)

    def _add(self, total: Float64, addend: Float64, fmt: Number, site: int, k: int) -> Float64:
        acc = self.acc
        bits = self._draws(site, k, acc.rounding)
        return add(total, addend, fmt, acc.rounding, draws=bits, random_bits=acc.random_bits)

    def push(self, product: Float64, present: Present) -> None:
        """One exact product for every output; where ``present`` is False it only counts."""
        acc = self.acc
        if present is None or present.any():
            if acc.product is not None:
                bits = self._draws(SITE_PRODUCT, self.k, acc.product_rounding)
                product = round_array(
                    product,
                    acc.product,
                    acc.product_rounding,
                    draws=bits,
                    random_bits=acc.random_bits,
                )
            total = self._add(self.inner, product, acc.fmt, SITE_SUM, self.k)
            self.inner = total if present is None else np.where(present, total, self.inner)
        self.k += 1
        if acc.chunk is not None and self.k % acc.chunk == 0:
            self._close_chunk()

    def _close_chunk(self) -> None:
        chunk = (self.k - 1) // (self.acc.chunk or 1)
        self.outer = self._add(self.outer, self.inner, self.acc.outermost, SITE_OUTER, chunk)
        self.inner = np.zeros_like(self.inner)

    def result(self, bias: Float64 | None) -> Float64:
        """The sums, the last short chunk and the bias included."""
        if self.acc.chunk is not None and self.k % self.acc.chunk:
            self._close_chunk()
        total = self.inner if self.acc.chunk is None else self.outer
        return total if bias is None else self._add(total, bias, self.acc.outermost, SITE_BIAS, 0)


def accumulate(
    products: Iterable[tuple[Float64, Present]],
    shape: tuple[int, ...],
    acc: Accumulator,
    *,
    seed: int = 0,
    row: Integers,
    col: Integers,
    bias: NDArray[np.floating] | None = None,
) -> Float64:
    """Sums of exact products, k by k, every output at once: the twin of exact.accumulate.

    Args:
        products: for every k the float64 products, broadcastable to ``shape``, and which are
            present (None: all).
        shape: of the outputs. acc: order "sequential". seed: already derived for its role.
        row, col: the outputs' keys for draws, broadcastable to ``shape``.
        bias: float32 values broadcastable to ``shape``, one more addition in the outermost
            accumulator.
    Returns: float64 array of ``shape`` holding values of the outermost format.
    """
    sums = Sums(shape, acc, seed, row, col)
    for product, present in products:
        sums.push(product, present)
    return sums.result(None if bias is None else widen(bias))


def accumulate_tile(
    left: Float64,
    right: Float64,
    present: Present,
    acc: Accumulator,
    *,
    seed: int,
    row: Integers,
    col: Integers,
    bias: NDArray[np.floating] | None,
) -> Float64:
    """Outputs (G, M, N) of G products of matrices, sum over k of left[g, k, m] * right[g, k, n].

    Args:
        left, right: (G, K, M) and (G, K, N), float32 values in float64.
        present: (P, M) with P dividing K, row k % P saying which rows of the output have tap k;
            None: all.
    """
    groups, length, rows = left.shape

    def products() -> Iterator[tuple[Float64, Present]]:
        for k in range(length):
            with np.errstate(invalid="ignore"):
                product = left[:, k, :, None] * right[:, k, None, :]
            yield product, None if present is None else present[k % len(present)][:, None]

    shape = (groups, rows, right.shape[2])
    return accumulate(products(), shape, acc, seed=seed, row=row, col=col, bias=bias)


# Elements of an output tile: a few arrays of that many float64 fit in a second-level cache. Results
# do not depend on it.
_TILE_OUTPUTS = 1 << 15
# Elements of the gathered operand of a tile.
_TILE_OPERAND = 1 << 23


def tiles(groups: int, rows: int, cols: int, length: int) -> Iterator[slice]:
    """Slices of the rows of outputs (groups, rows, cols), sums of ``length`` terms, per tile."""
    by_outputs = _TILE_OUTPUTS // max(1, groups * cols)
    by_operand = _TILE_OPERAND // max(1, groups * length)
    step = max(1, min(by_outputs, by_operand))
    for start in range(0, rows if groups and cols else 0, step):
        yield slice(start, min(start + step, rows))

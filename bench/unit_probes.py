"""How a matrix unit adds, found by designed inputs.

A unit is taken for a function (a (M, K), b (K, N), values of its input formats) -> (M, N) float32,
whatever runs inside. Sums of one large product L, its opposite and one small product s show what
the unit does with s:

    L, -L, s             in one block        the last place that alignment keeps, and how it cuts
    L, -L, s at k        s is back where k lies beyond the block
    1.5 * 1.5, -..., s   whether 2.25 counts as 2^0, as its operands say, or as 2^1
    x 2^r, -x 2^r, s     x the least subnormal: the exponent that it counts with
    L...L, s             read as it is       the mantissa bits of a written sum, and how it rounds
    L, s at k            s rounds otherwise where k lies in another chunk
    u, s                 u the last place of the result's format: the least exponent of a block

bench.unit_findings makes an Accumulator of this. What a unit's results and formats cannot show
stays unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from bench.unit_findings import FP32_BITS, Found, Inputs

Unit: TypeAlias = Callable[[Tensor, Tensor], Tensor]
# A product: its position, its left factor and its right factor.
Term: TypeAlias = tuple[int, float, float]

# Rows and columns of a probe, whose first element is the experiment.
_SIDE = 128
# The finest place below L that is looked for.
_FINEST = 33
# How many positions are scanned for the end of a block, and for the end of a chunk.
_LONGEST_BLOCK, _LONGEST_CHUNK = 256, 1024
# What 1.5, -1.5 and 0.5 units become when they are rounded to units, by mode.
_MODES = {
    (1.0, -1.0, 0.0): "toward_zero",
    (1.0, -2.0, 0.0): "toward_negative",
    (2.0, -1.0, 1.0): "toward_positive",
    (2.0, -2.0, 0.0): "nearest_even",
    (2.0, -2.0, 1.0): "nearest_away",
    (1.0, -1.0, 1.0): "to_odd",
}


def probe(unit: Unit, inputs: Inputs) -> Found:
    """The parameters of a unit.

    Raises: ValueError: it keeps no place below the largest, so that nothing can be told.
    """
    return _Probe(unit, inputs).found()


def term(k: int, m: float, exponent: int) -> Term:
    """The product m 2^exponent at position k, its exponent dealt out to both factors."""
    right = exponent // 2
    return k, m * 2.0 ** (exponent - right), 2.0**right


@dataclass
class _Probe:
    unit: Unit
    inputs: Inputs

    def found(self) -> Found:
        alignment = [self.cancelled(m, self.places) for m in (1.5, -1.5, 0.5)]
        chunk = self.chunk
        outer_bits = self.outer_bits() if chunk else FP32_BITS
        return Found(
            self.places,
            _mode(alignment, self.large - self.places),
            self.by_operands(),
            (self.bound(0), self.bound(1)),
            self.least_exponent(),
            self.block,
            self.interleaved,
            self.bits,
            self.rounding,
            self.sum_is_aligned(),
            chunk,
            outer_bits,
            self.outer_rounding(outer_bits) if chunk else "unseen",
        )

    @property
    def large(self) -> int:
        """The exponent of L. Sums of a block of L, and places far below it, are in the result's
        range.

        The largest L of e4m3 is 2^8 * 2^8.
        """
        return 10 if self.inputs.half else 16

    def observe(self, terms: Sequence[Term], length: int) -> float:
        """One sum of these products, all others zero."""
        a, b = torch.zeros(_SIDE, length), torch.zeros(length, _SIDE)
        for k, left, right in terms:
            a[0, k], b[k, 0] = left, right
        return self.unit(a, b)[0, 0].item()

    def cancelled(self, m: float, place: int) -> float:
        """What is left of m 2^-place L beside L and -L."""
        large = self.large
        terms = [term(0, 1.0, large), term(1, -1.0, large), term(self.third, m, large - place)]
        return self.observe(terms, 32)

    @cached_property
    def third(self) -> int:
        """A position that is aligned with 0 and 1: 2, or 4 where pairs take turns."""
        small = term(2, 1.0, self.large - _FINEST)
        large = [term(0, 1.0, self.large), term(1, -1.0, self.large)]
        lost = self.observe([*large, small], 32) == 0.0
        return 2 if lost or self.observe([*large, (4, *small[1:])], 32) != 0.0 else 4

    @cached_property
    def places(self) -> int:
        kept = [
            j for j in range(1, _FINEST + 1) if self.cancelled(1.0, j) == 2.0 ** (self.large - j)
        ]
        if not kept:
            raise ValueError("probe: nothing is left of half a product beside it")
        return max(kept)

    def by_operands(self) -> bool:
        """Whether a place is kept below 1.5 * 1.5 that alignment to 2.25 would cut."""
        one = self.large // 2
        high = (1.5 * 2.0 ** (self.large - 1 - one), 1.5 * 2.0**one)
        place = self.large - 1 - self.places
        terms = [(0, *high), (1, -high[0], high[1]), term(self.third, 1.0, place)]
        return self.observe(terms, 32) == 2.0**place

    def bound(self, side: int) -> int | None:
        """The exponent that the least subnormal of an input counts with; None where unseen."""
        fmts = (self.inputs.left, self.inputs.right)
        least, other = self.inputs.least[side], fmts[1 - side].emax
        lowest = max(sum(self.inputs.least), self.inputs.result.emin - self.inputs.result.man_bits)
        pair = (2.0**least, 2.0**other)
        factors = pair if side == 0 else pair[::-1]
        terms = [(0, *factors), (1, -factors[0], factors[1])]
        kept = [
            j
            for j in range(1, least + other - lowest + 1)
            if self.observe([*terms, term(self.third, 1.0, least + other - j)], 32)
            == 2.0 ** (least + other - j)
        ]
        cut = least + other - lowest > max(kept, default=0)
        return least + self.places - max(kept, default=0) if cut else None

    def least_exponent(self) -> int | None:
        """The least exponent of a block, from the last place that a block keeps of 2^-j beside
        (half) the result's last place."""
        last = self.inputs.result.emin - self.inputs.result.man_bits
        down = self.rounding == "toward_zero"
        base = last if down else last - 1
        finest = -sum(self.inputs.least)
        if base < -finest or self.rounding not in ("toward_zero", "nearest_even"):
            return None
        sign, expected = (-1.0, 0.0) if down else (1.0, 2.0**last)
        kept = [
            j
            for j in range(1 - base, finest + 1)
            if self.observe([term(0, 1.0, base), term(self.third, sign, -j)], 32) == expected
        ]
        place = max(kept, default=-base)
        if place >= min(finest, self.places - base):
            return None
        return self.places - place

    @cached_property
    def together(self) -> list[int]:
        """The positions that are aligned with 0 and 1."""
        if self.places >= _FINEST:
            return []
        small, length = self.large - _FINEST, 2 * _LONGEST_BLOCK
        pair = [term(0, 1.0, self.large), term(1, -1.0, self.large)]
        return [0, 1] + [
            k
            for k in range(2, _LONGEST_BLOCK + 1)
            if self.observe([*pair, term(k, 1.0, small)], length) == 0.0
        ]

    @cached_property
    def interleaved(self) -> int:
        """How many blocks take turns; 1 if the positions aligned together are neighbours."""
        block = len(self.together)
        fit = [m for m in (1, 2, 4, 8) if self.together == _turns(block, m, 0)]
        return fit[0] if fit else 0

    @property
    def block(self) -> int:
        """How many products are aligned with those at 0 and 1; 0 if they are no block."""
        whole = len(self.together) < _LONGEST_BLOCK and self.interleaved
        return len(self.together) if whole else 0

    @cached_property
    def room(self) -> list[int]:
        """The positions of the last block of a long sum; two where there are no blocks."""
        if not self.block:
            return [0, 1]
        start = 2 * _LONGEST_BLOCK - self.block * self.interleaved
        return [start + k for k in _turns(self.block, self.interleaved, self.interleaved - 1)]

    @property
    def doublings(self) -> int:
        """How often L can be doubled by copies of it that leave room for one more product."""
        return (len(self.room) - 1).bit_length() - 1 if self.block else 0

    def multiplied(self, doublings: int, m: float, place: int) -> float:
        """What is left of m 2^-place beside 2^doublings copies of L, relative to the copies; where
        m < 0, beside copies of -L."""
        count, sign, large = 2**doublings, -1.0 if m < 0 else 1.0, self.large
        terms = [term(k, sign, large) for k in self.room[:count]]
        terms.append(term(self.room[count], m, large + doublings - place))
        return self.observe(terms, 2 * _LONGEST_BLOCK) / 2.0 ** (large + doublings) - sign

    @cached_property
    def bits(self) -> int:
        """The most bits of 2^t L (1 + 2^-bits) that come out of the last block."""
        for bits in range(1, FP32_BITS + 1):
            doublings = max(0, bits - self.places)
            if doublings > self.doublings:
                return FP32_BITS
            if self.multiplied(doublings, 1.0, bits) != 2.0**-bits:
                return bits - 1
        return FP32_BITS

    @cached_property
    def rounding(self) -> str:
        doublings = max(0, self.bits + 1 - self.places)
        if doublings > self.doublings:
            return "unseen"
        return _mode(
            [self.multiplied(doublings, m, self.bits) for m in (1.5, -1.5, 0.5)], -self.bits
        )

    def sum_is_aligned(self) -> bool:
        """Whether the sum before takes part in the alignment of a block. Then products below the
        place that alignment to the sum keeps are cut away one by one, though together they come to
        a last place of the sum. It is True too where a block holds too few of them.
        """
        count = 2 ** (self.places + 1 - min(self.places, self.bits))
        if not 0 < count <= self.block:
            return True
        start = self.block if self.interleaved == 1 else 0
        after = [start + k for k in _turns(self.block, self.interleaved, self.interleaved - 1)]
        small = [term(k, 1.0, self.large - self.places - 1) for k in after[:count]]
        whole = self.observe([term(0, 1.0, self.large), *small], 2 * _LONGEST_BLOCK)
        return whole == 2.0**self.large

    @cached_property
    def chunk(self) -> int:
        """The products in a chunk. Beyond the chunk of a sum, what lies below the sum's last place
        rounds otherwise than beside it; 0 if it never does."""
        below, run = self.large - self.bits - 1, max(1, self.block * self.interleaved)
        # The addend beside L is one and a half units; for nearest modes it is half a unit and a
        # little. Only in another chunk it is rounded by itself first, and the little is lost.
        small = [(0, 1.5, below)]
        if self.rounding.startswith("nearest"):
            tiny = below - self.bits - 2
            small = [(0, 1.0, below)]
            small += [(1, 1.0, tiny)] if self.large - tiny <= self.places else []

        def at(k: int) -> float:
            terms = [term(k + i, m, e) for i, m, e in small]
            return self.observe([term(0, 1.0, self.large), *terms], 2 * _LONGEST_CHUNK)

        # `near` lies in the same block; where pairs take turns, these are positions 4 and 5.
        near = at(2 if self.third == 2 else 4)
        return next((k for k in range(run, _LONGEST_CHUNK, run) if at(k) != near), 0)

    def _outer(self, m: float, place: int) -> float:
        """m 2^-place L in the second chunk, beside L, or -L where m < 0, in the first."""
        sign = -1.0 if m < 0 else 1.0
        terms = [term(0, sign, self.large), term(self.chunk, m, self.large - place)]
        return self.observe(terms, 2 * _LONGEST_CHUNK) - sign * 2.0**self.large

    def outer_bits(self) -> int:
        kept = [
            j for j in range(1, FP32_BITS + 1) if self._outer(1.0, j) == 2.0 ** (self.large - j)
        ]
        return max(kept, default=0)

    def outer_rounding(self, bits: int) -> str:
        return _mode([self._outer(m, bits) for m in (1.5, -1.5, 0.5)], self.large - bits)


def _turns(block: int, interleaved: int, which: int) -> list[int]:
    """The positions of block `which` of a run in which blocks take turns in pairs."""
    if interleaved == 1:
        return list(range(block))
    run = range(block * interleaved)
    return [k for k in run if (k // 2) % interleaved == which]


def _mode(found: Sequence[float], place: int) -> str:
    """The mode that rounds 1.5, -1.5 and 0.5 units of 2^place to these values."""
    in_units = tuple(value / 2.0**place for value in found)
    return _MODES.get((in_units[0], in_units[1], in_units[2]), "unknown")

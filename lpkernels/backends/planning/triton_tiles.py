"""Shapes of the Triton kernels' tiles on a GPU: pure functions, the only place where they are
chosen. `lpkernels.backends.triton._config` has those of the interpreter beside them."""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.arithmetic import accumulator_from_ints
from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.backends.planning import triton_tiers as tiers
from lpkernels.formats import FixedFormat, format_from_ints

#: The narrowest padding of an operand, and what divides where its lanes begin.
UNIT = 32
_WARP = 32
# Outputs of a program of the float64 kernels, and columns where they are many.
_OUTPUTS, _LONG = 1024, 256


class Tile(NamedTuple):
    """BM x BN outputs of one program, and its warps."""

    bm: int
    bn: int
    warps: int


class Beside(NamedTuple):
    """What takes registers beside a tile's sums.

    chunked: outer sums. short: these are rounded in a few operations, to nearest even in a float
    format with a mantissa. outer_philox: they draw. random_bits, philox: of the draws of a
    stochastic sum, 0 of any other.
    """

    chunked: bool
    short: bool
    outer_philox: bool
    random_bits: int
    philox: bool


def power_of_two(x: int) -> int:
    """The smallest power of two that is at least x and 1."""
    return 1 << max(x - 1, 0).bit_length()


def transposes(m: int, n: int) -> bool:
    """Whether a product's rows go along the long side of tiles, because its columns are few."""
    return n < m and n < _LONG


def exact_tile(m: int, n: int, matrices: int, processors: int) -> Tile:
    """Of the float64 kernels: 4 x 256 outputs by 4 warps, less where programs would be too few.

    A thread then owns 4 rows of 2 columns: two sums to an operand that it loads, and registers for
    every format and mode (counted for sm_90: at most 255, nothing spilled). `processors` have two
    programs each before tiles get smaller.
    """
    bn = min(_LONG, max(_WARP, power_of_two(n)))
    bm = min(_OUTPUTS // bn, power_of_two(m))
    while matrices * -(-m // bm) * -(-n // bn) < 2 * processors and bm * bn > _WARP:
        if bn > 2 * _WARP * bm:
            bn //= 2
        elif bm > 1:
            bm //= 2
        else:
            bn //= 2
    return Tile(bm, bn, min(4, max(1, bm * bn // _WARP)))


def certified_tile(
    m: int,
    n: int,
    matrices: int,
    processors: int,
    most: Tile,
    chunks: int = 1,
    *,
    doubles: bool = False,
) -> Tile:
    """Of the certified kernels: that of `largest_tile` or one of as many sums a thread or fewer.

    Never wider than the narrowest padding of an operand, so that what lies behind its lanes is
    never summed. chunks: of each sum, which several programs can share (`triton_splits`); the
    outputs of a tile are then the same for all tiers. doubles: sums are float64.
    """
    bm, bn = min(most.bm, power_of_two(m)), min(most.bn, power_of_two(max(UNIT, n)))
    if chunks > 1:
        bn = _narrowed(n, bn)
        # A warp gets as many sums as one of the largest tile has.
        bm = min(power_of_two(m), max(most.bm, most.bm * most.bn // (most.warps * bn)))
    programs = max(chunks, 1) * matrices
    while programs * -(-m // bm) * -(-n // bn) < processors and bm * bn > 16 * _WARP:
        if bn > 16 * bm:
            bn //= 2
        else:
            bm //= 2
    # A thread gets as many sums as one of the largest tile has. 16 are enough where nobody shares
    # them, and with tables float64 has no room for more.
    sums, warps = max(1, most.bm * most.bn // (_WARP * most.warps)), most.warps
    if chunks > 1 and doubles:
        warps = max(warps, most.bm * most.bn // (_WARP * 16))
    lanes = _WARP * (sums if chunks > 1 and not doubles else min(16, sums))
    return Tile(bm, bn, min(warps, max(1, bm * bn // lanes)))


def _narrowed(n: int, bn: int) -> int:
    """The widest of bn columns, half of them and so on to `UNIT` that leave no more than an eighth
    of their columns beyond those that `UNIT` would cover."""
    fewest = -(-n // UNIT) * UNIT
    while bn > UNIT and 8 * (-(-n // bn) * bn) > 9 * fewest:
        bn //= 2
    return bn


def outer_tile(tile: Tile) -> Tile:
    """Of the kernel that adds the sums of chunks, which wait for each other: a sum a thread."""
    return Tile(1, min(_WARP, tile.bn), 1)


def beside(acc: tuple[int, ...]) -> Beside:
    """Of an Accumulator's integers."""
    parsed, outer = accumulator_from_ints(acc), format_from_ints(acc[InAccumulator.OUTER])
    nearest = parsed.outermost_rounding == "nearest_even"
    plain = not isinstance(outer, FixedFormat) and getattr(outer, "man_bits", 0) > 0
    return Beside(
        chunked=parsed.chunk is not None,
        short=nearest and plain,
        outer_philox=parsed.outermost_rounding == "stochastic" and parsed.rng == "philox",
        random_bits=parsed.random_bits if parsed.rounding == "stochastic" else 0,
        philox=parsed.rounding == "stochastic" and parsed.rng == "philox",
    )


def largest_tile(tier: int, needs: Beside, swapped: bool) -> Tile:
    """As many of a tier's sums as have room in registers: 64 a thread, 128 of half precision, 32 of
    float64 or with outer sums or words of draws beside them, 16, 8 or 4 where those take more."""
    if needs.philox:
        return Tile(4, 256, 8) if needs.random_bits > 8 else Tile(8, 256, 4)
    if needs.random_bits > 16:
        return Tile(8, 256, 4)
    if needs.chunked and not needs.short:
        return Tile(4 if needs.outer_philox else 8, 256, 4)
    if tier >= tiers.FUSED64 or needs.chunked or needs.random_bits:
        return Tile(8, 512, 4)
    if tier < tiers.PLAIN:
        # With rows for columns 128 sums a thread would not have room.
        return Tile(8 if swapped else 16, 512, 2)
    return Tile(16, 512, 4)

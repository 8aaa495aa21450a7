"""The places of a format's integers (`to_ints`), for code that reads them and makes no format.

fmt[KIND] is one of FLOAT, FIXED, AFFINE and BLOCK; the class of that kind below says where the rest
stands: fmt[InFloat.MAN_BITS]. A quantizer's integers begin with its format's.
"""

from __future__ import annotations

from typing import TypeAlias

Ints: TypeAlias = tuple[int, ...]

KIND = 0
FLOAT, FIXED, AFFINE, BLOCK = range(4)


class InFloat:
    EXP_BITS, MAN_BITS, BIAS, SPECIALS, SUBNORMALS, OVERFLOW = range(1, 7)


class InFixed:
    WORD_BITS, FRAC_BITS, SIGNED, OVERFLOW = range(1, 5)


class InAffine:
    BITS, SYMMETRIC, HAS_AXIS, AXIS = range(1, 5)


class InBlock:
    SIZE, AXIS = 1, 2
    ELEMENT = slice(8, 16)


def takes_scales(fmt: Ints) -> bool:
    """Whether the tensor's values set the scale: of every block, of every slice or of the whole."""
    return fmt[KIND] == AFFINE or fmt[KIND] == BLOCK


def axis(fmt: Ints) -> int | None:
    """The axis along which a format takes its scales; None if there is none."""
    if fmt[KIND] == BLOCK:
        return fmt[InBlock.AXIS]
    return fmt[InAffine.AXIS] if fmt[KIND] == AFFINE and fmt[InAffine.HAS_AXIS] else None


def counted_rank(kind: int, rank: int) -> int:
    """The number of dimensions along which a format of this kind can take its scales in a tensor of
    this rank. A scalar counts as a vector of one element for blocks; it has no slices."""
    return max(rank, 1) if kind == BLOCK else rank


def element(fmt: Ints) -> Ints:
    """The format of a block's elements; any other format itself."""
    return fmt[InBlock.ELEMENT] if fmt[KIND] == BLOCK else fmt


def code_bits(fmt: Ints) -> int:
    """The bits of one value's code; a block format's scale is not counted."""
    one = element(fmt)
    if one[KIND] == FIXED:
        return one[InFixed.WORD_BITS]
    return 1 + one[InFloat.EXP_BITS] + one[InFloat.MAN_BITS]

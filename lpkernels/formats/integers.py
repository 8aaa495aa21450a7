"""The places of a format's integers (`to_ints`), for code that reads them and makes no format.

fmt[KIND] is one of FLOAT, FIXED, AFFINE, BLOCK and TABLE; the class of that kind below says where
the rest stands: fmt[InFloat.MAN_BITS]. A quantizer's integers begin with its format's.
"""

from __future__ import annotations

from typing import TypeAlias

Ints: TypeAlias = tuple[int, ...]

KIND = 0
# Values of fmt[InFloat.SPECIALS]; the last two have one zero.
IEEE, FN, NONE, FNUZ, P3109 = range(5)
FLOAT, FIXED, AFFINE, BLOCK, TABLE = range(5)


class InFloat:
    EXP_BITS, MAN_BITS, BIAS, SPECIALS, SUBNORMALS, OVERFLOW, UNSIGNED = range(1, 8)


class InFixed:
    WORD_BITS, FRAC_BITS, SIGNED, OVERFLOW = range(1, 5)


class InAffine:
    BITS, SYMMETRIC, HAS_AXIS, AXIS = range(1, 5)


class InBlock:
    """SIZE along the axis, or the columns of tiles; LINES is the rows of tiles, or ROW, or TENSOR.

    TARGET holds the bits of two float32 numbers: in its low half those of `target` or one of
    `CANDIDATES`, in its high half those of `scale_target`; 0 is the default of either. A scale that
    is a FloatFormat stands behind the element.
    """

    SIZE, AXIS, LINES, SCALE, RULE, TARGET, STEPS = range(1, 8)
    ELEMENT = slice(8, 16)
    SCALE_FORMAT = slice(16, 24)


class InTable:
    """HANDLE stands for a table that was made in this process (`TableFormat.handle`); INFINITY is 1
    where an infinity becomes NaN; NAN_CODE is -1 where NaN has no code."""

    HANDLE, BITS, COUNT, INFINITY, NAN_CODE = range(1, 6)


#: Values of fmt[InBlock.LINES] beside the number of rows; 0: blocks along one axis.
ROW, TENSOR = -1, -2
#: Values of fmt[InBlock.SCALE]: the last three are FloatFormats, the last two of them with one
#: scale more for the tensor, or for each line along the axis.
E8M0, FP32_SCALE, FLOAT_SCALE, TENSOR_SCALE, LINE_SCALE = range(5)
#: By their names, the two metrics that choose between two codes of a block; no normal float32 has
#: these bits.
CANDIDATES = {"4or6mae": 1, "4or6mse": 2}
#: Values of fmt[InBlock.RULE], and of fmt[InBlock.STEPS], by position.
RULES = ("floor", "ceil", "even", "up", "nearest")
STEPS = ("exact", "te", "torchao", "deepgemm")
#: fmt[InBlock.AXIS] of blocks along the summed dimension of the product that reads them.
AXIS_K = 64


# FP32.to_ints().
_FP32: Ints = (FLOAT, 8, 23, 127, 0, 1, 0, 0)


def takes_scales(fmt: Ints) -> bool:
    """Whether the tensor's values set the scale: of every block, of every slice or of the whole."""
    return fmt[KIND] == AFFINE or fmt[KIND] == BLOCK


def axis(fmt: Ints) -> int | None:
    """The axis along which a format takes its scales; None if there is none."""
    if fmt[KIND] == BLOCK:
        return None if fmt[InBlock.LINES] == TENSOR else fmt[InBlock.AXIS]
    return fmt[InAffine.AXIS] if fmt[KIND] == AFFINE and fmt[InAffine.HAS_AXIS] else None


def counted_rank(kind: int, rank: int) -> int:
    """The number of dimensions along which a format of this kind can take its scales in a tensor of
    this rank. A scalar counts as a vector of one element for blocks; it has no slices."""
    return max(rank, 1) if kind == BLOCK else rank


def element(fmt: Ints) -> Ints:
    """The format of a block's elements; any other format itself."""
    return fmt[InBlock.ELEMENT] if fmt[KIND] == BLOCK else fmt


def block_by_block(fmt: Ints) -> bool:
    """Whether a block format is packed block by block: a scale byte, then the block's elements.
    The others are packed apart: the tensor's scale, all scales, all elements."""
    return fmt[InBlock.SCALE] == E8M0 and fmt[InBlock.LINES] == 0


def without_zero(fmt: Ints) -> bool:
    """Whether a block format's element has no zero. It is a table then, whose float32 scale is
    written as a FloatFormat's is: such a scale is 0 in a block of zeros."""
    table = fmt[KIND] == BLOCK and fmt[InBlock.ELEMENT][KIND] == TABLE
    return table and fmt[InBlock.SCALE] == FLOAT_SCALE


def follows_from_values(fmt: Ints) -> bool:
    """Whether values tell a block format's codes and scales: those of blocks with power-of-two
    scales that are rounded down. Blocks of `linear4` tell them too: their largest value is the
    scale."""
    if without_zero(fmt):
        return fmt[InBlock.LINES] == 0 and fmt[InBlock.TARGET] == 0
    return block_by_block(fmt) and RULES[fmt[InBlock.RULE]] == "floor"


def has_tensor_scale(fmt: Ints) -> bool:
    """Whether a block format has a scale of the tensor or of every line beside those of blocks."""
    return fmt[InBlock.SCALE] >= TENSOR_SCALE


def takes_amax(fmt: Ints) -> bool:
    """Whether a scale belongs to the whole tensor or to whole lines, beside those of blocks, so
    that the largest magnitude can be given."""
    whole = fmt[InBlock.LINES] == TENSOR or has_tensor_scale(fmt)
    return fmt[KIND] == BLOCK and whole


def has_total(fmt: Ints) -> bool:
    """Whether a scale of a block format multiplies the result of a product."""
    return fmt[InBlock.LINES] in (ROW, TENSOR) or has_tensor_scale(fmt)


def has_totals_of_lines(fmt: Ints) -> bool:
    """Whether each line of a tensor has a scale of its own that multiplies a product's result."""
    return fmt[InBlock.LINES] == ROW or fmt[InBlock.SCALE] == LINE_SCALE


def has_candidates(fmt: Ints) -> bool:
    """Whether a block format chooses between two codes of every block."""
    return fmt[KIND] == BLOCK and fmt[InBlock.TARGET] & 0xFFFFFFFF in CANDIDATES.values()


def scale_format(fmt: Ints) -> Ints | None:
    """The float format of a block format's scales; None for powers of two."""
    if fmt[InBlock.SCALE] == E8M0:
        return None
    return fmt[InBlock.SCALE_FORMAT] or _FP32


def scale_bits(fmt: Ints) -> int:
    """The bits of the code of a block's scale."""
    scale = scale_format(fmt)
    return 8 if scale is None else code_bits(scale)


def code_bits(fmt: Ints) -> int:
    """The bits of one value's code; a block format's scale is not counted."""
    number = element(fmt)
    if number[KIND] == FIXED:
        return number[InFixed.WORD_BITS]
    if number[KIND] == TABLE:
        return number[InTable.BITS]
    return (not number[InFloat.UNSIGNED]) + number[InFloat.EXP_BITS] + number[InFloat.MAN_BITS]


def has_every_float_code(fmt: Ints) -> bool:
    """Whether a float format has codes for NaN and for the infinities that rounding to it makes."""
    specials = fmt[InFloat.SPECIALS]
    return specials in (FN, FNUZ, P3109) or (specials == IEEE and fmt[InFloat.MAN_BITS] > 0)


def is_mx(fmt: Ints) -> bool:
    """Whether a block format is OCP's: blocks of 32 along one axis with a power-of-two scale."""
    return block_by_block(fmt) and fmt[InBlock.SIZE] == 32


def has_table(*formats: Ints) -> bool:
    """Whether a format, or the element of one, is a table; integers may follow the format's, and ()
    is no format."""
    return any(len(fmt) > 0 and element(fmt)[KIND] == TABLE for fmt in formats)


def for_table(op: str, *formats: Ints) -> str:
    """What `Backend.unsupported` calls an operation with these formats: a name ends in "_table"
    where one of them is a table."""
    return f"{op}_table" if has_table(*formats) else op

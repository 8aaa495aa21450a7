"""The operands that an accumulator with groups takes, as the instructions of its unit do."""

from __future__ import annotations

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import E4M3FN, BlockFormat, FloatFormat

# A scale's format and how many products of a row it belongs to.
_Kind = tuple[FloatFormat | str, int]


def least_of_scales(
    acc: Accumulator, left: BlockFormat | None, right: BlockFormat | None, sizes: tuple[int, int]
) -> int:
    """The least exponent that a scale counts with.

    Args:
        left, right: the formats of the operands; None: a plain tensor.
        sizes: the lengths of their blocks along k; 0: none.
    Raises:
        ValueError: an operand that no instruction of the unit takes.
    """
    kinds = [_kind(acc, *each) for each in zip((0, 1), (left, right), sizes, strict=True)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"matmul: group={acc.group} takes one kind of scales, got a in {left} and b in "
            f"{right}; use blocks of one length and one scale format on both sides"
        )
    scale, _ = kinds[0]
    return scale.emin if isinstance(scale, FloatFormat) else -127


def _kind(acc: Accumulator, side: int, fmt: BlockFormat | None, size: int) -> _Kind:
    assert acc.operands is not None
    name, element = "ab"[side], acc.operands[side]
    taken = _kinds(acc)
    wanted = " or ".join(f"blocks of {n} with {scale} scales" for scale, n in taken)
    if fmt is None:
        raise ValueError(
            f"matmul: group={acc.group} multiplies codes by their scales in every block, and "
            f"{name} is a plain tensor; pass lp.scaled({name}, fmt) with {wanted} of {element}"
        )
    if not isinstance(fmt.element, FloatFormat) or _shape(fmt.element) != _shape(element):
        other = "" if acc.group != 1 else ", or an accumulator with operands of that format"
        raise ValueError(
            f"matmul: {name} in {fmt} has codes of {fmt.element}, and the accumulator takes "
            f"operands={element} there; use {wanted} of {element}{other}"
        )
    if (fmt.scale, size) not in taken:
        raise ValueError(
            f"matmul: {name} in {fmt} has {fmt.scale} scales of {size or 'all'} products along the "
            f"sum, and group={acc.group} takes {wanted}; make them so"
        )
    return fmt.scale, size


def _shape(fmt: FloatFormat) -> tuple[int, int, int]:
    """Formats alike in this differ in their largest values at most."""
    return fmt.exp_bits, fmt.man_bits, fmt.bias


def _kinds(acc: Accumulator) -> list[_Kind]:
    """What the block-scaled instructions take: one e8m0 scale a step (mxf8f6f4), or one for one or
    two groups, or an e4m3 scale for each (mxf4nvf4)."""
    assert acc.group is not None and acc.block is not None
    if acc.group == 1:
        return [("e8m0", acc.block)]
    return [("e8m0", acc.group), ("e8m0", 2 * acc.group), (E4M3FN, acc.group)]

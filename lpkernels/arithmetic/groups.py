"""The operands that an accumulator with groups takes, as the instructions of its unit do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lpkernels.arithmetic._accumulator import Accumulator
from lpkernels.formats import E4M3FN, BlockFormat, FloatFormat, Format


class Side(NamedTuple):
    """The format of an operand, None for a plain tensor, and the axis of its sum, -1 or -2."""

    fmt: Format | None
    along: int


# A scale's format and how many products of a row it belongs to.
_Kind = tuple[FloatFormat | str, int]


def check_operands(label: str, acc: Accumulator, operands: Mapping[str, Side]) -> None:
    """Checks the left and the right operand of a product in acc, by name.

    Raises:  ValueError: one that no instruction of the unit takes; label begins the message.
    """
    assert acc.operands is not None
    elements = zip(operands.items(), acc.operands, strict=True)
    kinds = [_kind(label, acc, name, side, element) for (name, side), element in elements]
    if kinds[0] != kinds[1]:
        given = " and ".join(f"{name} in {side.fmt}" for name, side in operands.items())
        raise ValueError(
            f"{label}: group={acc.group} takes one kind of scales, got {given}; use blocks of one "
            "length and one scale format on both sides"
        )


def _kind(label: str, acc: Accumulator, name: str, side: Side, element: FloatFormat) -> _Kind:
    taken, fmt = _kinds(acc), side.fmt
    lengths = " or ".join(f"blocks of {n} with {scale} scales" for scale, n in taken)
    wanted = f"{lengths} of {element}"
    if not isinstance(fmt, BlockFormat):
        raise ValueError(
            f"{label}: group={acc.group} multiplies codes by their scales in every block, and "
            f"{name} has none; use lp.scaled or a quantizer with {wanted}"
        )
    if not isinstance(fmt.element, FloatFormat) or _shape(fmt.element) != _shape(element):
        other = "" if acc.group != 1 else ", or an accumulator with operands of that format"
        raise ValueError(
            f"{label}: {name} in {fmt} has codes of {fmt.element}, and the accumulator takes "
            f"operands={element} there; use {wanted}{other}"
        )
    size = _length(fmt, side.along)
    if (fmt.scale, size) not in taken:
        raise ValueError(
            f"{label}: {name} in {fmt} has {fmt.scale} scales of {size or 'all'} products along "
            f"the sum, and group={acc.group} takes {lengths}; make them so"
        )
    return fmt.scale, size


def _shape(fmt: FloatFormat) -> tuple[int, int, int]:
    """Formats alike in this differ in their largest values at most."""
    return fmt.exp_bits, fmt.man_bits, fmt.bias


def _length(fmt: BlockFormat, along: int) -> int:
    """How many products of a row have one scale; 0: all."""
    size = fmt.block_size
    if isinstance(size, tuple):
        return size[1] if along == -1 or fmt.axis == "k" else size[0]
    return 0 if isinstance(size, str) else size


def _kinds(acc: Accumulator) -> list[_Kind]:
    """What the block-scaled instructions take: one e8m0 scale a step (mxf8f6f4), or one for one or
    two groups, or an e4m3 scale for each (mxf4nvf4)."""
    assert acc.group is not None and acc.block is not None
    if acc.group == 1:
        return [("e8m0", acc.block)]
    return [("e8m0", acc.group), ("e8m0", 2 * acc.group), (E4M3FN, acc.group)]

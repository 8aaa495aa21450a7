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


def check_operands(label: str, acc: Accumulator, operands: Mapping[str, Side]) -> None:
    """Checks the left and the right operand of a product in acc, by name.

    Raises:  ValueError: one that no instruction of the unit takes; label begins the message.
    """
    assert acc.operands is not None and acc.group is not None
    # A scale's format and the products of a row that it belongs to: of mxf8f6f4 one e8m0 scale a
    # step, of mxf4nvf4 one for one or two groups, or an e4m3 scale for each.
    kinds: list[tuple[FloatFormat | str, int]] = [("e8m0", acc.block or 0)]
    if acc.group > 1:
        kinds = [("e8m0", acc.group), ("e8m0", 2 * acc.group), (E4M3FN, acc.group)]
    lengths = " or ".join(f"blocks of {length} with {scale} scales" for scale, length in kinds)
    scales = set()
    for (name, (fmt, along)), element in zip(operands.items(), acc.operands, strict=True):
        if (
            not isinstance(fmt, BlockFormat)
            or not isinstance(fmt.element, FloatFormat)
            or _shape(fmt.element) != _shape(element)
            or (fmt.scale, _length(fmt, along)) not in kinds
        ):
            raise ValueError(
                f"{label}: group={acc.group} multiplies codes of {element} by their scales in "
                f"every block, got {name} in {fmt or 'float32'}; use {lengths} of {element} along "
                "the sum"
            )
        scales.add((fmt.scale, _length(fmt, along)))
    if len(scales) > 1:
        both = " and ".join(f"{name} in {side.fmt}" for name, side in operands.items())
        raise ValueError(
            f"{label}: group={acc.group} takes one kind of scales, got {both}; use blocks of one "
            "length and one scale format on both sides"
        )


def _shape(fmt: FloatFormat) -> tuple[int, int, int]:
    """Formats alike in this differ in their largest values at most."""
    return fmt.exp_bits, fmt.man_bits, fmt.bias


def _length(fmt: BlockFormat, along: int) -> int:
    """How many products of a row have one scale; 0: all."""
    size = fmt.block_size
    if isinstance(size, tuple):
        return size[1] if along == -1 or fmt.axis == "k" else size[0]
    return 0 if isinstance(size, str) else size

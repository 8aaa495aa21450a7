"""Precision at run time: the widths of the quantizers of a layer or of a whole model."""

from __future__ import annotations

from typing import Any

from lpkernels.arithmetic import Recipe, check_axes, with_precision
from lpkernels.arithmetic.precisions import Formats, checked_bits, checked_forward_bits


def changed(
    owner: str, layer: Any, forward_bits: Any, backward_bits: Any, formats: Formats | None
) -> Recipe:
    """The recipe of a layer in another precision; owner names it in errors."""
    forward = checked_forward_bits(forward_bits)
    backward = checked_bits("backward_bits", backward_bits)
    try:
        new = with_precision(layer.recipe, forward, backward, formats)
    except ValueError as error:
        raise ValueError(f"set_precision: {owner} {error}") from error
    if new.axes:
        check_axes(new, *layer._ranks(), owner=f"set_precision: {owner}")
    return new

"""A Recipe for torch.compile, whose formats a compiled graph reads when it runs.

The numbers of its formats and roundings are rows of a tensor, an input of the graph. Another recipe
of the same structure is another tensor: the graph stays. Part of the structure, on which the graph
depends, are: which tensors are rounded, and by which block and affine formats; which quantizers
draw random bits; which products are native; and the size of the codes kept for backward, 4, 8 or 16
bits a value, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from lpkernels import ops
from lpkernels.arithmetic import PRODUCTS, QUANTIZERS, Accumulator, Quantizer, Recipe
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.ops import ROW, Ints, Row

_MODE = 4
_CODE_SIZES = (4, 8, 16)


@dataclass(frozen=True)
class _Quantizer:
    """What a layer asks of a Quantizer."""

    row: Row
    is_stochastic: bool

    def to_ints(self) -> Row:
        return self.row


@dataclass(frozen=True)
class _Accumulator:
    """What a layer asks of an Accumulator that is not native."""

    row: Row
    is_stochastic: bool
    order: str
    is_native: bool = False

    def to_ints(self) -> Row:
        return self.row


@dataclass(frozen=True, init=False)
class TabledRecipe(Recipe):
    """A Recipe whose parts stand in a table where they can."""


def tabled(recipe: Recipe) -> TabledRecipe:
    """recipe for torch.compile, with a table of its own."""
    parts = {name: getattr(recipe, name) for name in QUANTIZERS + PRODUCTS}
    table = torch.zeros(len(parts), ROW, dtype=torch.int64, device="cpu")
    made = object.__new__(TabledRecipe)
    for index, (name, part) in enumerate(parts.items()):
        object.__setattr__(made, name, _tabled(part, table, index))
    return made


def _tabled(
    part: Quantizer | Accumulator | None, table: torch.Tensor, index: int
) -> Quantizer | Accumulator | None:
    if isinstance(part, Accumulator):
        if part.is_native:
            return part
        order = "native" if part.order == "native" else "emulated"
        row = _row(part.to_ints(), table, index, False, 0)
        return cast(Accumulator, _Accumulator(row, part.is_stochastic, order))
    if part is None or not isinstance(part.fmt, FloatFormat | FixedFormat):
        return part
    ints = part.to_ints()
    row = _row(ints, table, index, ops.fuses(ints), _kept_bits(ints[:-_MODE]))
    return cast(Quantizer, _Quantizer(row, part.is_stochastic))


def _row(ints: Ints, table: torch.Tensor, index: int, fuses: bool, kept_bits: int) -> Row:
    table[index, : len(ints) + 1] = torch.tensor([len(ints), *ints], device="cpu")
    return Row(table, index, fuses, kept_bits)


def _kept_bits(fmt: Ints) -> int:
    if not ops.has_every_code(fmt):
        return 0
    return next((size for size in _CODE_SIZES if ops.code_bits(fmt) <= size), 0)

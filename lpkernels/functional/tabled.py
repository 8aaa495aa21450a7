"""A Recipe for torch.compile: the compiled graph reads its formats when it runs.

The numbers of its formats and roundings are rows of a tensor, an input of the graph. Another recipe
of the same structure is another tensor, and the graph stays. The graph depends on the structure
alone: which tensors are rounded; which of them products can round themselves (to float and fixed
formats without random bits); which quantizers draw random bits; which products are native; the size
of the codes kept for backward; and the axes of formats that have one. Codes of a float format are
kept in 4, 8 or 16 bits a value, codes of a block format in the sizes of its elements and blocks,
others not at all. A recipe that takes turns with others has a structure with room for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lpkernels import ops
from lpkernels.arithmetic import PRODUCTS, QUANTIZERS, Accumulator, Axis, Quantizer, Recipe, axes
from lpkernels.arithmetic.by_product import Readings, plain_readings
from lpkernels.arithmetic.precisions import in_place_of
from lpkernels.formats import BlockFormat, Format
from lpkernels.formats.integers import AFFINE, BLOCK, KIND, InBlock, code_bits, follows_from_values
from lpkernels.ops import ROW, Ints, Row

_MODE = 4
_CODE_SIZES = (4, 8, 16)


class _Codes(NamedTuple):
    """The last fields of a Row: the bits of a code, and size and axis of blocks with a scale."""

    bits: int
    block_size: int = 0
    axis: int = 0


_NO_CODES = _Codes(0)


@dataclass(frozen=True)
class _Quantizer:
    """A Quantizer as far as a layer asks about it."""

    row: Row
    is_stochastic: bool
    fmt: Format
    fuses: bool

    def to_ints(self) -> Row:
        return self.row


@dataclass(frozen=True)
class _Accumulator:
    """An Accumulator that is not native, as far as a layer asks about it."""

    row: Row
    is_stochastic: bool
    order: str
    is_native: bool = False

    def to_ints(self) -> Row:
        return self.row

    def exchanged(self) -> _Accumulator:
        return _Accumulator(self.row.exchanged(), self.is_stochastic, self.order)


@dataclass(frozen=True, init=False)
class TabledRecipe(Recipe):
    """A Recipe whose parts stand in a table where they can."""

    def _readings(self) -> Readings:
        return plain_readings(self)


def tabled(recipe: Recipe, formats: Sequence[Format] = ()) -> Recipe:
    """recipe for torch.compile, with a table of its own.

    A quantizer of one of the formats may get any of the others later, and is ready for all. A
    recipe whose products read codes of their own is a constant of the graph, and has no table; so
    is one that takes turns with such formats.
    """
    scaled = [fmt.to_ints() for fmt in formats if isinstance(fmt, BlockFormat)]
    if recipe.readings.by_product or not all(map(follows_from_values, scaled)):
        return recipe
    in_table = object.__new__(TabledRecipe)
    numbers, lengths, parts, recipe_axes = _rows(recipe, tuple(formats))
    table = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    for index, (name, part, fuses, codes) in enumerate(parts):
        row = Row(table, index, fuses, *codes)
        object.__setattr__(in_table, name, _in_table(part, row) if lengths[index] else part)
    object.__setattr__(in_table, "input_range", recipe.input_range)
    in_table._learn(recipe_axes)
    return in_table


def _in_table(part: Any, row: Row) -> _Quantizer | _Accumulator:
    if isinstance(part, Quantizer):
        return _Quantizer(row, part.is_stochastic, part.fmt, row.fuses)
    order = "native" if part.order == "native" else "emulated"
    return _Accumulator(row, part.is_stochastic, order)


@lru_cache(maxsize=1024)
def _rows(
    recipe: Recipe, formats: tuple[Format, ...]
) -> tuple[NDArray[np.int64], list[int], list[tuple[str, Any, bool, _Codes]], tuple[Axis, ...]]:
    """The table, with an empty row for a part that rounds nothing; each part with the fields of its
    Row; and the axes of all quantizers that may stand in a row."""
    rows, parts, quantizers = [], [], []
    for name in QUANTIZERS + PRODUCTS:
        part = getattr(recipe, name)
        ints: Ints = ()
        fuses, codes = False, _NO_CODES
        if isinstance(part, Accumulator):
            ints = () if part.is_native else part.to_ints()
        elif part is not None:
            ints = part.to_ints()
            options = _options(part, formats)
            quantizers += [(name, option) for option in options]
            fuses = all(option.fuses for option in options)
            codes = _codes([option.to_ints()[:-_MODE] for option in options])
        rows.append([len(ints), *ints] + [0] * (ROW - 1 - len(ints)))
        parts.append((name, part, fuses, codes))
    recipe_axes = tuple(dict.fromkeys(axes(quantizers)))
    return np.array(rows, np.int64), [row[0] for row in rows], parts, recipe_axes


def _options(part: Quantizer, formats: tuple[Format, ...]) -> list[Quantizer]:
    """The quantizers that may stand in the row of part; part is one of them."""
    turns = [in_place_of(part.fmt, fmt) for fmt in formats]
    return [replace(part, fmt=fmt) for fmt in turns] if part.fmt in turns else [part]


def _codes(formats: list[Ints]) -> _Codes:
    """Room for the codes of each of these formats."""
    blocks = [fmt for fmt in formats if fmt[KIND] == BLOCK]
    axes = {fmt[InBlock.AXIS] for fmt in blocks}
    if len(axes) > 1 or not all(fmt[KIND] != AFFINE and ops.has_every_code(fmt) for fmt in formats):
        return _NO_CODES
    bits = max(code_bits(fmt) for fmt in formats)
    if blocks:
        return _Codes(bits, min(fmt[InBlock.SIZE] for fmt in blocks), *axes)
    return _Codes(next((size for size in _CODE_SIZES if bits <= size), 0))

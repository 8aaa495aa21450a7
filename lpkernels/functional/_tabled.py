"""A Recipe for torch.compile, whose formats a compiled graph reads when it runs.

The numbers of its formats and roundings are rows of a tensor, an input of the graph. Another recipe
of the same structure is another tensor: the graph stays. Part of the structure, on which the graph
depends, are: which tensors are rounded, and by which block and affine formats; which quantizers
draw random bits; which products are native; and the size of the codes kept for backward, 4, 8 or 16
bits a value, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
    made = object.__new__(TabledRecipe)
    numbers, lengths, parts = _read(recipe)
    table = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    for index, (name, part, fuses, kept_bits) in enumerate(parts):
        row = Row(table, index, fuses, kept_bits)
        object.__setattr__(made, name, _in_table(part, row) if lengths[index] else part)
    return made


def _in_table(part: Any, row: Row) -> _Quantizer | _Accumulator:
    if isinstance(part, Quantizer):
        return _Quantizer(row, part.is_stochastic)
    order = "native" if part.order == "native" else "emulated"
    return _Accumulator(row, part.is_stochastic, order)


@lru_cache(maxsize=256)
def _read(
    recipe: Recipe,
) -> tuple[NDArray[np.int64], list[int], list[tuple[str, Any, bool, int]]]:
    """The table, with empty rows for what stays as it is, and each part with what its Row needs."""
    rows, parts = [], []
    for name in QUANTIZERS + PRODUCTS:
        part = getattr(recipe, name)
        ints: Ints = ()
        fuses, kept_bits = False, 0
        if isinstance(part, Accumulator):
            ints = () if part.is_native else part.to_ints()
        elif part is not None and isinstance(part.fmt, FloatFormat | FixedFormat):
            ints = part.to_ints()
            fuses, kept_bits = ops.fuses(ints), _kept_bits(ints[:-_MODE])
        rows.append([len(ints), *ints] + [0] * (ROW - 1 - len(ints)))
        parts.append((name, part, fuses, kept_bits))
    return np.array(rows, np.int64), [row[0] for row in rows], parts


def _kept_bits(fmt: Ints) -> int:
    if not ops.has_every_code(fmt):
        return 0
    return next((size for size in _CODE_SIZES if ops.code_bits(fmt) <= size), 0)

"""Descriptions: the integers of formats, quantizers and accumulators, as operators take them.

A compiled graph reads its descriptions from a table when it runs, and has no constants for them.
The integers stand in the rows of the table, an int64 tensor on the CPU and an input of the graph,
so the graph stays while they change. An operator with descriptions among its arguments has one
argument more, the table; each description is then the number of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import accumulator_from_ints, quantizer_from_ints
from lpkernels.arithmetic.integers import (
    NATIVE,
    SEQUENTIAL,
    InAccumulator,
    InQuantizer,
    exchanged,
    has_core,
    has_running_sum,
)
from lpkernels.backends import KINDS, Backend
from lpkernels.formats import format_from_ints
from lpkernels.formats.integers import (
    AFFINE,
    BLOCK,
    FLOAT,
    KIND,
    TABLE,
    InTable,
    Ints,
    code_bits,
    follows_from_values,
    for_table,
    has_every_float_code,
    without_zero,
)
from lpkernels.formats.integers import axis as axis_of
from lpkernels.rounding import STOCHASTIC

_WHOLE = slice(None)
#: The argument of an operator that holds the table of its descriptions.
TABLE_NAME = "table"
# How an empty description crosses to an operator: AOTInductor would hand over an empty list as None
# (pytorch issue 194324). A row is one number, and every description has at least eight.
NOTHING = (0, 0)
# The length of a row: the number of its description's integers, these integers, and zeros. An
# accumulator with operands has the longest description.
ROW = 1 + InAccumulator.ALL
# How many descriptions of a kind are remembered.
_MOST = 4096
_VALUE_BITS = 32


class Row(NamedTuple):
    """A description in a table, and the fields that the graph itself depends on."""

    table: Tensor
    number: int
    fuses: bool
    # The bits in which a code of the format is kept, 0 where it is not; and, unless 0, the size of
    # the blocks along axis that have a byte more.
    kept_bits: int
    block_size: int = 0
    axis: int = 0

    def exchanged(self) -> Row:
        """The row of an accumulator, read as `Accumulator.exchanged`."""
        return self._replace(number=~self.number)


def by_number(args: Sequence[Any]) -> Sequence[Any]:
    """args with rows, all of one table, as numbers, and the table behind them."""
    rows = [x for x in args if isinstance(x, Row)]
    if not rows:
        return args
    numbers = [(x.number,) if isinstance(x, Row) else x for x in args]
    return [*numbers, rows[0].table]


def crossed(ints: Sequence[int], table: Tensor | None = None, part: slice = _WHOLE) -> Ints:
    """The integers of a description, as an operator takes them. ints: the integers, or with a table
    the number of a row; part: the slice of that row to return."""
    if len(ints) == len(NOTHING):
        return ()
    return tuple(ints) if table is None or not ints else _in_row(table, ints[0])[part]


def _in_row(table: Tensor, number: int) -> Ints:
    count, *ints = table[max(number, ~number)].tolist()
    description = tuple(ints[:count])
    return exchanged(description) if number < 0 else description


def require(condition: bool, op: str, expected: str, got: object) -> None:
    """Raises ValueError, of an operator's argument, unless the condition holds."""
    if not condition:
        raise ValueError(f"lpkernels::_{op}: expected {expected}, got {got}")


def select(name: str, op: str, device: torch.device) -> Backend:
    """`backends.select`, which is not asked again where "auto" has chosen before."""
    if name == "auto" and backends.VARIABLE not in backends.ENVIRONMENT:
        chosen = backends.choices.get((op, device))
        if chosen is not None:
            return chosen
    return backends.select(name, op, device)


class Sums(NamedTuple):
    """An accumulator as the operators need it.

    products: by kind, what `Backend.unsupported` calls the operation that a product needs of a
        backend: an addition to the outermost sum where torch makes the inner ones. accumulate: what
        that calls such an addition. scaled: what it calls a product of scaled operands, whose inner
        sums are exact in any order, so also in that of k (by_scale). has_operands: whether operands
        have formats of their own.
    """

    acc: Ints
    native: bool
    draws: bool
    products: dict[str, str]
    accumulate: str
    scaled: str
    by_scale: Ints
    has_operands: bool


class Codes(NamedTuple):
    """A format as the operators that pack need it.

    pack, unpack: what `Backend.unsupported` calls packing and unpacking. every_code: whether every
    tensor of values that quantize makes has codes, with infinities and NaN. is_kept: whether codes
    take less memory than values, which tell them and the scales of their blocks.
    """

    ints: Ints
    axis: int | None
    pack: str
    unpack: str
    every_code: bool
    is_kept: bool
    without_zero: bool


class Rounds(NamedTuple):
    """A quantizer as the operators need it.

    op, counting_op, scaled_op: what `Backend.unsupported` calls rounding, rounding with counts or
    limits, and with parts. fuses: whether a product may apply it itself. codes: its format, None of
    an affine one.
    """

    ints: Ints
    axis: int | None
    draws: bool
    fuses: bool
    op: str
    counting_op: str
    scaled_op: str
    codes: Codes | None


K = TypeVar("K")


def _remembered(make: Callable[[Ints], K]) -> Callable[[Sequence[int]], K]:
    """make, which is called once for equal integers. A tuple that came before is found by its
    address alone: its hash would take longer than all other checks of a small product."""
    # A tuple is kept with its result, so no other one has its address.
    by_address: dict[int, tuple[Ints, K]] = {}
    by_value = lru_cache(_MOST)(make)

    def get(ints: Sequence[int]) -> K:
        entry = by_address.get(id(ints))
        if entry is not None and entry[0] is ints:
            return entry[1]
        result = by_value(tuple(ints))
        if type(ints) is tuple:
            if len(by_address) >= _MOST:
                by_address.clear()
            by_address[id(ints)] = (ints, result)
        return result

    return get


def parsed(kind: str, parse: Callable[[Ints], Any], ints: Ints) -> Any:
    """The object that the integers describe, if to_ints() gives them back: kernels believe them."""
    try:
        description = parse(ints)
        if description.to_ints() == ints:
            return description
    except (IndexError, OverflowError, TypeError, ValueError):
        pass
    raise ValueError(f"lpkernels: expected the integers of a {kind}'s to_ints(), got {ints}")


@_remembered
def sums(acc: Ints) -> Sums:
    stochastic, at = parsed("Accumulator", accumulator_from_ints, acc).is_stochastic, InAccumulator
    native, has_operands = acc[at.ORDER] == NATIVE, len(acc) > at.PLAIN
    order, formats = "" if has_running_sum(acc) else "_ordered", (at.FORMAT, at.PRODUCT, at.OUTER)
    if has_core(acc):
        order = "_cores"
    name = "_operands" if has_operands and not has_core(acc) else order
    suffix = for_table(name, *(acc[part] for part in formats))
    accumulate = for_table("accumulate", acc[at.OUTER])
    products = {kind: accumulate if native else kind + suffix for kind in KINDS}
    drawn = "_drawn" * (STOCHASTIC in (acc[at.ROUNDING], acc[at.PRODUCT_ROUNDING])) + order
    scaled = for_table(f"matmul_scaled{drawn}", *(acc[part] for part in formats))
    by_scale = tuple(SEQUENTIAL if native and i == at.ORDER else n for i, n in enumerate(acc))
    if acc[at.GROUP]:
        scaled, by_scale = "matmul_grouped", acc
    return Sums(acc, native, stochastic, products, accumulate, scaled, by_scale, has_operands)


@_remembered
def rounds(ints: Ints) -> Rounds:
    quantizer = parsed("Quantizer", quantizer_from_ints, ints)
    require(
        quantizer.hadamard is None, "quantize", "a quantizer without a Hadamard transform", ints
    )
    codes = None if ints[KIND] == AFFINE else packs(ints[InQuantizer.FORMAT])
    by_slices = {AFFINE: "quantize_affine", BLOCK: "quantize_block"}.get(ints[KIND])
    op = for_table(by_slices or "quantize", ints)
    counting_op = for_table(by_slices or "quantize_counting", ints)
    scaled_op = for_table("scaled", ints)
    stochastic, fuses = quantizer.is_stochastic, quantizer.fuses
    return Rounds(ints, axis_of(ints), stochastic, fuses, op, counting_op, scaled_op, codes)


@_remembered
def packs(ints: Ints) -> Codes:
    parsed("format", format_from_ints, ints)
    require(ints[KIND] != AFFINE, "pack", "a format that has codes", ints)
    is_kept = code_bits(ints) < _VALUE_BITS and (ints[KIND] != BLOCK or follows_from_values(ints))
    names = (for_table("pack", ints), for_table("unpack", ints))
    return Codes(ints, axis_of(ints), *names, has_every_code(ints), is_kept, without_zero(ints))


def has_every_code(fmt: Ints) -> bool:
    """Whether every tensor of values that quantize makes has codes, with infinities and NaN."""
    if fmt[KIND] == BLOCK:
        return follows_from_values(fmt)
    if fmt[KIND] == TABLE:
        return fmt[InTable.NAN_CODE] >= 0
    return fmt[KIND] == FLOAT and has_every_float_code(fmt)

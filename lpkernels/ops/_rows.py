"""Descriptions that an operator reads when it runs, instead of constants in a compiled graph.

The integers of formats, quantizers and accumulators stand in the rows of a table, an int64 tensor
on the CPU and an input of the graph. So the graph stays while they change. An operator with
descriptions among its arguments has one argument more, the table; each description is then the
number of its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer, exchanged

Ints: TypeAlias = tuple[int, ...]

TABLE = "table"
# The arguments of operators that describe arithmetic. The row of a format is that of a quantizer to
# it.
FORMAT = "format"
DESCRIPTIONS = (
    "quantizer", "acc", "left_quantizer", "right_quantizer", "result_quantizer", FORMAT,
)  # fmt: skip
# How an empty description crosses to an operator: AOTInductor would hand over an empty list as None
# (pytorch issue 194324). A row is one number, and every description has at least eight.
NOTHING = (0, 0)
# The length of a row: the number of its description's integers, these integers, and zeros. An
# accumulator with operands has the longest description.
ROW = 55


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


def with_table(schema: str) -> str:
    """The schema with a table behind its arguments, if there is a description among them."""
    if not any(f"int[] {each}" in schema for each in DESCRIPTIONS):
        return schema
    return schema.replace(") ->", f", Tensor? {TABLE}=None) ->")


def by_number(args: Sequence[Any]) -> Sequence[Any]:
    """args with rows, all of one table, as numbers, and the table behind them."""
    rows = [each for each in args if isinstance(each, Row)]
    if not rows:
        return args
    numbers = [(each.number,) if isinstance(each, Row) else each for each in args]
    return [*numbers, rows[0].table]


def described(ints: Sequence[int]) -> Ints:
    """The integers of a description, as they crossed."""
    return () if len(ints) == len(NOTHING) else tuple(ints)


def with_descriptions(
    args: Sequence[Any], places: Mapping[int, str], table: Tensor | None
) -> list[Any]:
    """args with integers for the descriptions at these places, of these names, read from the table
    if there is one."""
    full = list(args)
    for i, name in places.items():
        full[i] = described(full[i])
        if table is not None and full[i]:
            ints = _row_ints(table, full[i][0])
            full[i] = ints[InQuantizer.FORMAT] if name == FORMAT else ints
    return full


def _row_ints(table: Tensor, number: int) -> Ints:
    count, *ints = table[max(number, ~number)].tolist()
    description = tuple(ints[:count])
    return exchanged(description) if number < 0 else description

"""The memory of masters and states between steps: their bytes, and the bits of their formats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lpkernels.formats import Format
from lpkernels.techniques._table import aligned
from lpkernels.techniques.loss_scaling.masters.master_weights import MasterWeights
from lpkernels.techniques.loss_scaling.masters.stored import code_bits, here, is_codes, kept_format

WORKING = "working copy"
_HEAD = ("tensors", "format", "values", "bytes", "as codes")


@dataclass(frozen=True)
class MemoryRow:
    """The memory that one kind of tensor takes in this process.

    what: "working copy", "master", "remainder", "compensation", a state's name, or "counts".
    fmt: the format of the tensors, by the name that it was given first; "" for counts.
    values: how many elements they have.
    bytes: how many are allocated.
    bits: the bits of the formats' codes and scales, which hardware with these formats would keep.
    """

    what: str
    fmt: str
    values: int
    bytes: int
    bits: int


class Memory(tuple[MemoryRow, ...]):
    """The rows; ``str`` of it is a table with their total."""

    @property
    def kept(self) -> MemoryRow:
        """The total."""
        sums = (sum(getattr(row, name) for row in self) for name in ("values", "bytes", "bits"))
        return MemoryRow("kept", "", *sums)

    def __str__(self) -> str:
        rows = [
            (row.what, row.fmt, f"{row.values:,}", f"{row.bytes:,}", f"{row.bits / 8:,.0f}")
            for row in (*self, self.kept)
        ]
        return "\n".join(aligned([_HEAD, *rows], (0, 1)))


def memory(optimizer: MasterWeights) -> Memory:
    """A row for each kind of tensor and format, gradients aside.

    A format has the name that the user gave it. Reads one flag from the device, as the next step
    would.
    """
    optimizer._settle()
    rows: dict[tuple[str, str], MemoryRow] = {}
    for parameter, rule in optimizer.rules().items():
        mine = here(parameter)
        formats = rule.formats
        weight = formats.weight.fmt
        _add(rows, WORKING, weight, formats.name_of(weight), mine.numel(), mine, mine.shape)
        for name, value in optimizer.state[parameter].items():
            if not isinstance(value, Tensor):
                continue
            kept, fmt = here(value), kept_format(name, value, rule)
            coded = is_codes(kept, fmt)
            shape = mine.shape if coded else kept.shape
            called = "" if fmt is None else formats.name_of(fmt)
            _add(rows, name, fmt, called, shape.numel(), kept, shape)
    return Memory(rows.values())


def _add(
    rows: dict[tuple[str, str], MemoryRow],
    what: str,
    fmt: Format | None,
    called: str,
    values: int,
    kept: Tensor,
    shape: torch.Size,
) -> None:
    bytes_ = kept.numel() * kept.element_size()
    bits = 8 * bytes_ if fmt is None else code_bits(fmt, shape)
    old = rows.get((what, called), MemoryRow(what, called, 0, 0, 0))
    rows[what, called] = MemoryRow(
        what, called, old.values + values, old.bytes + bytes_, old.bits + bits
    )

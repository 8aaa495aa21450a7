"""What masters and states cost: the bytes that are there, and the bits of the formats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import FP32, Format
from lpkernels.techniques._table import aligned
from lpkernels.techniques.loss_scaling.masters.formats import FLOAT32_NAME, Rule
from lpkernels.techniques.loss_scaling.masters.fused import Choice
from lpkernels.techniques.loss_scaling.masters.master_weights import MasterWeights
from lpkernels.techniques.loss_scaling.masters.stored import (
    OWN,
    code_bits,
    here,
    is_codes,
    kept_format,
)

WORKING, TRANSIENT = "working copy", "transient"
_HEAD = ("tensors", "format", "values", "bytes", "as codes")


@dataclass(frozen=True)
class MemoryRow:
    """What one kind of tensor takes in this process.

    what: "working copy", "master", "remainder", "compensation", a state's name, "counts", or
        "transient". The last is what a step unpacks of one parameter at a time and the codes that
        it makes, of the parameter for which both take most, without the optimizer's own
        intermediate results. The fused pass unpacks nothing.
    fmt: the format of the tensors, by the name that it was given first; "" for counts.
    values: how many elements they have.
    bytes: how many are allocated.
    bits: those of the formats' codes and scales, which hardware with these formats would keep.
    """

    what: str
    fmt: str
    values: int
    bytes: int
    bits: int


class Memory(tuple[MemoryRow, ...]):
    """The rows, the transient memory last; ``str`` of it is a table with both totals."""

    @property
    def kept(self) -> MemoryRow:
        """The total of what is there between steps: all rows but the transient memory."""
        return _total("kept", self[:-1])

    @property
    def in_step(self) -> MemoryRow:
        """The total of all rows: what is there within a step."""
        return _total("in a step", self)

    def __str__(self) -> str:
        rows = [
            (row.what, row.fmt, f"{row.values:,}", f"{row.bytes:,}", f"{row.bits / 8:,.0f}")
            for row in (*self, self.kept, self.in_step)
        ]
        return "\n".join(aligned([_HEAD, *rows], (0, 1)))


def _total(what: str, rows: tuple[MemoryRow, ...]) -> MemoryRow:
    sums = (sum(getattr(row, name) for row in rows) for name in ("values", "bytes", "bits"))
    return MemoryRow(what, "", *sums)


def memory(optimizer: MasterWeights) -> Memory:
    """A row for each kind of tensor and format, gradients aside, and the transient memory.

    A format has the name that the user gave it. Reads one flag from the device, as the next step
    would.
    """
    optimizer._settle()
    rows: dict[tuple[str, str], MemoryRow] = {}
    most = MemoryRow(TRANSIENT, FLOAT32_NAME, 0, 0, 0)
    choice = Choice(optimizer._fused, optimizer.optimizer)
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
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
        if choice.takes(groups[parameter], parameter, rule):
            continue
        row = _unpacked(optimizer, parameter, rule)
        most = max(most, row, key=lambda each: each.bytes)
    return Memory((*rows.values(), most))


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


def _unpacked(optimizer: MasterWeights, parameter: Tensor, rule: Rule) -> MemoryRow:
    """The float32 numbers that an update of the parameter has at once, beside the optimizer's own,
    and the new codes, all of which are made before any is kept.

    The stepped master and the masks of what moved always count; any other tensor counts only where
    it is not the memory that is kept.
    """
    formats, sharded = rule.formats, hasattr(parameter, "to_local")
    narrow = parameter.dtype != torch.float32

    def rounds(quantizer: Quantizer | None) -> bool:
        return quantizer is not None and quantizer.fmt != FP32

    alias = formats.master.fmt == FP32 and not formats.split
    alias = alias and not (formats.working_is_master and narrow)
    copies = 2 + (sharded or not alias)
    copies += sharded or narrow or rounds(formats.grad)
    copies += rounds(formats.master) + rounds(formats.weight)
    copies += 3 * (formats.compensation is not None) + 2 * formats.split
    states = [
        rounds(formats.of_state(name))
        for name, value in optimizer.state[parameter].items()
        if name not in OWN and kept_format(name, value, rule) is not None
    ]
    for rounded in states:
        copies += sharded or rounded or not formats.take_anything
    values = parameter.numel() * (copies + any(states))
    codes = sum(
        kept.numel() * kept.element_size()
        for value in optimizer.state[parameter].values()
        if isinstance(value, Tensor) and (kept := here(value)).dtype != torch.float32
    )
    return MemoryRow(TRANSIENT, FLOAT32_NAME, values, 4 * values + codes, 32 * values + 8 * codes)

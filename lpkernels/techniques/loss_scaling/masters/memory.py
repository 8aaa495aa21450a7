"""The memory of masters, states and working copies, in bytes and in the bits of their formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from lpkernels._table import Tabular, TextTable
from lpkernels.formats import Format
from lpkernels.techniques.loss_scaling.masters.codec import code_bits, here, is_codes, kept_format
from lpkernels.techniques.loss_scaling.masters.master_weights import MasterWeights

_HEAD = ("tensors", "format", "values", "bytes", "as codes")


class MemoryRow(NamedTuple):
    """The memory that one kind of tensor takes in this process.

    what: "working copy", "master", "compensation", a state's name, or "counts".
    fmt: the format of the tensors, by the name that its group has; "" for counts.
    values: how many elements they have.
    bytes: how many are allocated.
    bits: the bits of the formats' codes and scales, which hardware with these formats would keep.
    """

    what: str
    fmt: str
    values: int = 0
    bytes: int = 0
    bits: int = 0


class Memory(tuple[MemoryRow, ...], Tabular):
    """The rows, MemoryRows of an iterable; ``str`` of it is a table with their total."""

    @property
    def kept(self) -> MemoryRow:
        """The total."""
        return MemoryRow("kept", "", *(sum(column) for column in [*zip(*self, strict=True)][2:]))

    def _table(self) -> TextTable:
        rows = [
            (row.what, row.fmt, f"{row.values:,}", f"{row.bytes:,}", f"{row.bits / 8:,.0f}")
            for row in (*self, self.kept)
        ]
        return TextTable([_HEAD, *rows], (0, 1))


def memory(optimizer: MasterWeights) -> Memory:
    """The memory of masters, states and working copies: a row for each kind of tensor and format.

    Gradients are not counted. A format has the name that the user gave it. Reads one flag from the
    device, as the next step would.

    Args: optimizer: a MasterWeights.
    Returns: a Memory.

    >>> from lpkernels.techniques.loss_scaling import MasterWeights, memory
    >>> weights = [torch.nn.Parameter(torch.ones(100))]
    >>> optimizer = MasterWeights(torch.optim.SGD(weights, lr=0.1), weight="bf16")
    >>> print(memory(optimizer))
    tensors       format  values  bytes  as codes
    working copy  bf16       100    400       200
    master        fp32       100    400       400
    counts                     2     16        16
    kept                     202    816       616
    """
    optimizer._settle()
    rows: dict[tuple[str, str], MemoryRow] = {}
    rules = optimizer.rules()
    for group, parameter in ((g, p) for g in optimizer.param_groups for p in g["params"]):
        formats, part = rules[parameter].formats, here(parameter)
        tensors: list[tuple[str, Tensor, Format | None]]
        tensors = [("working copy", part, formats.weight.fmt)]
        for name, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                tensors.append((name, here(value), kept_format(name, value, formats)))
        for what, tensor, fmt in tensors:
            shape = part.shape if is_codes(tensor, fmt) else tensor.shape
            name = "" if fmt is None else _name_of(what, group)
            size = tensor.numel() * tensor.element_size()
            bits = 8 * size if fmt is None else code_bits(fmt, shape)
            row = rows.get((what, name), MemoryRow(what, name))
            sums = row.values + shape.numel(), row.bytes + size, row.bits + bits
            rows[what, name] = MemoryRow(what, name, *sums)
    return Memory(rows.values())


def _name_of(what: str, group: Mapping[str, Any]) -> str:
    """The name that a group has of the format of its tensors of this kind."""
    state = group["state"]
    of_state = state.get(what, "fp32") if isinstance(state, Mapping) else state
    own = {"working copy": "weight", "master": "master", "compensation": "compensation"}
    name: str = group[own[what]] if what in own else of_state
    return name.partition(":")[0]

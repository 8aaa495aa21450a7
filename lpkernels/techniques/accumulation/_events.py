"""The events inside the sums of a product of two matrices, counted by a backend."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import Accumulator
from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.formats.integers import for_table
from lpkernels.rng import Role


@dataclass(frozen=True)
class Shares:
    """Shares of the additions in some rows of a product; None where nothing was counted.

    sums: how many sums were looked at. values: the sums themselves, where all rows were looked at.
    """

    sums: int
    swamped: float | None
    swamped_chunks: float | None
    overflowed: float | None
    values: Tensor | None


def shares(
    a: Tensor, b: Tensor, acc: Accumulator, seed: Tensor | None, most: int | None, backend: str
) -> Shares:
    """The events in the sums of a @ b, for as many evenly spaced rows as `most` products allow."""
    rows = len(a) if most is None else min(len(a), most // b.numel())
    if acc.order == "native" or rows == 0:
        return Shares(0, None, None, None, None)
    row = torch.linspace(0, len(a) - 1, rows, dtype=torch.float64, device="cpu").round().long()
    at, ints = InAccumulator, acc.to_ints()
    op = for_table("matmul_events", ints[at.FORMAT], ints[at.PRODUCT], ints[at.OUTER])
    able = backends.select(backend, op, a.device)
    left = a if rows == len(a) else a[row.to(a.device)]
    values, counts = able.matmul_events(left, b, ints, seed, Role.DIRECT, row)
    swamped, added, swamped_chunks, added_chunks, overflowed = counts
    return Shares(
        values.numel(),
        swamped / max(1, added),
        swamped_chunks / max(1, added_chunks) if acc.chunk else None,
        overflowed / values.numel(),
        values if rows == len(a) else None,
    )

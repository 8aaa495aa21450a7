"""What happens inside the sums of two matrices, by the backend that can say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import Accumulator
from lpkernels.reference.events import OVERFLOWED, SWAMPED
from lpkernels.rng import Role

__all__ = ["OVERFLOWED", "SWAMPED", "Shares", "bits_of", "shares"]


@dataclass(frozen=True)
class Shares:
    """Of the additions in some rows of a product; None where nothing was counted.

    sums: how many sums were looked at.  values: they themselves, where those are all rows.
    """

    sums: int
    swamped: float | None
    swamped_chunks: float | None
    overflowed: float | None
    values: Tensor | None


def shares(
    a: Tensor, b: Tensor, acc: Accumulator, seed: Tensor | None, most: int | None, backend: str
) -> Shares:
    """Events in the sums of a @ b, for as many evenly spaced rows as `most` products allow."""
    rows = len(a) if most is None else min(len(a), most // b.numel())
    if not acc.in_sequence or rows == 0:
        return Shares(0, None, None, None, None)
    row = torch.linspace(0, len(a) - 1, rows, dtype=torch.float64).round().long()
    able = backends.select(backend, "matmul_events", a.device)
    left = a if rows == len(a) else a[row.to(a.device)]
    values, counts, _, _ = able.matmul_events(left, b, acc.to_ints(), seed, Role.DIRECT, row, False)
    swamped, added, swamped_chunks, added_chunks, overflowed = counts
    return Shares(
        values.numel(),
        swamped / max(1, added),
        swamped_chunks / max(1, added_chunks) if acc.chunk else None,
        overflowed / values.numel(),
        values if rows == len(a) else None,
    )


def bits_of(
    a: Tensor, b: Tensor, acc: Accumulator, seed: Tensor | None, first_row: int
) -> tuple[Tensor, Tensor | None]:
    """The bits of every addition in the fprop sums of a @ b, whose draws begin at `first_row`:
    (M, K, N) of the products and (M, chunks, N) of the chunks or None.
    """
    row = torch.arange(first_row, first_row + len(a))
    able = backends.select("auto", "matmul_events", a.device)
    _, _, products, chunks = able.matmul_events(a, b, acc.to_ints(), seed, Role.FPROP, row, True)
    if products is None:
        raise AssertionError("matmul_events gave no bits")
    return products.to(a.device), None if chunks is None else chunks.to(a.device)

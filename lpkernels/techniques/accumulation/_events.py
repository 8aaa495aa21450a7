"""The events inside the sums of a product of two matrices, counted by a backend."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import Accumulator
from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.formats.integers import for_table
from lpkernels.reference.events import OVERFLOWED, SWAMPED
from lpkernels.rng import Role

__all__ = ["OVERFLOWED", "SWAMPED", "Shares", "masked_gradients", "shares"]


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
    able = backends.select(backend, _operation("matmul_events", acc), a.device)
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


def _operation(op: str, acc: Accumulator) -> str:
    at, ints = InAccumulator, acc.to_ints()
    return for_table(op, ints[at.FORMAT], ints[at.PRODUCT], ints[at.OUTER])


def masked_gradients(
    a: Tensor,
    b: Tensor,
    g: Tensor,
    acc: Accumulator,
    seed: Tensor | None,
    *,
    first_col: int,
    bits: int,
    recursive: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of a (M, K) and b (K, N) by g (M, N), in float32 sums, from the products of the
    fprop sums that none of the `bits` takes out. The draws of the columns begin at `first_col`.
    """
    able = backends.select("auto", _operation("masked_gradients", acc), a.device)
    return able.masked_gradients(
        a, b, g, acc.to_ints(), seed, Role.FPROP, first_col, bits, recursive
    )

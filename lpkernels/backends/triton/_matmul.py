"""Matrix products: operands packed, tables made, sums in the batch that broadcasting gives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lpkernels.backends import NOT_FUSED, Fused, broadcast_batch
from lpkernels.backends._tables import offsets
from lpkernels.backends.triton._config import transposes
from lpkernels.backends.triton._layout import Sums
from lpkernels.backends.triton._products import products
from lpkernels.backends.triton.operands.facts import new_facts
from lpkernels.backends.triton.operands.matrices import pack_operand


def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    acc: tuple[int, ...],
    seed: Tensor | None,
    role: int,
    fused: Fused = NOT_FUSED,
    initial: Tensor | None = None,
) -> Tensor:
    """`Backend.matmul`. Draws are keyed (batch * M + m, n, k)."""
    batch = broadcast_batch(a, b)
    m, n = a.shape[-2], b.shape[-1]
    out = torch.empty(*batch, m, n, dtype=torch.float32, device=a.device)
    if out.numel() == 0:
        return out
    if batch and b.dim() == 2 and a.is_contiguous():
        # One product, whose rows have the same keys: b is packed once for all of them.
        m *= math.prod(batch)
        a, batch = a.view(m, a.shape[-1]), torch.Size(())
    bias = None if bias is None else bias.contiguous()
    sums = _sums(out, batch, m, n, a.shape[-1], bias)
    if initial is not None:
        sums = sums._replace(initial=initial.contiguous())
    facts = new_facts(a.device)
    rows = pack_operand(a, batch, facts[0], fused.left)
    cols = pack_operand(b.mT, batch, facts[1], fused.right)
    left, right = (cols, rows) if sums.swapped else (rows, cols)
    products(left, right, sums, acc, seed, role, fused.result)
    return out


def _sums(out: Tensor, batch: torch.Size, m: int, n: int, k: int, bias: Tensor | None) -> Sums:
    """The outputs of a contiguous (batch, m, n), in tiles whose long side is n or, swapped, m."""

    def steps(size: int, stride: int) -> Tensor:
        return offsets((size,), (stride,), out.device)

    matrices = math.prod(batch)
    rows, row_keys, row_batch = steps(m, n), steps(m, 1), steps(matrices, m)
    cols, col_keys, col_batch = steps(n, 1), steps(n, 1), steps(matrices, 0)
    swapped = transposes(m, n)
    if swapped:
        m, n = n, m
        rows, row_keys, row_batch, cols, col_keys, col_batch = (
            cols, col_keys, col_batch, rows, row_keys, row_batch,
        )  # fmt: skip
    return Sums(
        out, steps(matrices, m * n), rows, cols, row_keys, col_keys, row_batch, col_batch, swapped,
        bias, None, None, (matrices, m, n, k),
    )  # fmt: skip

"""Matrix products: operands packed, tables made, sums in the batch that broadcasting gives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lpkernels.backends import How, Product
from lpkernels.backends._tables import offsets
from lpkernels.backends.triton._config import transposes
from lpkernels.backends.triton._layout import Sums
from lpkernels.backends.triton._products import products
from lpkernels.backends.triton.operands.facts import new_facts
from lpkernels.backends.triton.operands.matrices import pack_operand


def matmul(product: Product, how: How) -> Tensor:
    """`GpuBackend.multiply_matrices`. Draws are keyed (batch * M + m, n, k)."""
    a, b = product.left, product.right
    out = torch.empty(product.shape, dtype=torch.float32, device=a.device)
    if out.numel() == 0:
        return out
    *_, m, k = a.shape
    n, batch = b.shape[-1], out.shape[:-2]
    if batch and b.dim() == 2 and a.is_contiguous():
        # One product, whose rows have the same keys: b is packed once for all of them.
        m *= batch.numel()
        a, batch = a.view(m, k), torch.Size(())
    bias = None if product.bias is None else product.bias.contiguous()
    sums = _sums(out, batch, m, n, k, bias)
    if product.initial is not None:
        sums = sums._replace(initial=product.initial.contiguous())
    facts = new_facts(a.device)
    rows = pack_operand(a, batch, facts[0], how.fused.left)
    cols = pack_operand(b.mT, batch, facts[1], how.fused.right)
    left, right = (cols, rows) if sums.swapped else (rows, cols)
    products(left, right, sums, how.acc, how.seed, how.role, how.fused.result)
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

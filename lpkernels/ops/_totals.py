"""Totals: the scales of whole tensors, of rows and of columns, which multiply the result of a
product."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from lpkernels.formats import parse_format
from lpkernels.formats.integers import Ints
from lpkernels.ops._operator import assume_constant_result
from lpkernels.ops._packing import dequantize


def multiply_totals(y: Tensor, left: Tensor | None, right: Tensor | None, backend: str) -> Tensor:
    """y (..., M, N), contiguous, times the rounded product of both totals, rounded to float32: the
    same bits whether or not the process flushes denormals.

    left: (..., M) or (1,); right: (..., N) or (1,); float32; None for ones, but not for both.
    """
    of_rows = None if left is None else left.unsqueeze(-1)
    of_cols = None if right is None else right.unsqueeze(-2)
    if of_rows is None or of_cols is None:
        totals = of_cols if of_rows is None else of_rows
        assert totals is not None
    else:
        by_row, by_col = torch.broadcast_tensors(of_rows, of_cols)
        totals = _by_blocks(by_row, by_col, "block1", backend)
    # One total for all of y, one for each row or column, or one for each value.
    rows, cols = y.shape[-2:]
    if totals.numel() == 1:
        return _by_blocks(y, totals.view((1,) * y.dim()), "tensor", backend)
    if totals.shape[-1] == 1:
        return _by_blocks(y, totals.expand(*y.shape[:-2], rows, 1), "row", backend)
    if totals.shape[-2] == 1:
        return _by_blocks(y, totals.expand(*y.shape[:-2], 1, cols), "row_axis-2", backend)
    return _by_blocks(y, totals.expand(y.shape), "block1", backend)


def _by_blocks(x: Tensor, scales: Tensor, blocks: str, backend: str) -> Tensor:
    """x times a float32 scale of every block."""
    fmt = _format(f"{blocks}_e8m23ieee_sfp32")
    return dequantize(x.contiguous(), scales.contiguous(), x.new_ones(()), fmt, backend)


@assume_constant_result
def _format(name: str) -> Ints:
    return _parsed(name)


@lru_cache
def _parsed(name: str) -> Ints:
    return parse_format(name).to_ints()

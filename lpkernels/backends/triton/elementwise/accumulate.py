"""One rounded addition for every element of a matrix of sums."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.backends import DrawKey, How
from lpkernels.backends.triton._launch import EXACT, on_device
from lpkernels.backends.triton.elementwise.quantize import seed_for
from lpkernels.backends.triton.rounding.bits import double, narrow
from lpkernels.backends.triton.rounding.draws import column_of, derived_seed, drawn_lift
from lpkernels.backends.triton.rounding.round import add_rounded
from lpkernels.backends.triton.rounding.rule import STOCHASTIC, rule_of

_ELEMENTS, _COLUMNS = 1024, 128


@triton.jit(
    do_not_specialize=["rows", "column_tiles", "first_row", "first_col", "k", "role", "site"]
)
def accumulate_kernel(
    total_ptr, addend_ptr, rows, cols, row_stride, col_stride, column_tiles, first_row, first_col,
    k, N, seed_ptr, role, site,
    R: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """total = round(total + addend), total (rows, cols) dense, addend with strides.

    A program owns a tile of ROWS x COLUMNS; grid: all tiles.
    """
    program = tl.cast(tl.program_id(0), tl.int64)
    row = (program // column_tiles * ROWS + tl.arange(0, ROWS))[:, None]
    col = (program % column_tiles * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < rows) & (col < cols)
    place = total_ptr + (row * cols + col)
    total = double(tl.load(place, mask=inside, other=0.0))
    source = addend_ptr + (row * row_stride + col * col_stride)
    addend = double(tl.load(source, mask=inside, other=0.0))
    lift = 0
    if R.mode == STOCHASTIC:
        seed = derived_seed(seed_ptr, role)
        column = column_of(seed, site, col + first_col, R)
        lift = drawn_lift(seed, site, row + first_row, column, tl.cast(k, tl.int64), R)
    tl.store(place, narrow(add_rounded(total, addend, lift, N, R)), mask=inside)


def accumulate(total: Tensor, addend: Tensor, how: How, key: DrawKey) -> None:
    """As `lpkernels.backends.Backend.accumulate`."""
    if total.numel() == 0:
        return
    acc, at, device = how.acc, InAccumulator, total.device
    draws = (acc[at.RANDOM_BITS], acc[at.RNG])
    rule, numbers = rule_of(acc[at.OUTER], acc[at.OUTER_ROUNDING], *draws, device=device)
    rows, cols = total.shape
    addend = addend.expand(rows, cols)
    columns = min(triton.next_power_of_2(cols), _COLUMNS)
    height = min(triton.next_power_of_2(rows), _ELEMENTS // columns)
    column_tiles = triton.cdiv(cols, columns)
    with on_device(total):
        accumulate_kernel[(triton.cdiv(rows, height) * column_tiles,)](
            total, addend, rows, cols, *addend.stride(), column_tiles, key.row, key.col, key.k,
            numbers, seed_for(rule, how.seed, device), how.role, key.site, R=rule, ROWS=height,
            COLUMNS=columns, **EXACT,
        )  # fmt: skip

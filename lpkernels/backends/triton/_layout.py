"""The tensors that a product's kernels read and write: packed operands, outputs, tables of places.

Every product of this backend, matrix products and the three passes of a convolution alike, is one
batch of G matrix products: element (lane, k) of operand matrix g, and output (row, col) of matrix
g, lie where sums of table entries say. So one family of kernels serves them all; a convolution is a
matter of tables. Tables are int64 tensors on the device, offsets in elements.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

#: The NaN of a tap that falls outside and adds nothing. No value has these bits, because packing
#: writes every NaN as 0x7fc00000; and no arithmetic makes them: NVIDIA's gives 0x7fffffff.
ABSENT = 0x7FC0DEAD


class Operand(NamedTuple):
    """One packed operand: values of its quantizer's format, each NaN 0x7fc00000, in float32.

    Element (lane, k) of matrix g is ``values[batch[g] + lanes[lane] + steps[k]]``. A lane is a row
    of the left operand or a column of the right one. With ``lanes`` None lane i lies at i. Then
    kernels may read behind the last lane, as far as `PAD` goes, but never store the sums of those
    lanes; ``batch`` and all steps are multiples of `triton_tiles.UNIT`. With ``steps`` None step k
    lies at k * ``step``.
    """

    values: Tensor
    batch: Tensor
    lanes: Tensor | None
    steps: Tensor | None
    step: int
    #: int32, 1-d, on the device: what `operands.facts` says of all values.
    facts: Tensor
    #: Whether some elements are `ABSENT`.
    absent: bool
    #: The integers of the quantizer that made the values, () if they are any float32.
    quantizer: tuple[int, ...] = ()


#: The largest side of a tile.
PAD = 512


class Scaling(NamedTuple):
    """The scales that multiply the sums of chunks: float32, (G, chunks, M) of rows and (G, chunks,
    N) of columns. order: `EXACT_SCALES`, or where a product is rounded to float32."""

    rows: Tensor
    cols: Tensor
    order: int


#: c times both scales exactly; c times their rounded product; c times the scale of the row, or of
#: the column, rounded and then times the other.
EXACT_SCALES, SCALES_FIRST, ROWS_FIRST, COLS_FIRST = range(4)


class Sums(NamedTuple):
    """The outputs: M x N sums of K steps for each of G matrices, and the keys of their draws.

    Output (i, j) of matrix g is ``out[batch[g] + rows[i] + cols[j]]``. Of its draws' two keys,
    ``row_batch[g] + row_keys[i]`` and ``col_batch[g] + col_keys[j]``, the first is the row and the
    second the column; ``swapped`` exchanges them. The column key is also the index of the bias.
    """

    out: Tensor
    batch: Tensor
    rows: Tensor
    cols: Tensor
    row_keys: Tensor
    col_keys: Tensor
    row_batch: Tensor
    col_batch: Tensor
    swapped: bool
    bias: Tensor | None
    #: (K,) the position that step k has in the contract's order; None: k.
    positions: Tensor | None
    #: (chunks + 1,) first step of every chunk; None: chunk c begins at step c * chunk.
    starts: Tensor | None
    #: G, M, N, K.
    sizes: tuple[int, int, int, int]
    #: Where the outermost sums start, laid out as ``out``; None: +0.
    initial: Tensor | None = None
    #: None: the sums of chunks enter the outer ones as they are.
    scaling: Scaling | None = None

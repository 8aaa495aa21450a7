"""The operands of a layer's products."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from lpkernels import ops
from lpkernels.ops import Ints


class Operand(NamedTuple):
    """One side of a product: values or codes, with a quantizer or with scales.

    values: as the tensor lies, with the sum along axis -1 or -2.
    quantizer: the product rounds the values by it as it reads them; () where it does not.
    scale: (..., rows, segments), of `size` products each (0: all); None without scales of blocks.
    total: (..., rows) or (1,), the scales that multiply the outer sum; None without any.
    fmt: the integers of the format of scales of blocks; () without them.
    """

    values: Tensor
    quantizer: Ints = ()
    scale: Tensor | None = None
    size: int = 0
    total: Tensor | None = None
    fmt: Ints = ()


#: The left and the right operand of a product.
Pair = tuple[Operand, Operand]


class Source(NamedTuple):
    """A tensor of a layer, with the codes and the values that were made of it already.

    parts, values: by the key of a `Reading`.
    keeps: whether its codes will be kept for backward, so that values are made of them.
    operand: of the product that reads what was kept of the tensor.
    """

    tensor: Tensor
    parts: dict[str, ops.Parts]
    values: dict[str, Tensor]
    keeps: bool = False
    operand: Operand | None = None

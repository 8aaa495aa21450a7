"""Tensors that operations keep and that are no tensors of the assignment, in fewer bits without
loss."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.formats import FixedFormat
from lpkernels.functional.unchecked import packed, unpacked

# Codes of one bit: 0 and 1.
_BIT = FixedFormat(1, 0, signed=False).to_ints()
_DROPPING = frozenset(
    """
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout
    scaled_dot_product_attention multi_head_attention_forward
    """.split()
)
_SHORT = 2**15


class Mask:
    """A tensor of zeros and one other value, as bits."""

    def __init__(self, x: Tensor, other: Tensor) -> None:
        self._shape, self._dtype, self._other = x.shape, x.dtype, other
        self._codes = packed((x != 0).float().flatten(), _BIT)

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes

    def tensor(self) -> Tensor:
        bits = unpacked(self._codes, _BIT, self._shape.numel()).view(self._shape)
        return (bits * self._other).to(self._dtype)


class Indices:
    """Whole numbers below 2^15, in 16 bits."""

    def __init__(self, x: Tensor) -> None:
        self._short, self._dtype = x.to(torch.int16), x.dtype

    @property
    def nbytes(self) -> int:
        return self._short.nbytes

    def tensor(self) -> Tensor:
        return self._short.to(self._dtype)


def compact(operation: str, x: Tensor) -> Mask | Indices | None:
    """A smaller form of a tensor that this operation keeps; None if there is no smaller one.

    It works on the CPU alone, because it looks at the values.
    """
    if x.device.type != "cpu" or not x.numel() or x.layout is not torch.strided:
        return None
    if x.dtype == torch.bool:
        return Mask(x, torch.ones((), dtype=torch.float32, device=x.device))
    if operation in _DROPPING and x.is_floating_point():
        other = x.amax()
        return Mask(x, other) if bool(((x == 0) | (x == other)).all()) else None
    if x.dtype == torch.int64 and "max_pool" in operation:
        return Indices(x) if 0 <= int(x.amin()) and int(x.amax()) < _SHORT else None
    return None

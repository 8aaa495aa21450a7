"""The four products of an adapter by their names, with their arguments one by one, for calls by
hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lpkernels.backends._protocol import (
    NOT_FUSED,
    Convolution,
    Fused,
    How,
    Product,
    fprop_of,
    matmul_of,
)

Ints = tuple[int, ...]


def _convolution(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Convolution:
    return Convolution(tuple(stride), tuple(padding), tuple(dilation), groups)


class Conveniences:
    """`Backend.multiply` by name. conv: stride, padding, dilation, groups; how: acc, seed, role,
    fused. ``acc`` is ``Accumulator.to_ints()``."""

    def multiply(self, product: Product, how: How) -> Tensor:
        """`Backend.multiply`."""
        raise NotImplementedError

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        acc: Ints,
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
        initial: Tensor | None = None,
    ) -> Tensor:
        return self.multiply(matmul_of(a, b, bias, initial), How(acc, seed, role, fused))

    def conv_fprop(
        self, x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any, **how: Any
    ) -> Tensor:
        return self.multiply(fprop_of(x, w, bias, _convolution(*rest[:4])), How(*rest[4:], **how))

    def conv_dgrad(
        self, g: Tensor, w: Tensor, shape: Sequence[int], *rest: Any, **how: Any
    ) -> Tensor:
        conv = _convolution(*rest[:4])
        return self.multiply(Product("conv_dgrad", g, w, shape, conv), How(*rest[4:], **how))

    def conv_wgrad(
        self, x: Tensor, g: Tensor, shape: Sequence[int], *rest: Any, **how: Any
    ) -> Tensor:
        conv = _convolution(*rest[:4])
        return self.multiply(Product("conv_wgrad", x, g, shape, conv), How(*rest[4:], **how))

"""The common part of the GPU backends: the list of operations, and the passes of a convolution as
products that gather one operand.

docs/contract.md has the order of the sums, and `_conv_tables` the places of all elements. An output
without any tap is +0, and so is every output of a pass that sums over nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.backends import How, Product, Scales
from lpkernels.backends._conv_geometry import Frame, Geometry, geometry_of
from lpkernels.backends._conv_phases import dgrad, dgrad_frame, meets_all
from lpkernels.backends._conv_tables import (
    Builder,
    Tables,
    by_input,
    fprop,
    fprop_frame,
    tables,
    wgrad,
    wgrad_frame,
)

Ints = tuple[int, ...]


class Pass(NamedTuple):
    """One pass that has outputs and something to sum.

    The columns of each product are gathered from ``image`` (N, C, *spatial), rounded and copied
    into ``frame``. Its rows are the rounded rows of ``rows`` (groups, rows, K). In wgrad ``rows``
    is the gradient (N, C_out, *spatial), and its channels are the rows.
    """

    geometry: Geometry
    build: Builder
    out: Tensor
    image: Tensor
    frame: Frame
    rows: Tensor
    are_channels: bool
    bias: Tensor | None
    #: The quantizers of the image, the rows and the result, as integers, or ().
    image_rule: Ints
    row_rule: Ints
    result_rule: Ints

    def products(self) -> list[Tables]:
        return tables(self.build, self.geometry, self.out.device)


# By the names that `Backend.unsupported` takes.
_OPS = (
    "quantize", "quantize_counting", "quantize_affine", "quantize_block", "hadamard", "matmul",
    "conv_fprop", "conv_dgrad", "conv_wgrad", "accumulate", "scaled", "dequantize", "pack",
    "pack_scaled", "unpack", "update",
)  # fmt: skip


class GpuBackend:
    """A `Backend` without its kernels; a subclass also makes a convolution's pass (`convolve`)."""

    fuses, fuses_tables, packs_rounding = True, False, False
    sums_native = True

    def why_not(self) -> str:
        raise NotImplementedError

    def available(self) -> bool:
        return not self.why_not()

    def has(self, op: str) -> bool:
        """Whether there is a kernel for what `Backend.unsupported` calls op."""
        return op.removesuffix("_ordered").removesuffix("_operands") in _OPS

    @staticmethod
    def convolve(work: Pass, acc: Ints, seed: Tensor | None, role: int) -> None:
        """Writes all of work.out that has taps."""
        raise NotImplementedError

    @staticmethod
    def multiply_matrices(product: Product, how: How, scales: Scales | None) -> Tensor:
        """`Backend.multiply` of a matmul."""
        raise NotImplementedError

    def multiply(self, product: Product, how: How, scales: Scales | None = None) -> Tensor:
        """`Backend.multiply`."""
        if product.conv is None:
            return self.multiply_matrices(product, how, scales)
        g = geometry_of(*product.images(), product.conv)
        image, other, kind = product.left, product.right, product.kind
        # A gradient of nothing is zeros, and so is one of positions that no tap meets.
        gradient = {"conv_dgrad": image, "conv_wgrad": other}.get(kind)
        empty = gradient is not None and gradient.numel() == 0
        zeros = empty or (kind == "conv_dgrad" and not meets_all(g))
        new = torch.zeros if zeros else torch.empty
        out = new(product.shape, dtype=torch.float32, device=image.device)
        if empty or out.numel() == 0:
            return out
        if kind == "conv_fprop":
            build, frame = fprop, fprop_frame(g)
            rows = other.reshape(g.groups, g.out_channels, g.in_channels * g.taps)
        elif kind == "conv_dgrad":
            build, frame, rows = dgrad, dgrad_frame(g), by_input(other, g)
        else:
            build, frame, rows = wgrad, wgrad_frame(g), other
        bias = None if product.bias is None else product.bias.contiguous()
        are_channels = kind == "conv_wgrad"
        work = Pass(g, build, out, image, frame, rows, are_channels, bias, *how.fused)
        self.convolve(work, how.acc, how.seed, how.role)
        return out

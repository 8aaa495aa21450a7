"""What the backends of GPUs share: which operations they have, and the passes of a convolution as
products that gather one operand.

docs/contract.md says what the passes sum in which order, and `_conv_tables` says where everything
lies. An output without any tap is +0, and so is every output of a pass that sums over nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.arithmetic.products import output_size
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends._conv_geometry import Frame, Geometry, geometry_of
from lpkernels.backends._conv_phases import dgrad, dgrad_frame, meets_all
from lpkernels.backends._conv_tables import (
    Builder,
    Product,
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

    The columns of its products are gathered from ``image`` (N, C, *spatial), rounded and copied
    into ``frame``. Their rows, rounded, are those of ``rows`` (groups, rows, K); in wgrad they are
    its channels, as ``rows`` is the gradient there, (N, C_out, *spatial).
    """

    geometry: Geometry
    build: Builder
    out: Tensor
    image: Tensor
    frame: Frame
    rows: Tensor
    are_channels: bool
    bias: Tensor | None
    #: What rounds the image, the rows and the result: quantizers as integers, or ().
    image_rule: Ints
    row_rule: Ints
    result_rule: Ints

    def products(self) -> list[Product]:
        return tables(self.build, self.geometry, self.out.device)


# By the names that `Backend.unsupported` takes.
_OPS = (
    "quantize",
    "quantize_counting",
    "quantize_affine",
    "quantize_block",
    "matmul",
    "conv_fprop",
    "conv_dgrad",
    "conv_wgrad",
    "accumulate",
    "pack",
    "unpack",
    "update",
)


class GpuBackend:
    """What a `Backend` has apart from its kernels. Of a convolution these make `convolve`."""

    fuses = True
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

    def conv_fprop(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: Ints,
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        """`Backend.conv_fprop`."""
        spatial = output_size(x.shape[2:], w.shape[2:], stride, padding, dilation)
        out = torch.empty(x.shape[0], w.shape[0], *spatial, dtype=torch.float32, device=x.device)
        if out.numel() == 0:
            return out
        g = geometry_of(x.shape, w.shape, spatial, stride, padding, dilation, groups)
        rows = w.reshape(groups, g.out_channels, g.in_channels * g.taps)
        bias = None if bias is None else bias.contiguous()
        rules = (fused.left, fused.right, fused.result)
        work = Pass(g, fprop, out, x, fprop_frame(g), rows, False, bias, *rules)
        self.convolve(work, acc, seed, role)
        return out

    def conv_dgrad(
        self,
        grad_output: Tensor,
        w: Tensor,
        input_shape: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: Ints,
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        """`Backend.conv_dgrad`."""
        y = grad_output.shape[2:]
        g = geometry_of(input_shape, w.shape, y, stride, padding, dilation, groups)
        empty = grad_output.numel() == 0
        new = torch.zeros if empty or not meets_all(g) else torch.empty
        out = new(input_shape, dtype=torch.float32, device=w.device)
        if empty or out.numel() == 0:
            return out
        rules = (fused.left, fused.right, fused.result)
        rows = by_input(w, g)
        work = Pass(g, dgrad, out, grad_output, dgrad_frame(g), rows, False, None, *rules)
        self.convolve(work, acc, seed, role)
        return out

    def conv_wgrad(
        self,
        x: Tensor,
        grad_output: Tensor,
        weight_shape: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: Ints,
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        """`Backend.conv_wgrad`."""
        empty = grad_output.numel() == 0
        new = torch.zeros if empty else torch.empty
        out = new(weight_shape, dtype=torch.float32, device=x.device)
        if empty or out.numel() == 0:
            return out
        y = grad_output.shape[2:]
        g = geometry_of(x.shape, weight_shape, y, stride, padding, dilation, groups)
        rules = (fused.left, fused.right, fused.result)
        work = Pass(g, wgrad, out, x, wgrad_frame(g), grad_output, True, None, *rules)
        self.convolve(work, acc, seed, role)
        return out

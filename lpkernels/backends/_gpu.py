"""The common part of the GPU backends: the list of operations, and the passes of a convolution as
products that gather one operand.

docs/contract.md has the order of the sums, and `_conv_tables` the places of all elements. An output
without any tap is +0, and so is every output of a pass that sums over nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import has_core
from lpkernels.backends import How, Product, Scales
from lpkernels.backends._conv_geometry import Frame, Geometry, geometry_of
from lpkernels.backends._conv_tables import (
    Builder,
    Tables,
    by_input,
    dgrad,
    dgrad_frame,
    fprop,
    fprop_frame,
    meets_all,
    tables,
    wgrad,
    wgrad_frame,
)


class Pass(NamedTuple):
    """One pass that has outputs and something to sum.

    The columns of each product are gathered from ``image`` (N, C, *spatial), rounded as the left
    operand and copied into ``frame``. Its rows are those of ``rows`` (groups, rows, K), rounded as
    the right operand. In wgrad ``rows`` is the gradient (N, C_out, *spatial), and its channels are
    the rows.
    """

    geometry: Geometry
    build: Builder
    out: Tensor
    image: Tensor
    frame: Frame
    rows: Tensor
    are_channels: bool
    bias: Tensor | None

    def products(self) -> list[Tables]:
        return tables(self.build, self.geometry, self.out.device)


class Matrices(NamedTuple):
    """A matmul that has outputs: ``left`` (..., M, K) times ``right`` (..., K, N), whose leading
    dimensions broadcast to ``batch``. A batch with one right operand may be more rows."""

    left: Tensor
    right: Tensor
    out: Tensor
    batch: torch.Size
    bias: Tensor | None
    initial: Tensor | None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """G, M, N, K."""
        rows, steps = self.left.shape[-2:]
        return self.batch.numel(), rows, self.right.shape[-1], steps


# By the names that `Backend.unsupported` takes.
_OPS = (
    "quantize", "quantize_counting", "quantize_affine", "quantize_block", "hadamard", "matmul",
    "conv_fprop", "conv_dgrad", "conv_wgrad", "accumulate", "scaled", "dequantize", "pack",
    "pack_scaled", "unpack", "update",
)  # fmt: skip


_NO_CORES = (
    "exact sums of blocks and the adders of AMD's matrix cores are the cpu and reference backends' "
    "alone"
)


class GpuBackend:
    """A `Backend` without its kernels; a subclass also makes a convolution's pass (`convolve`)."""

    fuses, fuses_tables = True, False
    joins_passes = False
    sums_native = True

    def why_not(self) -> str:
        raise NotImplementedError

    def available(self) -> bool:
        return not self.why_not()

    @staticmethod
    def why_no_core(op: str) -> str:
        """Why it has no exact sums of blocks and no adders of AMD's cores; "" for another op."""
        return _NO_CORES if op.endswith("_cores") else ""

    def has(self, op: str) -> bool:
        """Whether there is a kernel for what `Backend.unsupported` calls op."""
        return op.removesuffix("_ordered").removesuffix("_operands") in _OPS

    @staticmethod
    def convolve(work: Pass, how: How) -> None:
        """Writes all of work.out that has taps."""
        raise NotImplementedError

    @staticmethod
    def multiply_matrices(work: Matrices, how: How, scales: Scales | None) -> None:
        """Writes work.out."""
        raise NotImplementedError

    def multiply(self, product: Product, how: How, scales: Scales | None = None) -> Tensor:
        """`Backend.multiply`."""
        if has_core(how.acc):
            raise NotImplementedError(_NO_CORES)
        if product.conv is not None:
            return self._convolve(product, how)
        left, right = product.left, product.right
        out = torch.empty(product.shape, dtype=torch.float32, device=left.device)
        if out.numel() == 0:
            return out
        batch = out.shape[:-2]
        if batch and right.dim() == 2 and left.is_contiguous():
            # The rows of one matrix have the same keys, and right is packed once for all of them.
            left, batch = left.view(out.shape[:-1].numel(), left.shape[-1]), torch.Size()
        bias, initial = (
            None if x is None else x.contiguous() for x in (product.bias, product.initial)
        )
        self.multiply_matrices(Matrices(left, right, out, batch, bias, initial), how, scales)
        return out

    def _convolve(self, product: Product, how: How) -> Tensor:
        assert product.conv is not None
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
        self.convolve(Pass(g, build, out, image, frame, rows, kind == "conv_wgrad", bias), how)
        return out

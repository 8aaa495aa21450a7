"""The ``cuda`` backend: tensors as device pointers to csrc/cuda, on torch's current stream.

It quantizes to float and fixed formats, multiplies matrices and makes the three passes of
convolutions, with sums in sequence and in chunks. torch sums chunks of order "native". Trees,
compensated sums and aligned blocks are left to the ``triton`` backend, and so is all other
elementwise work on a GPU (counts, codes, block and affine formats, updates).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from lpkernels import _build
from lpkernels.arithmetic.integers import SEQUENTIAL, InAccumulator, has_core
from lpkernels.backends import How, Product, Rounding, Scales
from lpkernels.backends._gpu import GpuBackend
from lpkernels.backends.cuda import _conv, _products, _quantize
from lpkernels.formats.integers import AFFINE, KIND, takes_scales

#: Elementwise operations that csrc/cuda leaves to Triton, as `Backend.unsupported` calls them.
TRITON_ALONE = (
    "quantize_counting", "quantize_affine", "quantize_block", "scaled", "dequantize", "hadamard",
    "pack", "pack_scaled", "unpack", "update",
)  # fmt: skip


_NO_OTHER_SUMS = (
    "csrc/cuda sums in sequence and in chunks alone, not in other orders or aligned blocks: "
    "backend='triton' has these"
)


def _left_to_triton(op: str) -> NotImplementedError:
    return NotImplementedError(f"on a GPU, {op} is an operation of the triton backend alone")


def _refuse(op: str, *arguments: Any) -> Any:
    raise _left_to_triton(op)


class CudaBackend(GpuBackend):
    """Kernels of csrc/cuda; see `lpkernels.backends.Backend` for the methods."""

    name = "cuda"
    sums_native = False

    def why_not(self) -> str:
        if torch.version.cuda is None:
            return f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch"
        if not torch.cuda.is_available():
            return "torch finds no CUDA device; check nvidia-smi and CUDA_VISIBLE_DEVICES"
        return _build.why_no_cuda()

    def unsupported(self, op: str, device: torch.device) -> str:
        if device.type != "cuda":
            return f"it takes tensors on a CUDA device, these are on {device}"
        if op.endswith("_table"):
            return "csrc/cuda knows no tables (lp.TableFormat); the triton backend rounds to them"
        if op in TRITON_ALONE:
            return str(_left_to_triton(op))
        if op.endswith(("_ordered", "_operands")):
            return _NO_OTHER_SUMS
        if reason := self.why_no_core(op):
            return reason
        return "" if self.has(op) else f"csrc/cuda has no kernel yet for {op}"

    def quantize(self, rounding: Rounding) -> None:
        """`Backend.quantize`, to float and fixed formats without counts."""
        if takes_scales(rounding.quantizer):
            affine = rounding.quantizer[KIND] == AFFINE
            raise _left_to_triton("quantize_affine" if affine else "quantize_block")
        if rounding.counts is not None:
            raise _left_to_triton("quantize_counting")
        _quantize.quantize(rounding)

    def multiply(self, product: Product, how: How, scales: Scales | None = None) -> Tensor:
        """`Backend.multiply`, of sums in sequence and in chunks."""
        other = how.acc[InAccumulator.ORDER] != SEQUENTIAL or how.acc[InAccumulator.BLOCK]
        if other and not has_core(how.acc):
            raise NotImplementedError(_NO_OTHER_SUMS)
        return super().multiply(product, how, scales)

    multiply_matrices = staticmethod(_products.multiply_matrices)
    convolve = staticmethod(_conv.convolve)
    accumulate = staticmethod(_products.accumulate)
    hadamard = staticmethod(partial(_refuse, "hadamard"))
    pack = staticmethod(partial(_refuse, "pack"))
    unpack = staticmethod(partial(_refuse, "unpack"))
    update = staticmethod(partial(_refuse, "update"))


BACKEND = CudaBackend()

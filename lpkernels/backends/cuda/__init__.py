"""The ``cuda`` backend: tensors as device pointers to csrc/cuda, on torch's current stream.

Quantizes to float and fixed formats, multiplies matrices and makes the three passes of convolutions
with every accumulator that adds in sequence or in chunks, and adds the sums of native chunks; every
other operation says that there is no kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import _build
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends.cuda import _conv, _products, _quantize

_ELEMENTWISE_KINDS = (0, 1)
_OPS = ("quantize", "matmul", "conv_fprop", "conv_dgrad", "conv_wgrad", "accumulate")
# Of an accumulator's integers: order 0 is "sequential", block 0 no aligned blocks.
_ORDER, _BLOCK = 0, 32


def _check_order(op: str, acc: tuple[int, ...]) -> None:
    if acc[_ORDER] != 0 or acc[_BLOCK] != 0:
        raise NotImplementedError(
            f"{op}: csrc/cuda has kernels for sums in sequence and in chunks only, not for "
            'order "pairwise" or "compensated" or for aligned blocks; use backend="reference"'
        )


class CudaBackend:
    """Kernels of csrc/cuda; see `lpkernels.backends.Backend` for the methods."""

    name = "cuda"
    fuses = True
    sums_native = False

    def available(self) -> bool:
        return not self.why_not()

    def why_not(self) -> str:
        if torch.version.cuda is None:
            return f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch"
        if not torch.cuda.is_available():
            return "torch finds no CUDA device; check nvidia-smi and CUDA_VISIBLE_DEVICES"
        return _build.why_no_cuda()

    def unsupported(self, op: str, device: torch.device) -> str:
        if device.type != "cuda":
            return f"it takes tensors on a CUDA device, these are on {device}"
        return "" if op in _OPS else f"csrc/cuda has no kernel yet for {op}"

    def quantize(
        self,
        x: Tensor,
        quantizer: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        site: int,
        out: Tensor,
    ) -> None:
        if quantizer[0] not in _ELEMENTWISE_KINDS:
            raise NotImplementedError(
                "quantize: csrc/cuda has no kernel yet for AffineFormat and BlockFormat; "
                'use backend="reference"'
            )
        _quantize.quantize(x, quantizer, seed, role, site, out)

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        _check_order("matmul", acc)
        return _products.matmul(a, b, bias, acc, seed, role, fused)

    def conv_fprop(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        _check_order("conv_fprop", acc)
        shape = (stride, padding, dilation, groups)
        return _conv.conv_fprop(x, w, bias, *shape, acc, seed, role, fused)

    def conv_dgrad(
        self,
        grad_output: Tensor,
        w: Tensor,
        input_shape: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        _check_order("conv_dgrad", acc)
        shape = (stride, padding, dilation, groups)
        return _conv.conv_dgrad(grad_output, w, input_shape, *shape, acc, seed, role, fused)

    def conv_wgrad(
        self,
        x: Tensor,
        grad_output: Tensor,
        weight_shape: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        _check_order("conv_wgrad", acc)
        shape = (stride, padding, dilation, groups)
        return _conv.conv_wgrad(x, grad_output, weight_shape, *shape, acc, seed, role, fused)

    def accumulate(
        self,
        total: Tensor,
        addend: Tensor,
        rows_cols: tuple[int, int],
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        site: int,
        k: int,
    ) -> None:
        _products.accumulate(total, addend, rows_cols, acc, seed, role, site, k)


BACKEND = CudaBackend()

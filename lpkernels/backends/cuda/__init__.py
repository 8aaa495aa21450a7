"""The ``cuda`` backend: tensors as device pointers to csrc/cuda, on torch's current stream.

Quantizes to float and fixed formats, multiplies matrices with every accumulator that adds in
sequence or in chunks, and adds the sums of native chunks; every other operation says that there is
no kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import _build
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends.cuda import _products, _quantize

_ELEMENTWISE_KINDS = (0, 1)
_OPS = ("quantize", "matmul", "accumulate")
# Of an accumulator's integers: order 0 is "sequential", block 0 no aligned blocks.
_ORDER, _BLOCK = 0, 32


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
        if acc[_ORDER] != 0 or acc[_BLOCK] != 0:
            raise NotImplementedError(
                "matmul: csrc/cuda has kernels for sums in sequence and in chunks only, not for "
                'order "pairwise" or "compensated" or for aligned blocks; use backend="reference"'
            )
        return _products.matmul(a, b, bias, acc, seed, role, fused)

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

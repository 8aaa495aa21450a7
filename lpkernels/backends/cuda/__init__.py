"""The ``cuda`` backend: tensors as device pointers to csrc/cuda, on torch's current stream.

Quantizes to every format, packs and unpacks, multiplies matrices and makes the three passes of
convolutions with every accumulator, native chunks on tensor cores where operands fit half precision
or bfloat16; every other operation says that there is no kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import _build
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends._gpu import GpuBackend, Pass
from lpkernels.backends.cuda import _conv, _counting, _packing, _products, _quantize, _update
from lpkernels.formats.integers import KIND

_OPS = (
    "quantize",
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
# By the first integer of a format.
_QUANTIZE = (
    _quantize.quantize,
    _quantize.quantize,
    _quantize.quantize_scaled,
    _quantize.quantize_scaled,
)


class CudaBackend(GpuBackend):
    """Kernels of csrc/cuda; see `lpkernels.backends.Backend` for the methods."""

    name = "cuda"
    fuses = True
    sums_native = True

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
        known = op.removesuffix("_ordered").removesuffix("_operands") in _OPS
        return "" if known else f"csrc/cuda has no kernel yet for {op}"

    def quantize(
        self,
        x: Tensor,
        quantizer: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        site: int,
        out: Tensor,
    ) -> None:
        _QUANTIZE[quantizer[KIND]](x, quantizer, seed, role, site, out)

    def quantize_counting(
        self,
        x: Tensor,
        quantizer: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        site: int,
        out: Tensor | None,
        counts: Tensor | None,
        limits: Tensor | None,
    ) -> None:
        _counting.quantize_counting(x, quantizer, seed, role, site, out, counts, limits)

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
        initial: Tensor | None = None,
    ) -> Tensor:
        return _products.matmul(a, b, bias, acc, seed, role, fused, initial)

    def convolve(self, work: Pass, acc: tuple[int, ...], seed: Tensor | None, role: int) -> None:
        _conv.convolve(work, acc, seed, role)

    update = staticmethod(_update.update)

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

    def pack(self, x: Tensor, fmt: tuple[int, ...]) -> Tensor:
        return _packing.pack(x, fmt)

    def unpack(self, codes: Tensor, fmt: tuple[int, ...], shape: list[int]) -> Tensor:
        return _packing.unpack(codes, fmt, shape)


BACKEND = CudaBackend()

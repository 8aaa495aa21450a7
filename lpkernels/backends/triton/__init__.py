"""The ``triton`` backend: kernels that Triton compiles on first use, without nvcc.

It takes tensors of a CUDA device, or with TRITON_INTERPRET=1 set before the first import, when
Triton runs every kernel in its interpreter, tensors on the CPU: slow, for tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends._gpu import GpuBackend, Pass
from lpkernels.backends.triton import _launch
from lpkernels.formats.integers import AFFINE, BLOCK, FIXED, FLOAT, KIND

_launch.require_version()

from lpkernels.backends.triton import _conv, _matmul  # noqa: E402
from lpkernels.backends.triton.elementwise import accumulate as _accumulate  # noqa: E402
from lpkernels.backends.triton.elementwise import affine, block, counting, packing  # noqa: E402
from lpkernels.backends.triton.elementwise import quantize as _quantize  # noqa: E402
from lpkernels.backends.triton.elementwise import update as _update  # noqa: E402

__all__ = ["BACKEND", "TritonBackend"]

# By the first integer of a format.
_QUANTIZE = {
    FLOAT: _quantize.quantize,
    FIXED: _quantize.quantize,
    AFFINE: affine.quantize,
    BLOCK: block.quantize,
}
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


class TritonBackend(GpuBackend):
    """Kernels of this package; see `lpkernels.backends.Backend` for the methods."""

    name = "triton"
    fuses = True
    sums_native = True

    def available(self) -> bool:
        return not self.why_not()

    def why_not(self) -> str:
        if _launch.interpreting() or torch.cuda.is_available():
            return ""
        return (
            "torch finds no CUDA device; check nvidia-smi and CUDA_VISIBLE_DEVICES, or set "
            "TRITON_INTERPRET=1 before the first import to run kernels in Triton's interpreter"
        )

    def unsupported(self, op: str, device: torch.device) -> str:
        home = "cpu" if _launch.interpreting() else "cuda"
        if device.type != home:
            return f"it takes tensors on a {home.upper()} device here, these are on {device}"
        if op in ("matmul_events", "masked_gradients"):
            return "its kernels count no events; those of the cpu backend do"
        known = op.removesuffix("_ordered").removesuffix("_operands") in _OPS
        return "" if known else f"it has no kernel yet for {op}"

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
        counting.quantize_counting(x, quantizer, seed, role, site, out, counts, limits)

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
        return _matmul.matmul(a, b, bias, acc, seed, role, fused, initial)

    update = staticmethod(_update.update)

    def convolve(self, work: Pass, acc: tuple[int, ...], seed: Tensor | None, role: int) -> None:
        _conv.convolve(work, acc, seed, role)

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
        _accumulate.accumulate(total, addend, rows_cols, acc, seed, role, site, k)

    def pack(self, x: Tensor, fmt: tuple[int, ...]) -> Tensor:
        return packing.pack(x, fmt)

    def unpack(self, codes: Tensor, fmt: tuple[int, ...], shape: list[int]) -> Tensor:
        return packing.unpack(codes, fmt, shape)


BACKEND = TritonBackend()

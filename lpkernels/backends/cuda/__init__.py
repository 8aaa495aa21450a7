"""The ``cuda`` backend: tensors as device pointers to csrc/cuda, on torch's current stream.

It quantizes to every format, packs and unpacks, multiplies matrices and makes the three passes of
convolutions with every accumulator, with native chunks on tensor cores where operands fit half
precision or bfloat16. Every other operation says that there is no kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import _build
from lpkernels.backends._gpu import GpuBackend
from lpkernels.backends.cuda import _conv, _counting, _packing, _products, _quantize, _update
from lpkernels.formats.integers import KIND

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

    def why_not(self) -> str:
        if torch.version.cuda is None:
            return f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch"
        if not torch.cuda.is_available():
            return "torch finds no CUDA device; check nvidia-smi and CUDA_VISIBLE_DEVICES"
        return _build.why_no_cuda()

    def unsupported(self, op: str, device: torch.device) -> str:
        if device.type != "cuda":
            return f"it takes tensors on a CUDA device, these are on {device}"
        return "" if self.has(op) else f"csrc/cuda has no kernel yet for {op}"

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

    quantize_counting = staticmethod(_counting.quantize_counting)
    matmul = staticmethod(_products.matmul)
    convolve = staticmethod(_conv.convolve)
    accumulate = staticmethod(_products.accumulate)
    pack = staticmethod(_packing.pack)
    unpack = staticmethod(_packing.unpack)
    update = staticmethod(_update.update)


BACKEND = CudaBackend()

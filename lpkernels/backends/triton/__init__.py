"""The ``triton`` backend: kernels that Triton compiles on first use, without nvcc.

It takes tensors of a CUDA device. With TRITON_INTERPRET=1 set before the first import Triton runs
every kernel in its interpreter, and the backend takes tensors on the CPU: this is slow, and meant
for tests.
"""

from __future__ import annotations

import torch

from lpkernels.backends import Rounding
from lpkernels.backends._gpu import GpuBackend
from lpkernels.backends._layout import laid_out
from lpkernels.backends.triton import _launch
from lpkernels.formats.integers import AFFINE, BLOCK, FIXED, FLOAT, KIND, TABLE

_launch.require_version()

from lpkernels.backends.triton import _conv, _matmul  # noqa: E402
from lpkernels.backends.triton.elementwise import accumulate as _accumulate  # noqa: E402
from lpkernels.backends.triton.elementwise import affine, block, packing  # noqa: E402
from lpkernels.backends.triton.elementwise import hadamard as _hadamard  # noqa: E402
from lpkernels.backends.triton.elementwise import quantize as _quantize  # noqa: E402
from lpkernels.backends.triton.elementwise import update as _update  # noqa: E402

__all__ = ["BACKEND", "TritonBackend"]

# By the first integer of a format.
_QUANTIZE = {
    **dict.fromkeys((FLOAT, FIXED, TABLE), _quantize.quantize),
    AFFINE: affine.quantize,
    BLOCK: block.quantize,
}


class TritonBackend(GpuBackend):
    """Kernels of this package; see `lpkernels.backends.Backend` for the methods."""

    name = "triton"
    fuses_tables = True

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
        if op == "update_table":
            return "its kernels of updates know no tables (lp.TableFormat); the cpu backend's do"
        op = op.removesuffix("_table")
        if reason := self.why_no_core(op):
            return reason
        if op == "matmul_events":
            return "its kernels count no events; those of the cpu backend do"
        return "" if self.has(op) else f"it has no kernel yet for {op}"

    def has(self, op: str) -> bool:
        """Products by scale are this backend's alone on a GPU."""
        return op.startswith("matmul_scaled") or super().has(op)

    def quantize(self, rounding: Rounding) -> None:
        if rounding.x.numel() == 0:
            return
        x, out = laid_out(rounding.x, rounding.out, rounding.quantizer)
        with _launch.on_device(x):
            _QUANTIZE[rounding.quantizer[KIND]](rounding._replace(x=x, out=out))
        if out is not None and rounding.out is not None and out is not rounding.out:
            rounding.out.copy_(out)

    multiply_matrices = staticmethod(_matmul.multiply_matrices)
    convolve = staticmethod(_conv.convolve)
    accumulate = staticmethod(_accumulate.accumulate)
    hadamard = staticmethod(_hadamard.hadamard)
    pack = staticmethod(packing.pack)
    unpack = staticmethod(packing.unpack)
    update = staticmethod(_update.update)


BACKEND = TritonBackend()

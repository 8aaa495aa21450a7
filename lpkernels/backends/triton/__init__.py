"""The ``triton`` backend: kernels that Triton compiles on first use, without nvcc.

It takes tensors of a CUDA device, or with TRITON_INTERPRET=1 set before the first import, when
Triton runs every kernel in its interpreter, tensors on the CPU: slow, for tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends.triton import _conv, _launch, _matmul, _quantize

_ELEMENTWISE_KINDS = (0, 1)
_OPS = ("quantize", "matmul", "conv_fprop", "conv_dgrad", "conv_wgrad")


class TritonBackend:
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
        if op == "matmul_events":
            return "its kernels count no events; those of the cpu backend do"
        return "" if op in _OPS else f"it has no kernel yet for {op}"

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
            raise NotImplementedError
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
        return _matmul.matmul(a, b, bias, acc, seed, role, fused)

    conv_fprop = staticmethod(_conv.conv_fprop)
    conv_dgrad = staticmethod(_conv.conv_dgrad)
    conv_wgrad = staticmethod(_conv.conv_wgrad)


BACKEND = TritonBackend()

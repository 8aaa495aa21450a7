"""The ``cuda`` backend: tensors as device pointers to csrc/cuda, on torch's current stream.

It has one kernel so far, quantize for FloatFormat and FixedFormat; every other operation says so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import _build

# The order of lpk::cuda::ElementType in csrc/cuda/quantize.h.
_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
_MAX_DIMS = 8
_ELEMENTWISE_KINDS = (0, 1)


class CudaBackend:
    """Kernels of csrc/cuda; see `lpkernels.backends.Backend` for the methods."""

    name = "cuda"
    fuses = False
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
        return "" if op == "quantize" else f"csrc/cuda has no kernel yet for {op}"

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
        with torch.cuda.device(x.device):
            sizes, x_strides, out_strides = collapsed(x, out)
            if len(sizes) > _MAX_DIMS:
                x = x.contiguous()
                dense = out if out.is_contiguous() else torch.empty_like(x, dtype=out.dtype)
                self.quantize(x, quantizer, seed, role, site, dense)
                if dense is not out:
                    out.copy_(dense)
                return
            on_device = seed is not None and seed.is_cuda
            seed = seed.to(x.device) if seed is not None and on_device else seed
            _build.load_extension().cuda_quantize(
                x=x.data_ptr(),
                x_type=_DTYPES[x.dtype],
                out=out.data_ptr(),
                out_type=_DTYPES[out.dtype],
                sizes=sizes,
                x_strides=x_strides,
                out_strides=out_strides,
                quantizer=list(quantizer),
                seed=0 if seed is None or on_device else int(seed) % 2**64,
                device_seed=seed.data_ptr() if seed is not None and on_device else 0,
                role=role,
                site=site,
                stream=torch.cuda.current_stream(x.device).cuda_stream,
            )


def collapsed(x: Tensor, out: Tensor) -> tuple[list[int], list[int], list[int]]:
    """The shape and both strides with the fewest dimensions: those that step as one are merged.

    Returns: sizes, x's strides, out's strides, outermost first; no entry for a single element.
    """
    sizes: list[int] = []
    x_strides: list[int] = []
    out_strides: list[int] = []
    for size, x_stride, out_stride in zip(x.shape, x.stride(), out.stride(), strict=True):
        if size == 1:
            continue
        if sizes and x_strides[-1] == size * x_stride and out_strides[-1] == size * out_stride:
            sizes[-1] *= size
            x_strides[-1], out_strides[-1] = x_stride, out_stride
        else:
            sizes.append(size)
            x_strides.append(x_stride)
            out_strides.append(out_stride)
    return sizes, x_strides, out_strides


BACKEND = CudaBackend()

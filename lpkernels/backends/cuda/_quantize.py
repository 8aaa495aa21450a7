"""Rounding of tensors of any strides to float and fixed formats by csrc/cuda/elementwise."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.backends import Rounding
from lpkernels.backends.cuda._launch import Seed, module, on_device, stream

# The order of lpk::cuda::ElementType in csrc/cuda/elementwise/quantize.h.
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
MAX_DIMS = 8


def quantize(rounding: Rounding) -> None:
    """Round every value of x into out; a float or fixed format."""
    x, quantizer, seed, role, site, out, *_ = rounding
    assert out is not None
    sizes, x_strides, out_strides = collapsed(x, out)
    if len(sizes) > MAX_DIMS:
        dense = (
            out
            if out.is_contiguous()
            else torch.empty(out.shape, dtype=out.dtype, device=out.device)
        )
        quantize(rounding._replace(x=x.contiguous(), out=dense))
        if dense is not out:
            out.copy_(dense)
        return
    with on_device(x):
        draws = Seed(seed, x.device)
        module().cuda_quantize(
            x=x.data_ptr(),
            x_type=DTYPES[x.dtype],
            out=out.data_ptr(),
            out_type=DTYPES[out.dtype],
            sizes=sizes,
            x_strides=x_strides,
            out_strides=out_strides,
            quantizer=list(quantizer),
            seed=draws.value,
            device_seed=draws.pointer,
            role=role,
            site=site,
            stream=stream(x),
        )


def collapsed(x: Tensor, out: Tensor) -> tuple[list[int], list[int], list[int]]:
    """The shape and both strides with the fewest dimensions: dimensions that step as one are
    merged.

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

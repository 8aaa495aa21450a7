"""Rounding of tensors by csrc/cuda/elementwise: quantize.cu takes any strides; quantize_blocks.cu
and quantize_affine.cu, for block and affine formats, take dense tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.backends._layout import axis_sizes
from lpkernels.backends.cuda._launch import Seed, module, on_device, stream
from lpkernels.formats.integers import AFFINE, KIND

# The order of lpk::cuda::ElementType in csrc/cuda/elementwise/quantize.h.
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
MAX_DIMS = 8


def quantize(
    x: Tensor,
    quantizer: tuple[int, ...],
    seed: Tensor | None,
    role: int,
    site: int,
    out: Tensor,
) -> None:
    """Round every value of x into out; a float or fixed format."""
    sizes, x_strides, out_strides = collapsed(x, out)
    if len(sizes) > MAX_DIMS:
        x = x.contiguous()
        dense = out if out.is_contiguous() else torch.empty_like(x, dtype=out.dtype)
        quantize(x, quantizer, seed, role, site, dense)
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


def quantize_scaled(
    x: Tensor,
    quantizer: tuple[int, ...],
    seed: Tensor | None,
    role: int,
    site: int,
    out: Tensor,
) -> None:
    """Round every value of x into out; a block or an affine format."""
    if x.numel() == 0:
        return
    x = x.contiguous()
    whole = out.is_contiguous() and out.dtype == torch.float32
    target = out if whole else torch.empty_like(x, dtype=torch.float32)
    sizes = axis_sizes(x.shape, quantizer)
    slices = sizes[1] if quantizer[KIND] == AFFINE else 0
    with on_device(x):
        draws = Seed(seed, x.device)
        # The least and the largest value of each slice, then the line between them.
        ends = torch.empty(slices, 2, dtype=torch.int64, device=x.device)
        lines = torch.empty(slices, 4, dtype=torch.float64, device=x.device)
        module().cuda_quantize_scaled(
            x=x.data_ptr(),
            x_type=DTYPES[x.dtype],
            out=target.data_ptr(),
            sizes=sizes,
            quantizer=list(quantizer),
            seed=draws.value,
            device_seed=draws.pointer,
            role=role,
            site=site,
            scratch=[ends.data_ptr(), lines.data_ptr()],
            stream=stream(x),
        )
    if target is not out:
        out.copy_(target)


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

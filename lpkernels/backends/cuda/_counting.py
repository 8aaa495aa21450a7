"""Rounding that counts, and affine formats in given ranges, by csrc/cuda/elementwise: count.cu
takes any strides, count_scaled.cu dense tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.backends import COUNTS
from lpkernels.backends._layout import axis_sizes
from lpkernels.backends.cuda._launch import Seed, module, on_device, stream
from lpkernels.backends.cuda._quantize import DTYPES, MAX_DIMS, collapsed
from lpkernels.formats.integers import AFFINE, KIND, takes_scales

_FLOAT32 = 0


class _Call(NamedTuple):
    """The request to both launches: how to round, by which draws, and where to count."""

    quantizer: tuple[int, ...]
    seed: Tensor | None
    role: int
    site: int
    counting: list[int]


def quantize_counting(
    x: Tensor,
    quantizer: tuple[int, ...],
    seed: Tensor | None,
    role: int,
    site: int,
    out: Tensor | None,
    counts: Tensor | None,
    limits: Tensor | None,
) -> None:
    """As `Backend.quantize_counting`."""
    counting = [
        0 if counts is None else counts.data_ptr(),
        int(counts is not None and counts.numel() > COUNTS),
        0 if limits is None else limits.data_ptr(),
    ]
    call = _Call(quantizer, seed, role, site, counting)
    if takes_scales(quantizer):
        x = x.contiguous()
        whole = out is None or (out.is_contiguous() and out.dtype == torch.float32)
        target = out if whole else torch.empty_like(x, dtype=torch.float32)
        _scaled(call, x, target, finds_ends=limits is None)
    else:
        target = out
        if len(collapsed(x, x if out is None else out)[0]) > MAX_DIMS:
            x = x.contiguous()
            if out is not None and not out.is_contiguous():
                target = torch.empty_like(x, dtype=out.dtype)
        _elements(call, x, target)
    if out is not None and target is not None and target is not out:
        out.copy_(target)


def _elements(call: _Call, x: Tensor, out: Tensor | None) -> None:
    quantizer, seed, role, site, counting = call
    sizes, x_strides, out_strides = collapsed(x, x if out is None else out)
    with on_device(x):
        draws = Seed(seed, x.device)
        module().cuda_count(
            x=x.data_ptr(),
            x_type=DTYPES[x.dtype],
            out=0 if out is None else out.data_ptr(),
            out_type=_FLOAT32 if out is None else DTYPES[out.dtype],
            sizes=sizes,
            x_strides=x_strides,
            out_strides=out_strides,
            quantizer=list(quantizer),
            seed=draws.value,
            device_seed=draws.pointer,
            role=role,
            site=site,
            counting=counting,
            stream=stream(x),
        )


def _scaled(call: _Call, x: Tensor, out: Tensor | None, *, finds_ends: bool) -> None:
    quantizer, seed, role, site, counting = call
    sizes = axis_sizes(x.shape, quantizer)
    slices = sizes[1] if quantizer[KIND] == AFFINE else 0
    with on_device(x):
        draws = Seed(seed, x.device)
        ends = torch.empty(slices if finds_ends else 0, 2, dtype=torch.int64, device=x.device)
        lines = torch.empty(slices, 4, dtype=torch.float64, device=x.device)
        module().cuda_count_scaled(
            x=x.data_ptr(),
            x_type=DTYPES[x.dtype],
            out=0 if out is None else out.data_ptr(),
            sizes=sizes,
            quantizer=list(quantizer),
            seed=draws.value,
            device_seed=draws.pointer,
            role=role,
            site=site,
            scratch=[ends.data_ptr(), lines.data_ptr()],
            counting=counting,
            stream=stream(x),
        )

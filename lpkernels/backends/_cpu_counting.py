"""Rounding that counts in csrc/cpu, and affine formats in given ranges."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends._layout import dense, kernel_sizes
from lpkernels.backends._protocol import COUNTS
from lpkernels.formats.integers import takes_scales
from lpkernels.rounding import STOCHASTIC

# The order of lpk::ElementType in csrc/cpu/drivers/element_types.h.
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}


def by_position(quantizer: tuple[int, ...]) -> bool:
    """Whether an element's result depends on its place in the tensor."""
    return takes_scales(quantizer) or quantizer[InQuantizer.ROUNDING] == STOCHASTIC


def quantize_counting(
    module: ModuleType,
    x: Tensor,
    quantizer: tuple[int, ...],
    seed: int,
    role: int,
    site: int,
    out: Tensor | None,
    counts: Tensor | None,
    limits: Tensor | None,
    stream_bytes: int,
) -> None:
    """As `Backend.quantize_counting`; module is lpkernels._C."""
    other_order = out is not None and x.stride() != out.stride()
    if by_position(quantizer) or other_order or not dense(x):
        x = x.contiguous()
    target = out
    if out is not None and out.stride() != x.stride():
        target = torch.empty_like(x, dtype=out.dtype)
    module.quantize_counting(
        x.data_ptr(),
        0 if target is None else target.data_ptr(),
        DTYPES[x.dtype],
        0 if target is None else DTYPES[target.dtype],
        kernel_sizes(x.shape, quantizer),
        quantizer,
        seed,
        role,
        site,
        torch.get_num_threads(),
        stream_bytes,
        0 if counts is None else counts.data_ptr(),
        0 if counts is None else counts.numel() - COUNTS,
        0 if limits is None else limits.data_ptr(),
    )
    if out is not None and target is not None and target is not out:
        out.copy_(target)

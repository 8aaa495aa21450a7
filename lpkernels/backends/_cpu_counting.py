"""Rounding that counts in csrc/cpu, and affine formats in given ranges."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends._cpu_module import DTYPES, CpuModule, seed_int
from lpkernels.backends._layout import dense, kernel_sizes
from lpkernels.backends._protocol import COUNTS
from lpkernels.formats.integers import takes_scales
from lpkernels.rounding import STOCHASTIC


def by_position(quantizer: tuple[int, ...]) -> bool:
    """Whether an element's result depends on its place in the tensor."""
    return takes_scales(quantizer) or quantizer[InQuantizer.ROUNDING] == STOCHASTIC


class CountingKernels(CpuModule):
    """A method of `Backend`."""

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
        other_order = out is not None and x.stride() != out.stride()
        if by_position(quantizer) or other_order or not dense(x):
            x = x.contiguous()
        target = out
        if out is not None and out.stride() != x.stride():
            target = torch.empty_like(x, dtype=out.dtype)
        self._c().quantize_counting(
            x.data_ptr(),
            0 if target is None else target.data_ptr(),
            DTYPES[x.dtype],
            0 if target is None else DTYPES[target.dtype],
            kernel_sizes(x.shape, quantizer),
            quantizer,
            seed_int(seed),
            role,
            site,
            torch.get_num_threads(),
            self.stream_bytes,
            0 if counts is None else counts.data_ptr(),
            0 if counts is None else counts.numel() - COUNTS,
            0 if limits is None else limits.data_ptr(),
        )
        if out is not None and target is not None and target is not out:
            out.copy_(target)

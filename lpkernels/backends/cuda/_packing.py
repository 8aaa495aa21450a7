"""Values to codes and back: pointers to csrc/cuda/elementwise/codes.cu.

Values without a code are found on the device. Whether there is one must be known before pack
returns, so it waits for the device once and cannot be in a captured graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lpkernels.backends._layout import axis_sizes
from lpkernels.backends.cuda._launch import module, on_device, stream
from lpkernels.formats.integers import BLOCK, KIND, InBlock, code_bits

_NONE = 2**63 - 1


def _bytes(fmt: tuple[int, ...], sizes: list[int]) -> int:
    outer, length, inner = sizes
    scales = outer * inner * -(-length // fmt[InBlock.SIZE]) if fmt[KIND] == BLOCK else 0
    return (math.prod(sizes) * code_bits(fmt) + 8 * scales + 7) // 8


def pack(x: Tensor, fmt: tuple[int, ...]) -> Tensor:
    """As `lpkernels.backends.Backend.pack`; the ValueError names the first element without one."""
    x = x.contiguous()
    sizes = axis_sizes(x.shape, fmt)
    size = _bytes(fmt, sizes)
    words = torch.empty(-(-size // 4), dtype=torch.int32, device=x.device)
    if x.numel() == 0:
        return words.view(torch.uint8)
    with on_device(x):
        refused = torch.full((1,), _NONE, dtype=torch.int64, device=x.device)
        module().cuda_pack(
            x=x.data_ptr(),
            format=list(fmt),
            sizes=sizes,
            words=words.data_ptr(),
            refused=refused.data_ptr(),
            stream=stream(x),
        )
    index = int(refused)
    if index != _NONE:
        raise ValueError(
            f"pack: element {index} (in row-major order) is {x.view(-1)[index].item()}, "
            "for which the format has no code; quantize to the format first"
        )
    return words.view(torch.uint8)[:size]


def unpack(codes: Tensor, fmt: tuple[int, ...], shape: list[int]) -> Tensor:
    """As `lpkernels.backends.Backend.unpack`."""
    out = torch.empty(shape, dtype=torch.float32, device=codes.device)
    if out.numel() == 0:
        return out
    codes = codes.contiguous()
    with on_device(codes):
        module().cuda_unpack(
            codes=codes.data_ptr(),
            bytes=codes.numel(),
            format=list(fmt),
            sizes=axis_sizes(out.shape, fmt),
            out=out.data_ptr(),
            stream=stream(codes),
        )
    return out

"""Codes and scales of block formats in csrc/cpu: packing, and products by scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.backends._cpu_counting import DTYPES
from lpkernels.backends._layout import NO_OFFSET, batch_offsets, by_batch, kernel_sizes
from lpkernels.backends._protocol import How, Product, Scales
from lpkernels.formats.grids import grid_shape

_FLOAT32: Any = {"dtype": torch.float32, "device": torch.device("cpu")}
_BYTES: Any = {"dtype": torch.uint8, "device": torch.device("cpu")}


def scaled(
    module: ModuleType,
    x: Tensor,
    quantizer: tuple[int, ...],
    seed: int,
    role: int,
    site: int,
    amax: Tensor | None,
    stream_bytes: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `Backend.scaled`; module is lpkernels._C."""
    x = x.contiguous()
    shape = grid_shape(x.shape, quantizer)
    parts = [torch.empty(size, **_FLOAT32) for size in (x.shape, shape, ())]
    module.scaled(
        x.data_ptr(),
        DTYPES[x.dtype],
        [part.data_ptr() for part in parts],
        kernel_sizes(x.shape, quantizer),
        quantizer,
        seed,
        role,
        site,
        torch.get_num_threads(),
        stream_bytes,
        0 if amax is None else amax.data_ptr(),
    )
    values, scale, tensor_scale = parts
    return values, scale, tensor_scale


def dequantize(
    module: ModuleType, values: Tensor, scale: Tensor, tensor_scale: Tensor, fmt: tuple[int, ...]
) -> Tensor:
    """As `Backend.dequantize`."""
    values, scale = values.contiguous(), scale.contiguous()
    out = torch.empty(values.shape, **_FLOAT32)
    sizes = kernel_sizes(values.shape, fmt)
    pointers = [part.data_ptr() for part in (values, scale, tensor_scale, out)]
    module.dequantize(*pointers, sizes, torch.get_num_threads())
    return out


def multiply_scaled(module: ModuleType, product: Product, scales: Scales, how: How) -> Tensor:
    """As `Backend.multiply_scaled`."""
    out = product.left.new_empty(product.shape)
    if out.numel() == 0:
        return out
    left, entries, offsets = by_batch(product.left, product.right, out.shape)
    of_rows, of_cols, places = scales.left, scales.right.contiguous(), (NO_OFFSET, NO_OFFSET)
    if entries == 1:
        # One product may be a batch as more rows.
        of_rows = of_rows.expand(*out.shape[:-1], of_rows.shape[-1]).contiguous()
    else:
        of_rows = of_rows.contiguous()
        places = (batch_offsets(of_rows, out.shape[:-2]), batch_offsets(of_cols, out.shape[:-2]))
    initial = None if product.initial is None else product.initial.contiguous()
    order = -how.acc[InAccumulator.CHUNK] if scales.float32 else 0
    pointers = [x.data_ptr() for x in (of_rows, of_cols, *places)]
    module.multiply_scaled(
        left.data_ptr(),
        product.right.data_ptr(),
        0 if initial is None else initial.data_ptr(),
        out.data_ptr(),
        (entries, left.shape[-2], product.right.shape[-1], left.shape[-1]),
        left.stride()[-2:],
        product.right.stride()[-2:],
        offsets[0].data_ptr(),
        offsets[1].data_ptr(),
        [*pointers, scales.left_size, scales.right_size, order],
        how.acc,
        0 if how.seed is None else int(how.seed),
        how.role,
        torch.get_num_threads(),
    )
    return out


def pack(module: ModuleType, x: Tensor, fmt: tuple[int, ...]) -> Tensor:
    """As `Backend.pack`."""
    x = x.contiguous()
    call = (kernel_sizes(x.shape, fmt), fmt, torch.get_num_threads())
    return _packed(module, x, fmt, lambda codes: module.pack(x.data_ptr(), codes, *call))


def pack_scaled(module: ModuleType, values: Tensor, scale: Tensor, fmt: tuple[int, ...]) -> Tensor:
    """As `Backend.pack_scaled`."""
    values, scale = values.contiguous(), scale.contiguous()
    call = (kernel_sizes(values.shape, fmt), fmt, torch.get_num_threads())
    return _packed(
        module,
        values,
        fmt,
        lambda codes: module.pack_scaled(values.data_ptr(), scale.data_ptr(), codes, *call),
    )


def _packed(
    module: ModuleType, x: Tensor, fmt: tuple[int, ...], pack_into: Callable[[int], int]
) -> Tensor:
    codes = torch.empty(module.packed_bytes(kernel_sizes(x.shape, fmt), fmt), **_BYTES)
    if math.prod(x.shape) == 0:
        return codes
    refused = pack_into(codes.data_ptr())
    if refused >= 0:
        raise ValueError(
            f"pack: element {refused} (in row-major order) is {x.view(-1)[refused].item()}, "
            "for which the format has no code; quantize to the format first"
        )
    return codes

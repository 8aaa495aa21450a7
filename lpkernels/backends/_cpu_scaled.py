"""Codes and scales of block formats in csrc/cpu: packing, and products with scales."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator, group_of
from lpkernels.backends._cpu_module import BYTES, DTYPES, FLOAT32, CpuModule, seed_int
from lpkernels.backends._layout import NO_OFFSET, batch_offsets, by_batch, kernel_sizes
from lpkernels.backends._protocol import How, Product, Scales
from lpkernels.formats.grids import grid_shape


class ScaledKernels(CpuModule):
    """Methods of `Backend`."""

    def scaled(
        self,
        x: Tensor,
        quantizer: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        site: int,
        amax: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = x.contiguous()
        shape = grid_shape(x.shape, quantizer)
        parts = [torch.empty(size, **FLOAT32) for size in (x.shape, shape, ())]
        self._c().scaled(
            x.data_ptr(),
            DTYPES[x.dtype],
            [part.data_ptr() for part in parts],
            kernel_sizes(x.shape, quantizer),
            quantizer,
            seed_int(seed),
            role,
            site,
            torch.get_num_threads(),
            self.stream_bytes,
            0 if amax is None else amax.data_ptr(),
        )
        values, scale, tensor_scale = parts
        return values, scale, tensor_scale

    def dequantize(
        self, values: Tensor, scale: Tensor, tensor_scale: Tensor, fmt: tuple[int, ...]
    ) -> Tensor:
        values, scale = values.contiguous(), scale.contiguous()
        out = torch.empty(values.shape, **FLOAT32)
        sizes = kernel_sizes(values.shape, fmt)
        pointers = [part.data_ptr() for part in (values, scale, tensor_scale, out)]
        self._c().dequantize(*pointers, sizes, torch.get_num_threads())
        return out

    def multiply_scaled(self, product: Product, scales: Scales, how: How) -> Tensor:
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
            places = (
                batch_offsets(of_rows, out.shape[:-2]),
                batch_offsets(of_cols, out.shape[:-2]),
            )
        initial = None if product.initial is None else product.initial.contiguous()
        order = -how.acc[InAccumulator.CHUNK] if scales.float32 else 0
        pointers = [x.data_ptr() for x in (of_rows, of_cols, *places)]
        self._c().multiply_scaled(
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
            seed_int(how.seed),
            how.role,
            torch.get_num_threads(),
        )
        return out

    def multiply_grouped(self, product: Product, scales: Scales, how: How) -> Tensor:
        left, right, shape = product.left, product.right, tuple(product.shape)
        lead, (rows, cols), length = shape[:-2], shape[-2:], left.shape[-1]
        out = torch.empty(shape, **FLOAT32)
        if out.numel() == 0:
            return out
        # With one right operand for the batch, the batch is more rows.
        shared = right.dim() == 2 and scales.right.dim() == 2
        batch = 1 if shared else math.prod(lead)

        def laid_out(x: Tensor, *, once: bool = False) -> Tensor:
            return (x if once else x.expand(*lead, *x.shape[-2:])).contiguous()

        tensors = [
            laid_out(left),
            laid_out(right, once=shared),
            laid_out(scales.left),
            laid_out(scales.right, once=shared),
            None if product.initial is None else product.initial.contiguous(),
            out,
        ]
        tall = rows * math.prod(lead) // batch
        sizes = [batch, tall, cols, length, scales.left_size, scales.right_size]
        sizes += [group_of(how.acc), scales.least]
        pointers = [0 if x is None else x.data_ptr() for x in tensors]
        self._c().multiply_grouped(pointers, sizes, how.acc, torch.get_num_threads())
        return out

    def pack(self, x: Tensor, fmt: tuple[int, ...], quantizer: tuple[int, ...] = ()) -> Tensor:
        x, module = x.contiguous(), self._c()
        sizes = kernel_sizes(x.shape, fmt)
        codes = torch.empty(module.packed_bytes(sizes, fmt), **BYTES)
        if x.numel():
            pointers = (x.data_ptr(), codes.data_ptr())
            place = module.pack(*pointers, sizes, fmt, quantizer, torch.get_num_threads())
            if place >= 0:
                raise _without_code(x, place)
        return codes

    def pack_scaled(self, values: Tensor, scale: Tensor, fmt: tuple[int, ...]) -> Tensor:
        values, scale, module = values.contiguous(), scale.contiguous(), self._c()
        sizes = kernel_sizes(values.shape, fmt)
        codes = torch.empty(module.packed_bytes(sizes, fmt), **BYTES)
        if values.numel():
            pointers = (values.data_ptr(), scale.data_ptr(), codes.data_ptr())
            place = module.pack_scaled(*pointers, sizes, fmt, torch.get_num_threads())
            if place >= 0:
                raise _without_code(values, place)
        return codes


def _without_code(x: Tensor, place: int) -> ValueError:
    """The error for the element at this place."""
    return ValueError(
        f"pack: element {place} (in row-major order) is {x.view(-1)[place].item()}, for which the "
        "format has no code; quantize to the format first"
    )

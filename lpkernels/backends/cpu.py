"""The ``cpu`` backend: tensors as pointers to csrc/cpu, on as many threads as torch uses.

Strided operands of products and convolutions are read where they lie. quantize reads dense tensors
where they lie and copies others once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends import KINDS, Convolution, How, Product, UpdateTensors
from lpkernels.backends._conv_geometry import geometry_of
from lpkernels.backends._conveniences import Conveniences
from lpkernels.backends._cpu_counting import CountingKernels, by_position
from lpkernels.backends._cpu_events import EventKernels
from lpkernels.backends._cpu_module import DTYPES, FLOAT32, seed_int
from lpkernels.backends._cpu_scaled import ScaledKernels
from lpkernels.backends._layout import (
    CODES,
    NO_OFFSET,
    by_batch,
    dense,
    kernel_sizes,
    strides,
    update_dtypes,
    update_parameters,
)
from lpkernels.formats.integers import BLOCK, KIND, TABLE, InBlock, without_zero

Shape = torch.Size | tuple[int, ...]
_NO_OFFSET = NO_OFFSET.data_ptr()
_ELEMENT_KIND = InBlock.ELEMENT.start
# How the values of an update lie.
_UPDATED = {**DTYPES, torch.uint8: CODES}


@lru_cache(maxsize=4096)
def _conv_sizes(x: Shape, w: Shape, y: Shape, conv: Convolution) -> Sequence[int]:
    """The 22 integers of a lpk::ConvShape."""
    return geometry_of(x, w, y, conv).ints()


class CpuBackend(CountingKernels, EventKernels, ScaledKernels, Conveniences):
    """Kernels of csrc/cpu; see `lpkernels.backends.Backend` for the methods."""

    name = "cpu"
    fuses = fuses_tables = packs_rounding = True
    sums_native = False

    def available(self) -> bool:
        return not self.why_not()

    def why_not(self) -> str:
        if self._module is not None:
            return ""
        try:
            self._c().isa()
        except (ImportError, ValueError) as error:
            return str(error)
        return ""

    def isa(self) -> str:
        """The instruction set in use, which LPKERNELS_ISA chooses: scalar; avx2, avx512 or
        avx512fp16 on x86-64; neon or neonfp16 on ARM."""
        return self._c().isa()

    def take_tiers(self) -> dict[str, float]:
        """The share of products that each tier of kernels accumulated since the last call.

        Tiers: "hardware" (half precision by the processor), "certified" (float32 or double, proved
        safe by the operands), "float" (float32 sums made odd), "double" (everything else). The
        padding of work blocks at an edge counts as products. All are zero if nothing ran.
        """
        counts = self._c().take_tiers()
        total = sum(counts.values()) or 1
        return {tier: count / total for tier, count in counts.items()}

    def unsupported(self, op: str, device: torch.device) -> str:
        if device.type != "cpu":
            return f"it takes tensors on the CPU, these are on {device}"
        op = op.removesuffix("_table")
        if op == "matmul_scaled_drawn_ordered":
            return "trees and blocks of codes by scale draw no random bits here"
        return ""

    def quantize(
        self,
        x: Tensor,
        quantizer: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        site: int,
        out: Tensor,
    ) -> None:
        if x.numel() == 0:
            return
        if (
            quantizer[KIND] == BLOCK
            and quantizer[_ELEMENT_KIND] == TABLE
            and without_zero(quantizer)
        ):
            # The kernel of values takes 1 for the scale of a block of zeros, whose codes are none.
            parts = self.scaled(x, quantizer, seed, role, site, None)
            out.copy_(self.dequantize(*parts, quantizer[InQuantizer.FORMAT]))
            return
        in_order = x.is_contiguous()
        if not in_order and (by_position(quantizer) or x.stride() != out.stride() or not dense(x)):
            x = x.contiguous()
        target = out if out.stride() == x.stride() else torch.empty_like(x, dtype=out.dtype)
        self._c().quantize(
            x.data_ptr(),
            target.data_ptr(),
            DTYPES[x.dtype],
            DTYPES[target.dtype],
            kernel_sizes(x.shape, quantizer),
            quantizer,
            0 if seed is None else int(seed),
            role,
            site,
            torch.get_num_threads(),
            self.stream_bytes,
        )
        if target is not out:
            out.copy_(target)

    def hadamard(self, x: Tensor, size: int, signs: tuple[int, ...], axis: int) -> Tensor:
        x = x.contiguous()
        out = torch.empty(x.shape, **FLOAT32)
        sizes = (math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
        self._c().hadamard(
            x.data_ptr(),
            out.data_ptr(),
            DTYPES[x.dtype],
            sizes,
            bytes(sign < 0 for sign in signs),
            torch.get_num_threads(),
            self.stream_bytes,
        )
        return out

    def multiply(self, product: Product, how: How) -> Tensor:
        kind, left, right, shape, conv, bias, initial = product
        acc, seed, role, fused = how
        out = left.new_empty(shape)
        if out.numel() == 0:
            return out
        offsets = (_NO_OFFSET, _NO_OFFSET)
        if conv is not None:
            sizes = _conv_sizes(*product.images(), conv)
            left_strides: Sequence[int] = strides(left)
            right_strides: Sequence[int] = strides(right)
        else:
            entries = 1
            if len(shape) > 2:
                left, entries, starts = by_batch(left, right, out.shape)
                offsets = (starts[0].data_ptr(), starts[1].data_ptr())
            rows, length = left.shape[-2:]
            sizes = (entries, rows, shape[-1], length)
            left_strides, right_strides = left.stride()[-2:], right.stride()[-2:]
        if bias is not None:
            bias = bias.contiguous()
        if initial is not None:
            initial = initial.contiguous()
        self._c().multiply(
            KINDS.index(kind),
            left.data_ptr(),
            right.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0 if initial is None else initial.data_ptr(),
            out.data_ptr(),
            sizes,
            left_strides,
            right_strides,
            *offsets,
            acc,
            *fused,
            0 if seed is None else int(seed),
            role,
            torch.get_num_threads(),
        )
        return out

    def accumulate(
        self,
        total: Tensor,
        addend: Tensor,
        rows_cols: tuple[int, int],
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        site: int,
        k: int,
    ) -> None:
        if total.numel() == 0:
            return
        addend = addend.expand_as(total).contiguous()
        self._c().accumulate(
            total.data_ptr(),
            addend.data_ptr(),
            *total.shape,
            acc,
            seed_int(seed),
            role,
            [*rows_cols, site, k],
            torch.get_num_threads(),
        )

    def unpack(self, codes: Tensor, fmt: tuple[int, ...], shape: Sequence[int]) -> Tensor:
        out = torch.empty(shape, **FLOAT32)
        if out.numel() == 0:
            return out
        codes = codes.contiguous()
        self._c().unpack(
            codes.data_ptr(),
            out.data_ptr(),
            kernel_sizes(out.shape, fmt),
            fmt,
            torch.get_num_threads(),
        )
        return out

    def update(
        self,
        tensors: UpdateTensors,
        seed: Tensor | None,
        found: Tensor | None,
        scale: Tensor | None,
        positions: Sequence[int],
        origins: Sequence[int],
        rounding: tuple[int, ...],
        numbers: tuple[float, ...],
        begins: bool,
    ) -> None:
        self._c().update(
            update_parameters(tensors, positions, origins),
            [_UPDATED[dtype] for dtype in update_dtypes(tensors)],
            not tensors.masters,
            begins,
            rounding,
            numbers,
            [0 if x is None else x.data_ptr() for x in (seed, found, scale)],
            torch.get_num_threads(),
            self.stream_bytes,
        )


BACKEND = CpuBackend()

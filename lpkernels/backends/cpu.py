"""The ``cpu`` backend: tensors as pointers to csrc/cpu, on as many threads as torch uses.

Strided operands of products and convolutions are read where they lie. quantize reads dense tensors
where they lie and copies others once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lpkernels import _build
from lpkernels.arithmetic.products import output_size
from lpkernels.backends import (
    NOT_FUSED,
    Fused,
    UpdateTensors,
    _cpu_counting,
    _cpu_events,
    _cpu_update,
    broadcast_batch,
)
from lpkernels.backends._cpu_counting import DTYPES, by_position
from lpkernels.backends._layout import (
    NO_OFFSET,
    axis_sizes,
    batch_offsets,
    dense,
    geometry,
    strides,
)

# Kernels write float32 through pointers, whatever torch's default dtype and device are.
_FLOAT32: Any = {"dtype": torch.float32, "device": torch.device("cpu")}
_BYTES: Any = {"dtype": torch.uint8, "device": torch.device("cpu")}
# Bytes read and written from which elementwise results go past the caches (bench/NOTES.md).
STREAM_BYTES = 16 << 20


class CpuBackend:
    """Kernels of csrc/cpu; see `lpkernels.backends.Backend` for the methods."""

    name = "cpu"
    fuses = True
    sums_native = False

    def __init__(self) -> None:
        self._module: ModuleType | None = None

    def _c(self) -> ModuleType:
        if self._module is None:
            self._module = _build.load_extension()
        return self._module

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
        """The instruction set in use: scalar, avx2, avx512, avx512fp16 (LPKERNELS_ISA chooses)."""
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
        if by_position(quantizer) or x.stride() != out.stride() or not dense(x):
            x = x.contiguous()
        target = out if out.stride() == x.stride() else torch.empty_like(x, dtype=out.dtype)
        self._c().quantize(
            x.data_ptr(),
            target.data_ptr(),
            DTYPES[x.dtype],
            DTYPES[target.dtype],
            axis_sizes(x.shape, quantizer),
            quantizer,
            _int(seed),
            role,
            site,
            torch.get_num_threads(),
            STREAM_BYTES,
        )
        if target is not out:
            out.copy_(target)

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
        _cpu_counting.quantize_counting(
            self._c(), x, quantizer, _int(seed), role, site, out, counts, limits, STREAM_BYTES
        )

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
        initial: Tensor | None = None,
    ) -> Tensor:
        bias = None if bias is None else bias.contiguous()
        initial = None if initial is None else initial.contiguous()
        entries, a_offsets, b_offsets = 1, NO_OFFSET, NO_OFFSET
        (*_, m, k), n = a.shape, b.shape[-1]
        if a.dim() == b.dim() == 2:
            out = torch.empty(m, n, **_FLOAT32)
        else:
            batch = broadcast_batch(a, b)
            out = torch.empty(*batch, m, n, **_FLOAT32)
            if b.dim() == 2 and a.is_contiguous():
                # One product, whose rows have the same ids: b is packed once for all of them.
                m *= math.prod(batch)
                a = a.view(m, k)
            else:
                entries = math.prod(batch)
                a_offsets, b_offsets = batch_offsets(a, batch), batch_offsets(b, batch)
        if out.numel() == 0:
            return out
        self._c().matmul(
            a.data_ptr(),
            b.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0 if initial is None else initial.data_ptr(),
            out.data_ptr(),
            (entries, m, n, k),
            a.stride()[-2:] + b.stride()[-2:],
            a_offsets.data_ptr(),
            b_offsets.data_ptr(),
            acc,
            *fused,
            _int(seed),
            role,
            torch.get_num_threads(),
        )
        return out

    def matmul_events(
        self,
        a: Tensor,
        b: Tensor,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        row: Tensor,
        bits: bool,
    ) -> tuple[Tensor, tuple[int, ...], Tensor | None, Tensor | None]:
        return _cpu_events.matmul_events(self._c(), a, b, acc, _int(seed), role, row, bits)

    def masked_gradients(
        self,
        a: Tensor,
        b: Tensor,
        g: Tensor,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        first_col: int,
        bits: int,
        recursive: bool,
    ) -> tuple[Tensor, Tensor]:
        call = (acc, _int(seed), role, first_col, bits, recursive)
        return _cpu_events.masked_gradients(self._c(), a, b, g, *call)

    def conv_fprop(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        output = output_size(x.shape[2:], w.shape[2:], stride, padding, dilation)
        out = torch.empty(x.shape[0], w.shape[0], *output, **_FLOAT32)
        if out.numel() == 0:
            return out
        bias = None if bias is None else bias.contiguous()
        self._c().conv_fprop(
            x.data_ptr(),
            strides(x),
            w.data_ptr(),
            strides(w),
            0 if bias is None else bias.data_ptr(),
            out.data_ptr(),
            strides(out),
            geometry(x.shape, w.shape, out.shape, stride, padding, dilation, groups),
            acc,
            *fused,
            _int(seed),
            role,
            torch.get_num_threads(),
        )
        return out

    def conv_dgrad(
        self,
        grad_output: Tensor,
        w: Tensor,
        input_shape: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        out = torch.empty(input_shape, **_FLOAT32)
        if out.numel() == 0:
            return out
        self._c().conv_dgrad(
            grad_output.data_ptr(),
            strides(grad_output),
            w.data_ptr(),
            strides(w),
            out.data_ptr(),
            strides(out),
            geometry(input_shape, w.shape, grad_output.shape, stride, padding, dilation, groups),
            acc,
            *fused,
            _int(seed),
            role,
            torch.get_num_threads(),
        )
        return out

    def conv_wgrad(
        self,
        x: Tensor,
        grad_output: Tensor,
        weight_shape: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        fused: Fused = NOT_FUSED,
    ) -> Tensor:
        out = torch.empty(weight_shape, **_FLOAT32)
        if out.numel() == 0:
            return out
        self._c().conv_wgrad(
            x.data_ptr(),
            strides(x),
            grad_output.data_ptr(),
            strides(grad_output),
            out.data_ptr(),
            strides(out),
            geometry(x.shape, weight_shape, grad_output.shape, stride, padding, dilation, groups),
            acc,
            *fused,
            _int(seed),
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
            _int(seed),
            role,
            [*rows_cols, site, k],
            torch.get_num_threads(),
        )

    def pack(self, x: Tensor, fmt: tuple[int, ...]) -> Tensor:
        x = x.contiguous()
        sizes = axis_sizes(x.shape, fmt)
        codes = torch.empty(self._c().packed_bytes(sizes, fmt), **_BYTES)
        if x.numel() == 0:
            return codes
        refused = self._c().pack(
            x.data_ptr(), codes.data_ptr(), sizes, fmt, torch.get_num_threads()
        )
        if refused >= 0:
            raise ValueError(
                f"pack: element {refused} (in row-major order) is {x.view(-1)[refused].item()}, "
                "for which the format has no code; quantize to the format first"
            )
        return codes

    def unpack(self, codes: Tensor, fmt: tuple[int, ...], shape: list[int]) -> Tensor:
        out = torch.empty(shape, **_FLOAT32)
        if out.numel() == 0:
            return out
        codes = codes.contiguous()
        self._c().unpack(
            codes.data_ptr(),
            out.data_ptr(),
            axis_sizes(out.shape, fmt),
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
        keys, call = (positions, origins), (rounding, numbers, begins, STREAM_BYTES)
        _cpu_update.update(self._c(), tensors, (seed, found, scale), keys, *call)


def _int(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed)


BACKEND = CpuBackend()

"""The ``cpu`` backend: tensors as pointers to csrc/cpu, on as many threads as torch uses.

Strided operands of products and convolutions are read where they lie. quantize reads dense tensors
where they lie and copies others once.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, get_num_threads

from lpkernels import _build
from lpkernels.arithmetic.integers import InAccumulator, InQuantizer
from lpkernels.backends import (
    COUNTS,
    KINDS,
    Convolution,
    DrawKey,
    How,
    Parts,
    Product,
    Rounding,
    Scales,
    Update,
    UpdateTensors,
    new_parts,
)
from lpkernels.backends._conv_geometry import geometry_of
from lpkernels.backends._layout import axis_sizes, check_fits, laid_out
from lpkernels.backends._tables import offsets
from lpkernels.formats import known_tables
from lpkernels.formats.grids import Grid, grid_of, lengths_of_parts
from lpkernels.formats.integers import (
    AFFINE,
    BLOCK,
    KIND,
    LINE_SCALE,
    InBlock,
    Ints,
    without_zero,
)

Shape = torch.Size | tuple[int, ...]
# The order of lpk::ElementType in csrc/cpu/drivers/element_types.h.
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
# The layout, beside the ElementTypes, of an update's values that are codes: kCodes of
# csrc/cpu/elementwise/update.h.
_CODES = 4
# How the values of an update lie.
_UPDATED = {**DTYPES, torch.uint8: _CODES}
# Kernels write through pointers, whatever torch's default dtype and device are.
_FLOAT32: Any = {"dtype": torch.float32, "device": torch.device("cpu")}
_BYTES: Any = {"dtype": torch.uint8, "device": torch.device("cpu")}
_SPATIAL = 3
_WITH_SCALES = (AFFINE, BLOCK)
# The offset of a matrix that is the only one.
_NO_OFFSET = torch.zeros(1, dtype=torch.int64, device="cpu")
# The numbers of lpk::bound::ProductKind.
_KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
# The tables of this process, which grow.
_TABLES = known_tables()


@lru_cache(maxsize=4096)
def _conv_sizes(x: Shape, w: Shape, y: Shape, conv: Convolution) -> Sequence[int]:
    """The 22 integers of a lpk::ConvShape."""
    return geometry_of(x, w, y, conv).ints()


def _kernel_sizes(x: Tensor, fmt: Ints) -> Sequence[int]:
    """The sizes of a contiguous tensor as csrc/cpu reads them: the grid of a block format, else
    `axis_sizes`."""
    if fmt[KIND] not in _WITH_SCALES:
        return (1, x.numel(), 1)
    return _block_sizes(x.shape, fmt) if fmt[KIND] == BLOCK else axis_sizes(x.shape, fmt)


@lru_cache(maxsize=4096)
def _block_sizes(shape: torch.Size, fmt: Ints) -> Grid:
    check_fits(fmt, shape)
    return grid_of(shape, fmt) if math.prod(shape) else Grid(0, 0, 0, 1, 1)


@lru_cache(maxsize=4096)
def _bytes_of_parts(shape: torch.Size, fmt: Ints) -> int:
    return sum(lengths_of_parts(shape, fmt))


_lacks_zero = lru_cache(maxsize=1024)(without_zero)


@lru_cache(maxsize=512)
def _batch_offsets(shape: torch.Size, strides: tuple[int, ...], batch: torch.Size) -> Tensor:
    """Where each matrix of the broadcast batch starts in a tensor, in elements."""
    if not batch:
        return _NO_OFFSET
    steps = [0 if size == 1 else step for size, step in zip(shape, strides, strict=True)][:-2]
    missing = (0,) * (len(batch) - len(steps))
    return offsets(tuple(batch), (*missing, *steps), _NO_OFFSET.device)


def _by_batch(
    left: Tensor, right: Tensor, shape: torch.Size
) -> tuple[Tensor, int, tuple[Tensor, Tensor]]:
    """The left operand of a matmul of this result's shape, the number of matrices, and where each
    starts in both operands.

    With one right matrix and dense left ones, the batch is more rows, which have the same ids:
    right is packed once for all.
    """
    batch = shape[:-2]
    if not batch:
        return left, 1, (_NO_OFFSET, _NO_OFFSET)
    if right.dim() == 2 and left.is_contiguous():
        return left.view(math.prod(shape[:-1]), left.shape[-1]), 1, (_NO_OFFSET, _NO_OFFSET)
    starts = [_batch_offsets(x.shape, x.stride(), batch) for x in (left, right)]
    return left, batch.numel(), (starts[0], starts[1])


def _five(strides: Sequence[int]) -> Sequence[int]:
    """The strides of an image or kernel: two leading dimensions, then three spatial ones. A
    spatial dimension that the tensor lacks has the stride 0 and stands first."""
    return (*strides[:2], *[0] * (_SPATIAL + 2 - len(strides)), *strides[2:])


def _update_dtypes(tensors: UpdateTensors) -> list[torch.dtype]:
    """The dtypes of gradients, masters, both states and weights; float32 stands for an absent
    kind."""
    masters = tensors.masters or tensors.weights
    kinds = (tensors.gradients, masters, tensors.first, tensors.second, tensors.weights)
    return [kind[0].dtype if kind else torch.float32 for kind in kinds]


def _update_parameters(update: Update) -> list[int]:
    """Ten integers for every parameter, as csrc/module/update.h reads them: addresses (0 for an
    absent tensor), the number of elements, position and origin."""
    positions, weights = update.positions, update.tensors.weights
    addresses = [[x.data_ptr() for x in kind] or [0] * len(positions) for kind in update.tensors]
    elements = [x.numel() for x in weights]
    rows = zip(*addresses, elements, positions, update.origins, strict=True)
    return [value for row in rows for value in row]


def _pointer(x: Tensor | None) -> int:
    """The address of x, which is contiguous; 0 of no tensor."""
    return 0 if x is None else x.data_ptr()


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _seed(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed)


class CpuBackend:
    """Kernels of csrc/cpu; see `lpkernels.backends.Backend` for the methods."""

    name = "cpu"
    fuses = fuses_tables = joins_passes = True
    sums_native = False
    #: Bytes read and written from which elementwise results go past the caches (bench/NOTES.md).
    stream_bytes = 16 << 20

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._tables: set[int] = set()

    def _c(self) -> ModuleType:
        """lpkernels._C, which knows every table that this process has made."""
        module = self._module
        if module is None:
            module = self._module = _build.load_extension()
            _warn_of_scalar(module)
        if len(self._tables) < len(_TABLES):
            self._add_tables(module)
        return module

    def _add_tables(self, module: ModuleType) -> None:
        from lpkernels.backends import ladders

        for handle, table in list(_TABLES.items()):
            if handle not in self._tables:
                ladders.add_to(module, table)
                self._tables.add(handle)

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
        if op in ("matmul_scaled_drawn_ordered", "matmul_scaled_drawn_cores"):
            return "trees and blocks of codes by scale draw no random bits here"
        return ""

    def quantize(self, rounding: Rounding) -> None:
        x, quantizer, seed, role, site, out, counts, limits, parts = rounding
        # Asked here too, because a call takes as long as the rounding of a few values.
        if out is None or not (x.is_contiguous() and out.is_contiguous()):
            x, out = laid_out(x, out, quantizer)
        values_alone = out is not None and counts is None and limits is None
        if values_alone and quantizer[KIND] == BLOCK and _lacks_zero(quantizer):
            return self._quantize_by_parts(rounding)
        sizes, threads = _kernel_sizes(x, quantizer), get_num_threads()
        draws = (0 if seed is None else int(seed), role, site, threads, self.stream_bytes)
        module, dtype = self._c(), DTYPES[x.dtype]
        if parts is not None:
            codes, scale, tensor_scale = parts
            outputs = [codes.data_ptr(), scale.data_ptr(), tensor_scale.data_ptr()]
            ends = 0 if limits is None else limits.data_ptr()
            return module.scaled(x.data_ptr(), dtype, outputs, sizes, quantizer, *draws, ends)
        target, kind = (0, 0) if out is None else (out.data_ptr(), DTYPES[out.dtype])
        call = (x.data_ptr(), target, dtype, kind, sizes, quantizer, *draws)
        if values_alone:
            module.quantize(*call)
        else:
            bins = 0 if counts is None else counts.numel() - COUNTS
            module.quantize_counting(*call, _pointer(counts), bins, _pointer(limits))
        if out is not None and out is not rounding.out and rounding.out is not None:
            rounding.out.copy_(out)

    def _quantize_by_parts(self, rounding: Rounding) -> None:
        """Rounds to a block format whose elements have no zero: the kernel of values takes 1 for
        the scale of a block of zeros, which then has no code."""
        x, quantizer, out = rounding.x, rounding.quantizer, rounding.out
        assert out is not None
        parts = new_parts(x.shape, quantizer, x.device)
        self.quantize(rounding._replace(out=None, parts=parts))
        out.copy_(self.unpack(parts, quantizer[InQuantizer.FORMAT], x.shape))

    def hadamard(self, x: Tensor, size: int, signs: Ints, axis: int) -> Tensor:
        x = x.contiguous()
        out = torch.empty(x.shape, **_FLOAT32)
        sizes = (math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
        self._c().hadamard(
            x.data_ptr(),
            out.data_ptr(),
            DTYPES[x.dtype],
            sizes,
            bytes(sign < 0 for sign in signs),
            get_num_threads(),
            self.stream_bytes,
        )
        return out

    def multiply(self, product: Product, how: How, scales: Scales | None = None) -> Tensor:
        if scales is None:
            y = self._multiply_values(product, how)
        elif how.acc[InAccumulator.GROUP]:
            y = self._multiply_grouped(product, how, scales)
        else:
            y = self._multiply_scaled(product, how, scales)
        return y if product.totals is None else self._multiply_totals(y, *product.totals)

    def _multiply_values(self, product: Product, how: How) -> Tensor:
        kind, left, right, shape, conv, bias, initial, _ = product
        acc, seed, role, (left_rule, right_rule, result_rule) = how
        out = left.new_empty(*shape)
        if 0 in shape:
            return out
        left_offset = right_offset = _NO_OFFSET.data_ptr()
        left_strides: Sequence[int] = left.stride()
        right_strides: Sequence[int] = right.stride()
        if conv is not None:
            sizes = _conv_sizes(*product.images(), conv)
            left_strides, right_strides = _five(left_strides), _five(right_strides)
        elif len(shape) == 2:
            sizes = (1, shape[0], shape[1], left.shape[1])
        else:
            left, entries, starts = _by_batch(left, right, out.shape)
            left_offset, right_offset = starts[0].data_ptr(), starts[1].data_ptr()
            sizes = (entries, left.shape[-2], shape[-1], left.shape[-1])
            left_strides, right_strides = left.stride()[-2:], right_strides[-2:]
        if bias is not None:
            bias = bias.contiguous()
        if initial is not None:
            initial = initial.contiguous()
        self._c().multiply(
            _KIND_NUMBERS[kind],
            left.data_ptr(),
            right.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0 if initial is None else initial.data_ptr(),
            out.data_ptr(),
            sizes,
            left_strides,
            right_strides,
            left_offset,
            right_offset,
            acc,
            left_rule,
            right_rule,
            result_rule,
            0 if seed is None else int(seed),
            role,
            get_num_threads(),
        )
        return out

    def _multiply_scaled(self, product: Product, how: How, scales: Scales) -> Tensor:
        out = product.left.new_empty(product.shape)
        if out.numel() == 0:
            return out
        left, entries, offsets = _by_batch(product.left, product.right, out.shape)
        of_rows, of_cols, places = scales.left, scales.right.contiguous(), (_NO_OFFSET, _NO_OFFSET)
        if entries == 1:
            # One product may be a batch as more rows.
            of_rows = of_rows.expand(*out.shape[:-1], of_rows.shape[-1]).contiguous()
        else:
            of_rows = of_rows.contiguous()
            places = (
                _batch_offsets(of_rows.shape, of_rows.stride(), out.shape[:-2]),
                _batch_offsets(of_cols.shape, of_cols.stride(), out.shape[:-2]),
            )
        initial = _contiguous(product.initial)
        order = how.acc[InAccumulator.SCALE_ORDER] if scales.float32 else 0
        pointers = [x.data_ptr() for x in (of_rows, of_cols, *places)]
        self._c().multiply_scaled(
            left.data_ptr(),
            product.right.data_ptr(),
            _pointer(initial),
            out.data_ptr(),
            (entries, left.shape[-2], product.right.shape[-1], left.shape[-1]),
            left.stride()[-2:],
            product.right.stride()[-2:],
            offsets[0].data_ptr(),
            offsets[1].data_ptr(),
            [*pointers, scales.left_size, scales.right_size, order],
            how.acc,
            _seed(how.seed),
            how.role,
            get_num_threads(),
        )
        return out

    def _multiply_grouped(self, product: Product, how: How, scales: Scales) -> Tensor:
        left, right, shape = product.left, product.right, tuple(product.shape)
        lead, (rows, cols), length = shape[:-2], shape[-2:], left.shape[-1]
        out = torch.empty(shape, **_FLOAT32)
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
            _contiguous(product.initial),
            out,
        ]
        tall = rows * math.prod(lead) // batch
        sizes = [batch, tall, cols, length, scales.left_size, scales.right_size]
        sizes += [how.acc[InAccumulator.GROUP], scales.least]
        pointers = [_pointer(x) for x in tensors]
        self._c().multiply_grouped(pointers, sizes, how.acc, get_num_threads())
        return out

    def _multiply_totals(self, y: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
        batch, (rows, cols) = y.shape[:-2], y.shape[-2:]
        count, row_step, col_step, column_batch = math.prod(batch), 0, 0, 0
        if left is not None and left.numel() != 1:
            left, row_step = left.expand(*batch, rows).contiguous(), 1
        if right is not None and right.numel() != 1:
            if right.dim() > 1:
                right, column_batch = right.expand(*batch, cols), cols
            right, col_step = right.contiguous(), 1
        sizes = (count, rows, cols, row_step, col_step, column_batch)
        threads = get_num_threads()
        self._c().multiply_totals(y.data_ptr(), _pointer(left), _pointer(right), sizes, threads)
        return y

    def accumulate(self, total: Tensor, addend: Tensor, how: How, key: DrawKey) -> None:
        if total.numel() == 0:
            return
        row = addend.shape[-1] if addend.dim() > 1 else 0
        if addend.shape[-1:] != total.shape[-1:] or (row and addend.shape != total.shape):
            addend, row = addend.expand_as(total), total.shape[1]
        addend = addend.contiguous()
        rows, cols = total.shape
        self._c().accumulate(
            total.data_ptr(), addend.data_ptr(), row, rows, cols, how.acc, _seed(how.seed),
            how.role, list(key), get_num_threads(),
        )  # fmt: skip

    def matmul_events(
        self, product: Product, how: How, rows: Tensor
    ) -> tuple[Tensor, tuple[int, ...]]:
        a, b = product.left, product.right
        sums = torch.empty(product.shape, **_FLOAT32)
        counts = self._c().matmul_events(
            a.data_ptr(), b.data_ptr(), sums.data_ptr(), [*sums.shape, a.shape[1]],
            [*a.stride(), *b.stride()], rows.data_ptr(), how.acc, _seed(how.seed), how.role,
            get_num_threads(),
        )  # fmt: skip
        return sums, tuple(counts)

    def pack(
        self, x: Tensor | Parts, fmt: Ints, quantizer: Ints = (), scale: Tensor | None = None
    ) -> Tensor:
        if isinstance(x, tuple):
            return self._pack_parts(x, fmt)
        x, module = x.contiguous(), self._c()
        sizes = _kernel_sizes(x, fmt)
        codes = torch.empty(module.packed_bytes(sizes, fmt), **_BYTES)
        if x.numel() == 0:
            return codes
        source, target, threads = x.data_ptr(), codes.data_ptr(), get_num_threads()
        if scale is None:
            place = module.pack(source, target, sizes, fmt, quantizer, threads)
        else:
            scale = scale.contiguous()
            place = module.pack_scaled(source, scale.data_ptr(), target, sizes, fmt, threads)
        if place >= 0:
            raise _without_code(x, place)
        return codes

    def unpack(
        self, codes: Tensor | Parts, fmt: Ints, shape: Sequence[int], parts: Parts | None = None
    ) -> Tensor:
        if parts is not None and isinstance(codes, Tensor):
            return self._unpack_parts(codes, fmt, parts)
        out = torch.empty(shape, **_FLOAT32)
        if out.numel() == 0:
            return out
        sizes, threads = _kernel_sizes(out, fmt), get_num_threads()
        if isinstance(codes, Tensor):
            codes = codes.contiguous()
            self._c().unpack(codes.data_ptr(), out.data_ptr(), sizes, fmt, threads)
        else:
            dense = [part.contiguous() for part in codes]
            pointers = [part.data_ptr() for part in (*dense, out)]
            self._c().dequantize(*pointers, sizes, fmt[InBlock.SCALE] == LINE_SCALE, threads)
        return out

    def _pack_parts(self, parts: Parts, fmt: Ints) -> Tensor:
        shape, dense = parts[0].shape, [part.contiguous() for part in parts]
        codes = torch.empty(_bytes_of_parts(shape, fmt), **_BYTES)
        sizes, addresses = _block_sizes(shape, fmt), [part.data_ptr() for part in dense]
        place = self._c().pack_parts(addresses, codes.data_ptr(), sizes, fmt, get_num_threads())
        if place >= 0:
            raise _without_code(parts[0], place)
        return codes

    def _unpack_parts(self, codes: Tensor, fmt: Ints, parts: Parts) -> Tensor:
        sizes, addresses = _block_sizes(parts[0].shape, fmt), [part.data_ptr() for part in parts]
        self._c().unpack_parts(codes.data_ptr(), addresses, sizes, fmt, get_num_threads())
        return parts[0]

    def update(self, update: Update) -> None:
        shared = (update.seed, update.skips, update.scale)
        self._c().update(
            _update_parameters(update),
            [_UPDATED[dtype] for dtype in _update_dtypes(update.tensors)],
            not update.tensors.masters,
            update.begins,
            update.rounding,
            update.numbers,
            [_pointer(x) for x in shared],
            get_num_threads(),
            self.stream_bytes,
        )


def _without_code(x: Tensor, place: int) -> ValueError:
    return ValueError(
        f"pack: element {place} (in row-major order) is {x.reshape(-1)[place].item()}, for which "
        "the format has no code; quantize to the format first"
    )


def _warn_of_scalar(module: ModuleType) -> None:
    """Only the processor of another machine has none of the sets that an install compiles."""
    better = _build.better_set(module)
    if better and module.isa() == "scalar" and not os.environ.get("LPKERNELS_ISA"):
        compiled = ", ".join(module.compiled_sets())
        warnings.warn(
            f"lpkernels was compiled for {compiled}, and this processor has {better}: its "
            "products take the scalar kernels, tens of times slower. Install lpkernels again on "
            "this machine, or with LPKERNELS_ISAS=all",
            RuntimeWarning,
            stacklevel=4,
        )


BACKEND = CpuBackend()

"""The operators between values and their codes, and the codes that a layer keeps for backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends import Parts, new_parts
from lpkernels.formats import format_from_ints
from lpkernels.formats.grids import grid_shape, lengths_of_parts, tensor_scale_shape
from lpkernels.formats.integers import (
    BLOCK,
    FIXED,
    KIND,
    STEPS,
    InBlock,
    Ints,
    block_by_block,
    code_bits,
    element,
    follows_from_values,
    for_table,
    has_tensor_scale,
    scale_format,
)
from lpkernels.ops import _checks
from lpkernels.ops._descriptions import Row, has_every_code, packs, require, select
from lpkernels.ops._operator import Packable, as_ints, define, without_grad
from lpkernels.ops._quantize import quantize, quantize_directly, scaled
from lpkernels.rng import SITE_QUANTIZE, Role

# What follows the format in the integers of a Quantizer that rounds to nearest even.
_NEAREST = Quantizer("fp32").to_ints()[InQuantizer.MODE]
# The bits, block size and axis of the codes for which `_pack` makes room; 0 bits: of the format.
_NO_ROOM = (0, 0, 0)
_VALUE_BITS = 32
# The bits of a NaN and of 2^-127 in float32.
_NAN, _HALF_NORMAL = 0x7FC00000, 0x00400000


def packed_bytes(fmt: Ints, shape: Sequence[int]) -> int:
    """The length of `pack`'s result: the bits of all codes and scales, rounded up.

    fmt is any format but an affine one, as integers. Where scales are packed apart, they are
    rounded up to bytes on their own.
    """
    if fmt[KIND] != BLOCK:
        return _bytes(shape, code_bits(fmt))
    if block_by_block(fmt):
        return _bytes(shape, code_bits(fmt), fmt[InBlock.SIZE], fmt[InBlock.AXIS])
    return sum(lengths_of_parts(shape, fmt))


def _bytes(shape: Sequence[int], bits: int, block_size: int = 0, axis: int = 0) -> int:
    """The bytes of codes of so many bits, with a byte for each block along axis where there are
    blocks."""
    numel = math.prod(shape)
    if not block_size:
        return (numel * bits + 7) // 8
    length = shape[axis] if len(shape) else 1
    blocks = 0 if numel == 0 else numel // length * -(-length // block_size)
    return (numel * bits + 8 * blocks + 7) // 8


def packs_at_once(device_type: str) -> bool:
    """Whether codes of tensors there are made by a kernel, not by the reference on the host."""
    if device_type == "cpu":
        return True
    device = torch.device(device_type)
    try:
        chosen = [select("auto", op, device) for op in ("pack", "unpack")]
    except (NotImplementedError, RuntimeError):
        return False
    return all(backend.name != "reference" for backend in chosen)


def encode_directly(x: Tensor, quantizer: Ints, fmt: Ints, backend: str) -> Tensor | None:
    """`encode` of a plain float32 tensor on the CPU, rounded and packed in one pass."""
    codes = packs(fmt)
    chosen = select("auto", codes.pack, x.device)
    if quantizer and not chosen.joins_passes:
        x = quantize_directly(x, quantizer, backend=backend)
        quantizer = ()
    if x.requires_grad:
        x = x.detach()
    try:
        if codes.without_zero:
            return pack_directly(x, fmt)
        return chosen.pack(x, fmt, quantizer) if quantizer else chosen.pack(x, fmt)
    except ValueError:
        if codes.every_code:
            raise
        return None


def pack_directly(x: Tensor, fmt: Sequence[int]) -> Tensor:
    codes = packs(fmt)
    fmt = codes.ints
    values = x.detach().to(torch.float32)
    if x.dtype == torch.float64:
        _refuse(fmt, x, (values.double() != x) & ~x.isnan())
    if not codes.without_zero:
        return select("auto", codes.pack, x.device).pack(values, fmt)
    # The scale of a block is its largest value, and values of the format are rounded to themselves.
    parts = scaled(values, fmt + _NEAREST, None, None, 0, SITE_QUANTIZE)
    back = dequantize_directly(*parts, fmt, "auto")
    _refuse(fmt, x, (back != values) & ~(back.isnan() & values.isnan()))
    return _pack_scaled(*parts, fmt)


def _refuse(fmt: Ints, x: Tensor, lost: Tensor) -> None:
    """Raises: ValueError: an element is lost."""
    if lost.any():
        name, value = format_from_ints(fmt).name, x[lost][0].item()
        raise ValueError(f"pack: {name} has no code for {value!r}; round x with lp.quantize first")


def _pack(a: Any) -> Tensor:
    if a.scale is None or a.tensor_scale is None:
        codes = pack_directly(a.x, a.format)
    else:
        codes = _pack_scaled(a.x, a.scale, a.tensor_scale, a.format)
    if not a.room[0]:
        return codes
    padded = codes.new_zeros(_bytes(a.x.shape, *a.room))
    padded[: codes.numel()] = codes
    return padded


def unpack_directly(codes: Tensor, fmt: Ints, shape: Sequence[int]) -> Tensor:
    """The work of `unpack`, of a tensor of any shape."""
    if not shape:
        return unpack_directly(codes, fmt, (1,)).view(())
    chosen = select("auto", packs(fmt).unpack, codes.device)
    if chosen.name == "triton" and fmt[KIND] == BLOCK and not block_by_block(fmt):
        return _unpack_apart(codes, fmt, shape)
    return chosen.unpack(codes, fmt, shape)


def dequantize_directly(
    values: Tensor, scale: Tensor, tensor_scale: Tensor, fmt: Ints, backend: str = "auto"
) -> Tensor:
    """The work of `dequantize`: a new tensor."""
    chosen = select(backend, "dequantize", values.device)
    if values.numel() == 0:
        return torch.empty_like(values, memory_format=torch.contiguous_format)
    return chosen.unpack((values, scale, tensor_scale), tuple(fmt), values.shape)


def _unpack(a: Any) -> Tensor:
    if a.scale is None or a.tensor_scale is None:
        codes = a.codes[: packed_bytes(a.format, a.shape)]
        return unpack_directly(codes, a.format, a.shape)
    return dequantize_directly(a.codes, a.scale, a.tensor_scale, a.format, a.backend)


def _pack_scaled(values: Tensor, scale: Tensor, tensor_scale: Tensor, fmt: Ints) -> Tensor:
    bits = scale.contiguous().view(torch.int32)
    if ((bits < 0) & ~scale.isnan()).any():
        raise ValueError("pack: scale has a negative number or -0; a scale has no sign")
    if not has_tensor_scale(fmt) and tensor_scale != 1:
        raise ValueError(
            f"pack: {format_from_ints(fmt)} has no tensor scale, but tensor_scale is "
            f"{tensor_scale.item()!r}; use 1, or a format with tensor_scale=True"
        )
    numbers = scale_format(fmt)
    scales = _pack_powers(scale) if numbers is None else _packed_scales(numbers, scale)
    values = values.contiguous()
    if not block_by_block(fmt):
        return _joined(tensor_scale, scales, _packed_as(element(fmt), values), fmt)
    if not values.numel():
        return values.new_empty(0, dtype=torch.uint8)
    if not values.dim():
        values, scale = values.view(1), scale.view(1)
    chosen = select("auto", "pack_scaled", values.device)
    return chosen.pack(values, fmt, scale=scale)


def _joined(tensor_scale: Tensor, scales: Tensor, elements: Tensor, fmt: Ints) -> Tensor:
    """The bytes of parts: the scale of the tensor or those of its lines if there are any, all
    scales, all elements."""
    if not has_tensor_scale(fmt):
        return torch.cat([scales, elements])
    of_lines = tensor_scale.contiguous().view(-1).view(torch.uint8)
    return torch.cat([of_lines, scales, elements])


def _packed_scales(fmt: Ints, scale: Tensor) -> Tensor:
    try:
        return _packed_as(fmt, scale)
    except ValueError as error:
        raise ValueError(
            f"pack: {format_from_ints(fmt)} has no code for one of the scales; use a scale format "
            f"that has ({error})"
        ) from None


def _packed_as(fmt: Ints, x: Tensor) -> Tensor:
    return select("auto", for_table("pack", fmt), x.device).pack(x, fmt)


def _exponent_fields(scale: Tensor) -> Tensor:
    """The exponent fields of float32 values, which are the codes of powers of two in e8m0, and 255
    that of NaN; 1-D int32."""
    return (scale.contiguous().view(torch.int32) >> 23).flatten()


def _pack_powers(scale: Tensor) -> Tensor:
    """The bytes of e8m0.

    Raises: ValueError: a number that is no power of two from 2^-127 to 2^127, or NaN.
    """
    codes, numbers = _exponent_fields(scale).to(torch.uint8), scale.flatten()
    # Bits are compared, because a process that flushes subnormals takes 2^-127 for 0.
    wrong = unpack_powers(codes).view(torch.int32) != numbers.contiguous().view(torch.int32)
    wrong &= ~numbers.isnan()
    if wrong.any():
        raise ValueError(
            f"pack: e8m0 has no code for the scale {numbers[wrong][0].item()!r}; scales "
            "are powers of two from 2^-127 to 2^127, or NaN"
        )
    return codes


def unpack_powers(codes: Tensor) -> Tensor:
    """The float32 values of bytes of e8m0, of the same shape."""
    bits = codes.to(torch.int32) << 23
    bits = torch.where(codes == 0, _HALF_NORMAL, torch.where(codes == 255, _NAN, bits))
    return bits.to(torch.int32).view(torch.float32)


def _unpack_apart(codes: Tensor, fmt: Ints, shape: Sequence[int]) -> Tensor:
    """Values of codes behind their scales, for Triton, whose kernels take the parts one by one."""
    return dequantize_directly(*unpack_parts(codes, fmt, shape), fmt)


def _guard_pack(a: Any) -> None:
    valid = len(a.room) == 3 and all(0 <= number < 2**31 for number in a.room[:2])
    require(valid, "pack", "bits, size and axis of the room for codes", a.room)
    if a.scale is not None:
        _checks.parts("pack", (a.x, a.scale, a.tensor_scale), a.format)
    else:
        from_values = a.format[KIND] != BLOCK or follows_from_values(a.format)
        require(from_values, "pack", "a format of values", a.format)
    if a.room[0]:
        dimensions, needed = max(a.x.dim(), 1), packed_bytes(a.format, a.x.shape)
        valid = -dimensions <= a.room[2] < dimensions and needed <= _bytes(a.x.shape, *a.room)
        require(valid, "pack", "room for all codes", a.room)


def _guard_unpack(a: Any) -> None:
    codes, shape = a.codes, tuple(a.shape)
    if a.scale is not None:
        _checks.parts("unpack", (codes, a.scale, a.tensor_scale), a.format)
        valid = shape == tuple(codes.shape)
        return require(valid, "unpack", f"the shape of the codes, {tuple(codes.shape)}", shape)
    require(all(size >= 0 for size in shape), "unpack", "sizes from 0 up", shape)
    needed = packed_bytes(a.format, shape)
    valid = codes.dtype is torch.uint8 and codes.dim() == 1 and codes.numel() >= needed
    got = f"{tuple(codes.shape)} in {codes.dtype} for {shape}"
    valid = valid and codes.is_contiguous()
    require(valid, "unpack", f"at least {needed} bytes in one dense dimension", got)


# scale, tensor_scale: of the blocks and of the tensor, beside the codes of a block format; or none.
_pack_operator = define(
    "_pack(x, Tensor? scale, Tensor? tensor_scale, format, int[] room) -> Tensor",
    lambda a: a.x.new_empty(
        _bytes(a.x.shape, *a.room) if a.room[0] else packed_bytes(tuple(a.format), a.x.shape),
        dtype=torch.uint8,
    ),
    _pack,
    _guard_pack,
)
_unpack_operator = define(
    "_unpack(Tensor codes, Tensor? scale, Tensor? tensor_scale, format, shape, backend) -> Tensor",
    lambda a: a.codes.new_empty(a.shape, dtype=torch.float32),
    _unpack,
    _guard_unpack,
)


def encode(x: Tensor, quantizer: Ints, fmt: Ints | Row, backend: str) -> Tensor | None:
    """The codes of float32 x once it is rounded by a quantizer without scales and draws; () rounds
    nothing. None where a value has no code."""
    values = quantize(x, quantizer, None, Role.DIRECT, SITE_QUANTIZE, backend) if quantizer else x
    if isinstance(fmt, Row) or has_every_code(fmt):
        return pack(values, fmt)
    try:
        return pack(values, fmt)
    except ValueError:
        return None


def pack(x: Tensor, fmt: Packable | Ints | Row) -> Tensor:
    """The codes of x, dense, as a 1-D uint8 tensor."""
    if isinstance(fmt, Row):
        return _pack_operator(x, None, None, fmt, (fmt.kept_bits, fmt.block_size, fmt.axis))
    return _pack_operator(x, None, None, as_ints(fmt), _NO_ROOM)


def pack_scaled(values: Tensor, scale: Tensor, tensor_scale: Tensor, fmt: Ints) -> Tensor:
    """The codes of the three parts of `scaled`, as a 1-D uint8 tensor."""
    return _pack_operator(*map(without_grad, (values, scale, tensor_scale)), fmt, _NO_ROOM)


def unpack(codes: Tensor, fmt: Packable | Ints | Row, shape: Sequence[int]) -> Tensor:
    """The float32 values of codes."""
    ints = fmt if isinstance(fmt, Row) else as_ints(fmt)
    # A list that crosses to an operator is never empty (`_descriptions.NOTHING`).
    values = _unpack_operator(codes, None, None, ints, shape or (1,), "auto")
    return values if shape else values.view(())


def dequantize(
    values: Tensor, scale: Tensor, tensor_scale: Tensor, fmt: Ints, backend: str = "auto"
) -> Tensor:
    """The product of the three parts of `scaled`, rounded once to float32."""
    if values.dim():
        parts = map(without_grad, (values, scale, tensor_scale))
        return _unpack_operator(*parts, fmt, values.shape, backend)
    # A scalar is a vector of one element, which has an axis.
    t = tensor_scale.view(tensor_scale_shape((1,), fmt))
    return dequantize(values.view(1), scale.view(1), t, fmt, backend).view(())


K = TypeVar("K")


def _kept_outside_graphs(function: Callable[..., K]) -> Callable[..., K]:
    """A cache for function(*hashables); a graph that torch.compile traces takes function itself."""
    cached = lru_cache(maxsize=1024)(function)

    def look_up(*arguments: Any) -> K:
        return (function if torch.compiler.is_compiling() else cached)(*arguments)

    return look_up


def _has_every_element_code(fmt: Ints) -> bool:
    """Whether all elements have codes: some programs divide infinity by itself."""
    steps = STEPS[fmt[InBlock.STEPS]]
    divides = steps == "deepgemm" or (steps == "torchao" and element(fmt)[KIND] == FIXED)
    return not divides or has_every_code(element(fmt))


@_kept_outside_graphs
def keeps_parts(fmt: Ints) -> bool:
    """Whether a layer keeps tensors in this block format as codes and scales: they take less memory
    than values, every scale has a code, and in a graph every element."""
    scale = scale_format(fmt)
    saves = code_bits(fmt) < _VALUE_BITS and (scale is None or has_every_code(scale))
    return saves and (not torch.compiler.is_compiling() or _has_every_element_code(fmt))


def pack_parts(parts: Parts, fmt: Ints, backend: str) -> Tensor | None:
    """The codes of the three parts of a tensor, each packed apart from the others (`_joined`); None
    where an element has no code."""
    values, scale, tensor_scale = parts
    numbers = scale_format(fmt)
    scales = _exponent_fields(scale).to(torch.uint8) if numbers is None else pack(scale, numbers)
    if _has_every_element_code(fmt):
        return _joined(tensor_scale, scales, pack(values, element(fmt)), fmt)
    elements = encode(values, (), element(fmt), backend)
    return None if elements is None else _joined(tensor_scale, scales, elements, fmt)


@_kept_outside_graphs
def values_format(fmt: Ints, rank: int) -> Ints:
    """The format with which `unpack` reads what `pack_parts` packed of a tensor of this rank; ()
    if none.

    It has all scales in front of the elements where blocks are no blocks along one axis with powers
    of two: those along columns are tiles of one column there. Codes do not tell, and unpacking does
    not ask, by which steps they were made.
    """
    at, size = InBlock, fmt[InBlock.SIZE]
    if not block_by_block(fmt):
        return fmt
    if rank < 2 or size < 2 or fmt[at.AXIS] % rank != rank - 2:
        return ()
    tiles = {at.SIZE: 1, at.AXIS: -1, at.LINES: size, at.STEPS: STEPS.index("exact")}
    return tuple([tiles.get(i, number) for i, number in enumerate(fmt)])


def unpack_parts(codes: Tensor, fmt: Ints, shape: Sequence[int]) -> Parts:
    """The three parts of a tensor of this shape from the codes of `pack_parts`."""
    grid, lines = grid_shape(shape, fmt), tensor_scale_shape(shape, fmt)
    first, length, _ = lengths_of_parts(shape, fmt)
    # A clone has an address of its own, which kernels and views of float32 want.
    scales, numbers = codes[first : first + length].clone(), scale_format(fmt)
    scale = unpack_powers(scales).view(grid) if numbers is None else unpack(scales, numbers, grid)
    values = unpack(codes[first + length :], element(fmt), shape)
    if not first:
        return values, scale, scale.new_ones(lines)
    return values, scale, codes[:first].clone().view(torch.float32).view(lines)


def pack_parts_directly(parts: Parts, fmt: Ints, backend: str) -> Tensor | None:
    """`pack_parts` of plain tensors, in one pass where the backend can."""
    chosen = select("auto", "pack", parts[0].device)
    if not chosen.joins_passes:
        return pack_parts(parts, fmt, backend)
    try:
        return chosen.pack(parts, fmt)
    except ValueError:
        return None


def unpack_parts_directly(codes: Tensor, fmt: Ints, shape: Sequence[int]) -> Parts:
    """`unpack_parts` of a plain tensor, in one pass where the backend can."""
    chosen = select("auto", "unpack", codes.device)
    if not chosen.joins_passes:
        return unpack_parts(codes, fmt, shape)
    parts = new_parts(shape, fmt, codes.device)
    chosen.unpack(codes, fmt, shape, parts)
    return parts

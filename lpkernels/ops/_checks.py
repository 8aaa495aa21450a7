"""The operators' checks of their arguments, which exported programs and torch.ops may call with
anything. The kernels behind the operators believe shapes, dtypes and integers.

Public functions check before, with messages for their users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lpkernels.arithmetic import (
    accumulator_from_ints,
    quantizer_from_ints,
)
from lpkernels.arithmetic.integers import (
    NATIVE,
    InAccumulator,
    InQuantizer,
    group_of,
    has_running_sum,
)
from lpkernels.arithmetic.products import output_size
from lpkernels.backends import (
    KINDS,
    NOT_FUSED,
    How,
    Product,
    Scales,
    matmul_of,
)
from lpkernels.formats import format_from_ints
from lpkernels.formats.grids import grid_shape, misfit
from lpkernels.formats.integers import (
    AFFINE,
    BLOCK,
    FLOAT,
    KIND,
    TABLE,
    InTable,
    code_bits,
    follows_from_values,
    for_table,
    has_every_float_code,
    takes_amax,
    without_zero,
)
from lpkernels.formats.integers import axis as axis_of
from lpkernels.ops._rows import Ints

_FLOAT32 = torch.float32
_FLOATS = frozenset((torch.float32, torch.float16, torch.bfloat16, torch.float64))
# Sizes and strides of convolutions are multiplied as 64-bit integers.
_MOST = 2**31
_DESCRIPTIONS = 4096
_VALUE_BITS = 32


def require(condition: bool, op: str, expected: str, got: object) -> None:
    if not condition:
        raise ValueError(f"lpkernels::_{op}: expected {expected}, got {got}")


class Sums(NamedTuple):
    """An accumulator as the operators need it.

    suffix: stands behind a product's kind in the op of `Backend.unsupported`. accumulate: what that
        calls an addition to the outermost sum.
    """

    acc: Ints
    native: bool
    draws: bool
    suffix: str
    accumulate: str


class Codes(NamedTuple):
    """A format as the operators that pack need it.

    pack: what `Backend.unsupported` calls packing. every_code: whether every tensor of values that
    quantize makes has codes, with infinities and NaN. is_kept: whether codes take less memory than
    values, which tell them and the scales of their blocks.
    """

    ints: Ints
    axis: int | None
    pack: str
    every_code: bool
    is_kept: bool
    without_zero: bool


class Rounds(NamedTuple):
    """A quantizer as the operators need it.

    op, counting_op: what `Backend.unsupported` calls rounding, and rounding with counts or limits.
    fuses: whether a product may apply it itself. codes: its format, None of an affine one.
    """

    ints: Ints
    axis: int | None
    draws: bool
    fuses: bool
    op: str
    counting_op: str
    codes: Codes | None


K = TypeVar("K")


def _by_identity(make: Callable[[Ints], K]) -> Callable[[Sequence[int]], K]:
    """make, with its results kept, so that it is called once for equal integers. A tuple that came
    before is found by its address alone: its hash would take longer than all other checks of a
    small product."""
    # A tuple is kept with what was made of it, so no other one has its address.
    found: dict[int, tuple[Ints, K]] = {}
    made = lru_cache(_DESCRIPTIONS)(make)

    def get(ints: Sequence[int]) -> K:
        known = found.get(id(ints))
        if known is not None and known[0] is ints:
            return known[1]
        result = made(tuple(ints))
        if type(ints) is tuple:
            if len(found) >= _DESCRIPTIONS:
                found.clear()
            found[id(ints)] = (ints, result)
        return result

    return get


def described(kind: str, make: Callable[[Ints], Any], ints: Ints) -> Any:
    """The object that the integers describe, if to_ints() gives them back: kernels believe them."""
    try:
        made = make(ints)
        if made.to_ints() == ints:
            return made
    except (IndexError, OverflowError, TypeError, ValueError):
        pass
    raise ValueError(f"lpkernels: expected the integers of a {kind}'s to_ints(), got {ints}")


@_by_identity
def sums(acc: Ints) -> Sums:
    made = described("Accumulator", accumulator_from_ints, acc)
    suffix = "" if has_running_sum(acc) else "_ordered"
    suffix = "_operands" if len(acc) > InAccumulator.PLAIN else suffix
    at = InAccumulator
    suffix = for_table(suffix, acc[at.FORMAT], acc[at.PRODUCT], acc[at.OUTER])
    accumulate = for_table("accumulate", acc[at.OUTER])
    return Sums(acc, acc[at.ORDER] == NATIVE, made.is_stochastic, suffix, accumulate)


@_by_identity
def rounds(ints: Ints) -> Rounds:
    made = described("Quantizer", quantizer_from_ints, ints)
    require(made.hadamard is None, "quantize", "a quantizer without a Hadamard transform", ints)
    codes = None if ints[KIND] == AFFINE else packs(ints[InQuantizer.FORMAT])
    by_slices = {AFFINE: "quantize_affine", BLOCK: "quantize_block"}.get(ints[KIND])
    op, counting_op = by_slices or "quantize", by_slices or "quantize_counting"
    names = (for_table(op, ints), for_table(counting_op, ints))
    return Rounds(ints, axis_of(ints), made.is_stochastic, made.fuses, *names, codes)


@_by_identity
def packs(ints: Ints) -> Codes:
    described("format", format_from_ints, ints)
    require(ints[KIND] != AFFINE, "pack", "a format that has codes", ints)
    is_kept = code_bits(ints) < _VALUE_BITS and (ints[KIND] != BLOCK or follows_from_values(ints))
    name, every_code = for_table("pack", ints), has_every_code(ints)
    return Codes(ints, axis_of(ints), name, every_code, is_kept, without_zero(ints))


def has_every_code(fmt: Ints) -> bool:
    """Whether every tensor of values that quantize makes has codes, with infinities and NaN."""
    if fmt[KIND] == BLOCK:
        return follows_from_values(fmt)
    if fmt[KIND] == TABLE:
        return fmt[InTable.NAN_CODE] >= 0
    return fmt[KIND] == FLOAT and has_every_float_code(fmt)


def quantizer(
    op: str, ints: Sequence[int], x: Tensor, seed: Tensor | None, role: int, site: int
) -> Ints:
    """The quantizer of the whole tensor x."""
    known = rounds(ints)
    if x.dtype not in _FLOATS:
        require(False, op, "values in float16, bfloat16, float32 or float64", x.dtype)
    if known.axis is not None:
        _fits(op, known.ints, x.dim())
    if not 0 <= site < _MOST:
        require(False, op, "a site from 0 up", site)
    _draws(op, known.draws, seed, role)
    return known.ints


def _fits(op: str, fmt: Sequence[int], dims: int) -> None:
    wrong = misfit(tuple(fmt), dims)
    if wrong is not None:
        require(False, op, f"an axis of {max(dims, 1)} dimensions", f"a format that {wrong.reason}")


def packable(ints: Sequence[int], dims: int) -> Ints:
    """The format of codes of a tensor of so many dimensions."""
    known = packs(ints)
    if known.axis is not None:
        _fits("pack", known.ints, dims)
    return known.ints


def fused(op: str, ints: Sequence[int]) -> None:
    """A quantizer that a product may apply itself, or none."""
    if ints and not rounds(ints).fuses:
        require(False, op, "quantizers without scales and draws", ints)


def _draws(op: str, draws: bool, seed: Tensor | None, role: int) -> None:
    if not 0 <= role < _MOST:
        require(False, op, "a role from 0 up", role)
    if seed is None:
        if draws:
            require(False, op, "a seed, since something is stochastic", None)
    elif seed.dtype is not torch.int64 or seed.dim():
        require(False, op, "a seed in int64 without dimensions", f"{seed.dtype} {seed.shape}")


def numbers(kind: str, given: Sequence[int]) -> None:
    """The numbers of a product's convolution, as they cross."""
    require(kind in KINDS, "multiply", f"one of {KINDS}", kind)
    right = len(given) % 3 == 1 and (len(given) == 1) == (kind == "matmul")
    require(right, kind, "numbers of each dimension and of groups", given)


def multiply(product: Product, how: How) -> None:
    """Refuses a product that the kernels do not know."""
    operands(product.kind, product.left, product.right, how.acc, how.seed, how.role)
    if how.acc[InAccumulator.CHUNK] < 0:
        require(False, product.kind, "chunks of a length: there are no scales", how.acc)
    for ints in how.fused:
        fused(product.kind, ints)
    (_matmul if product.conv is None else _conv)(product)


def multiply_scaled(product: Product, scales: Scales, how: How) -> None:
    """Refuses a product by scale that the kernels do not know."""
    op = "matmul_scaled"
    alone = product.kind == "matmul" and product.bias is None and how.fused == NOT_FUSED
    require(alone, op, "a matmul without a bias, with nothing fused", product.kind)
    operands(op, product.left, product.right, how.acc, how.seed, how.role)
    _matmul(product)
    require(how.acc[InAccumulator.CHUNK] < 0, op, "chunk='scale', or groups", how.acc)
    group = group_of(how.acc)
    for size in (scales.left_size, scales.right_size) if group else ():
        require(size % group == 0, op, f"scales that change between groups of {group}", size)
    length = product.left.size(-1)
    rows, cols = product.left.size(-2), product.right.size(-1)
    for name, scale, count, size, operand in (
        ("left", scales.left, rows, scales.left_size, product.left),
        ("right", scales.right, cols, scales.right_size, product.right),
    ):
        right = 0 <= size < 2**62 and scale.dtype is _FLOAT32 and scale.device == operand.device
        last = (count, max(1, -(-length // size)) if size else 1)
        right = right and scale.dim() >= 2 and tuple(scale.shape[-2:]) == last
        lead = tuple(scale.shape[:-2])
        right = right and lead in ((), tuple(operand.shape[:-2]))
        got = f"{tuple(scale.shape)} in {scale.dtype} on {scale.device}, size {size}"
        require(right, op, f"scales of the {name} operand {last} in float32", got)


def operands(
    op: str, first: Tensor, second: Tensor, acc: Sequence[int], seed: Tensor | None, role: int
) -> None:
    """Two tensors that are summed."""
    if first.dtype is not _FLOAT32 or second.dtype is not _FLOAT32:
        require(False, op, "operands in float32", f"{first.dtype} and {second.dtype}")
    if not (first.is_cpu and second.is_cpu) and first.device != second.device:
        require(False, op, "operands on one device", f"{first.device} and {second.device}")
    _draws(op, sums(acc).draws, seed, role)


def _matmul(product: Product) -> None:
    _, a, b, shape, _, bias, initial = product
    if a.dim() < 2 or b.dim() < 2 or a.size(-1) != b.size(-2):
        got = f"{tuple(a.shape)} and {tuple(b.shape)}"
        require(False, "matmul", "a (..., M, K) and b (..., K, N)", got)
    _shape("matmul", shape, matmul_of(a, b).shape)
    _further("bias", product, bias, (b.size(-1),))
    _further("initial", product, initial, shape)
    require(bias is None or initial is None, "matmul", "a bias or an initial", "both")


def _shape(op: str, given: Sequence[int], right: Sequence[int]) -> None:
    require(tuple(given) == tuple(right), op, f"the result's shape {tuple(right)}", tuple(given))


def _further(name: str, product: Product, x: Tensor | None, shape: Sequence[int]) -> None:
    """An optional tensor of a product."""
    if x is None:
        return
    device = product.left.device
    if x.dtype is not torch.float32 or x.device != device or x.shape != torch.Size(shape):
        got = f"{tuple(x.shape)} in {x.dtype} on {x.device}"
        require(False, product.kind, f"{name} {tuple(shape)} in float32 on {device}", got)


@lru_cache(_DESCRIPTIONS)
def _conv_size(
    image: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> tuple[int, ...]:
    """The shape of the result of a convolution of an image with a kernel."""
    dims = len(image) - 2
    right = 1 <= dims <= 3 and len(kernel) == dims + 2
    right = right and all(len(each) == dims for each in (stride, padding, dilation))
    right = right and all(0 <= each < _MOST for each in (*image, *kernel, *padding))
    right = right and all(1 <= each < _MOST for each in (*stride, *dilation, groups))
    right = right and image[1] == kernel[1] * groups and kernel[0] % groups == 0
    got = f"{tuple(image)}, {tuple(kernel)}, {stride}, {padding}, {dilation}, groups={groups}"
    require(right, "conv", "an image, a kernel and numbers of one convolution", got)
    size = output_size(image[2:], kernel[2:], stride, padding, dilation)
    return (image[0], kernel[0], *size)


def _conv(product: Product) -> None:
    conv, (x, w, y), op = product.conv, product.images(), product.kind
    assert conv is not None
    numbers = (tuple(conv.stride), tuple(conv.padding), tuple(conv.dilation), conv.groups)
    size = _conv_size(tuple(x), tuple(w), *numbers)
    require(product.initial is None, op, "no initial", product.initial)
    if op == "conv_fprop":
        require(min(size[2:]) >= 0, op, "a kernel that fits into the padded image", size)
        _shape(op, y, size)
        return _further("bias", product, product.bias, (w[0],))
    require(product.bias is None, op, "no bias", product.bias)
    # Positions at the end of a gradient may be left out.
    right = len(y) == len(size) and tuple(y[:2]) == size[:2]
    right = right and all(n <= most for n, most in zip(y[2:], size[2:], strict=True))
    require(right, op, f"a gradient of at most {size}", tuple(y))


def add_bias(
    total: Tensor,
    bias: Tensor,
    channels: int,
    acc: Sequence[int],
    seed: Tensor | None,
    role: int,
    backend: str,
    result: Sequence[int],
) -> None:
    op = "add_bias"
    operands(op, total, bias, acc, seed, role)
    fused(op, result)
    require(-total.dim() <= channels < total.dim(), op, "channels of a dimension", channels)
    moved = total.movedim(channels, -1).shape
    right = bias.dim() <= len(moved) and all(
        one in (1, size) for one, size in zip(bias.shape[::-1], moved[::-1], strict=False)
    )
    got = f"{tuple(bias.shape)} for {tuple(total.shape)}, channels={channels}"
    require(right, op, "a bias that broadcasts to the total", got)


def limits(x: Tensor, ints: Ints, limits: Tensor | None) -> None:
    """The limits between which x is rounded."""
    if limits is None:
        return
    axis = axis_of(ints)
    slices = 1 if axis is None or not x.dim() else x.shape[axis]
    right = ints[KIND] == AFFINE or takes_amax(ints)
    require(right, "quantize", "limits for a format that takes them", ints)
    shape = (2, slices) if ints[KIND] == AFFINE else (1,)
    _dense("limits", limits, x, torch.float64, [shape])


def scaled_to(ints: Sequence[int], x: Tensor, amax: Tensor | None) -> None:
    """A format of codes and scales, and the largest magnitude given for x."""
    require(ints[KIND] == BLOCK, "scaled", "a block format", ints)
    if amax is not None:
        require(takes_amax(tuple(ints)), "scaled", "amax for a scale of the whole tensor", ints)
        _dense("amax", amax, x, torch.float64, [(1,)])


def parts(parts: tuple[Tensor, Tensor, Tensor | None], fmt: Ints) -> None:
    """Codes and scales of a format."""
    require(fmt[KIND] == BLOCK, "scaled", "a block format", fmt)
    values = parts[0]
    shapes = (tuple(values.shape), grid_shape(values.shape, fmt), ())
    for x, shape in zip(parts, shapes, strict=True):
        if x is None:
            return require(False, "scaled", "the scale of the tensor", None)
        right = x.dtype is _FLOAT32 and x.device == values.device and tuple(x.shape) == shape
        got = f"{tuple(x.shape)} in {x.dtype} on {x.device}"
        require(right, "scaled", f"a part {shape} in float32 on {values.device}", got)


def _dense(name: str, x: Tensor, like: Tensor, dtype: torch.dtype, shapes: Sequence[Any]) -> None:
    right = x.dtype is dtype and x.device == like.device and x.is_contiguous()
    got = f"{tuple(x.shape)} in {x.dtype} on {x.device}"
    expected = f"dense {name} of {shapes} in {dtype} on {like.device}"
    require(right and tuple(x.shape) in shapes, "quantize", expected, got)


def codes(codes: Tensor, nbytes: int, shape: Sequence[int]) -> None:
    """Packed codes of a tensor of that shape."""
    right = codes.dtype is torch.uint8 and codes.dim() == 1 and codes.numel() >= nbytes
    right = right and codes.is_contiguous() and all(size >= 0 for size in shape)
    got = f"{tuple(codes.shape)} in {codes.dtype} for {tuple(shape)}"
    require(right, "unpack", f"at least {nbytes} bytes in one dense dimension", got)

"""Dense codes: a 5-bit format costs 5 bits a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.formats import BlockFormat, Number
from lpkernels.formats.integers import AFFINE, BLOCK, KIND, follows_from_values
from lpkernels.functional import _checks
from lpkernels.functional.quantize import format_ints
from lpkernels.functional.scaled import Scaled, parts_of

PackableLike: TypeAlias = Number | BlockFormat | str | torch.dtype


def pack(x: Tensor | Scaled, fmt: PackableLike | None = None) -> Tensor:
    """The codes of x, one after the other, least significant bit first; nothing is rounded.

    docs/contract.md, "Packed codes", has the layout of every kind of format. No gradient passes
    through codes.

    Args:
        x: float16, bfloat16, float32 or float64, any shape and strides, CPU or CUDA; every value is
            a value of fmt, as `quantize` makes them. Or a `Scaled`, which is packed as it is.
            Values tell their codes and scales for blocks of n with e8m0 and the rule "floor", and
            for blocks of n of `linear4` without target: tensors in other block formats are given
            as a Scaled.
        fmt: a FloatFormat, FixedFormat or BlockFormat, or its name; of a Scaled its own, or None.
    Returns: 1-D uint8 on x's device; the last byte is filled up with zero bits.
    Raises:
        ValueError: a value that fmt does not hold (inf or NaN without a code included), an
            AffineFormat, whose range is in the tensor and not in the codes, or values of a block
            format that do not tell codes and scales.

    >>> x = lp.quantize(torch.tensor([0.5, -1.0, 3.0]), "e2m1")
    >>> lp.pack(x, "e2m1")
    tensor([161,   5], dtype=torch.uint8)
    """
    if isinstance(x, Scaled):
        ints, parts = parts_of(x)
        if fmt is not None and _packable("pack", fmt) != ints:
            raise ValueError(f"pack: x is {x.fmt} already, got fmt={fmt}; leave fmt away")
        return ops.pack_scaled(*parts, ints)
    if fmt is None:
        raise TypeError("pack: values need a format, as in lp.pack(x, 'e5m2')")
    _checks.floating("pack", x=x)
    packable = _packable("pack", fmt)
    _checks.axis("pack", "x", x.shape, packable)
    if packable[KIND] == BLOCK and not follows_from_values(packable):
        raise ValueError(
            f"pack: values do not tell the codes and scales of {fmt}; give them: "
            "lp.pack(lp.scaled(x, fmt))"
        )
    return ops.pack(x, packable)


def unpack(codes: Tensor, fmt: PackableLike, shape: Sequence[int]) -> Tensor:
    """The values of codes that `pack` made; ``unpack(pack(x, fmt), fmt, x.shape)`` is x, bit for
    bit. Of a `Scaled` they are the values that its `dequantize` gives.

    Args:
        codes: 1-D uint8, exactly as long as `pack` makes it for this shape.
        fmt: the format it was packed in, or its name.
        shape: the shape of the result.
    Returns: float32 on the device of codes; every NaN code gives 0x7fc00000.
    Raises: TypeError, ValueError: codes of another dtype, rank or length; a negative size; an
        AffineFormat.

    >>> codes = lp.pack(torch.tensor([0.5, -1.0, 3.0]), "e2m1")
    >>> lp.unpack(codes, "e2m1", (3,))
    tensor([ 0.5000, -1.0000,  3.0000])
    """
    _checks.tensor("unpack", "codes", codes)
    packable = _packable("unpack", fmt)
    if codes.dtype != torch.uint8 or codes.dim() != 1:
        raise TypeError(
            f"unpack: codes must be a 1-D uint8 tensor as pack returns it, got {codes.dtype} of "
            f"shape {tuple(codes.shape)}; .view(torch.uint8).flatten() reinterprets bytes"
        )
    if isinstance(shape, int) or any(size < 0 for size in shape):
        raise ValueError(f"unpack: shape must be a sequence of sizes >= 0, got {shape!r}")
    _checks.axis("unpack", "the result", shape, packable)
    expected = ops.packed_bytes(packable, shape)
    if codes.numel() != expected:
        raise ValueError(
            f"unpack: {fmt} of shape {tuple(shape)} is {expected} bytes, but codes has "
            f"{codes.numel()}; pass the fmt and shape that were packed"
        )
    return ops.unpack(codes, packable, shape)


def _packable(function: str, fmt: PackableLike) -> tuple[int, ...]:
    """The integers of a format that can be packed."""
    ints = format_ints(function, fmt)
    if ints[KIND] == AFFINE:
        raise ValueError(
            f"{function}: {fmt} cannot be packed: its codes mean nothing without the range of the "
            "tensor they came from; use a FixedFormat or a BlockFormat"
        )
    return ints

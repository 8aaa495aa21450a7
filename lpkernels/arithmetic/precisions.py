"""A Recipe's precision, the widths of its quantizers, and the same recipe in another one."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from lpkernels.arithmetic._accumulator import Accumulator
from lpkernels.arithmetic._named_accumulators import as_accumulator
from lpkernels.arithmetic._ranks import TENSORS
from lpkernels.arithmetic._recipe import PRODUCTS, Recipe
from lpkernels.formats import (
    FP32,
    AffineFormat,
    BlockFormat,
    FixedFormat,
    Format,
    FormatLike,
    as_format,
)
from lpkernels.formats.checks import checked_int

Bits: TypeAlias = int | tuple[int | None, int | None] | None
Formats: TypeAlias = tuple[tuple[int, Format], ...]

_FORWARD = ("input", "weight")
_BACKWARD = ("grad_output", "grad_input", "grad_weight")
# The widest format, fp32; a format knows its own limits.
_MOST_BITS = 32
#: Beyond so many bits an affine quantizer rounds nothing.
MOST_AFFINE_BITS = 16


class Precision(NamedTuple):
    """The widths in force: ``forward`` of input and weight, ``backward`` of the gradients.

    None stands where nothing is rounded. forward is a pair (input, weight) if both are rounded and
    their widths differ, else a single width. backward is the width of grad_output or, where that is
    not rounded, of grad_input or grad_weight.
    """

    forward: int | tuple[int, int] | None
    backward: int | None


def precision(recipe: Recipe) -> Precision:
    """The widths in bits of the quantizers of `recipe`; a block format has its element's width."""
    forward, backward = _widths(recipe, _FORWARD), _widths(recipe, _BACKWARD)
    differ = len(set(forward)) > 1
    return Precision(
        (forward[0], forward[1]) if differ else next(iter(forward), None),
        next(iter(backward), None),
    )


def _widths(recipe: Recipe, names: tuple[str, ...]) -> list[int]:
    quantizers = [getattr(recipe, name) for name in names]
    return [_width(quantizer.fmt) for quantizer in quantizers if quantizer is not None]


def _width(fmt: Format) -> int:
    return fmt.element.bits if isinstance(fmt, BlockFormat) else fmt.bits


def checked_bits(name: str, bits: Any) -> int | None:
    """bits as a Python int, None where a side stays as it is.

    Raises:  TypeError: no int.  ValueError: out of range.
    """
    return None if bits is None else checked_int("set_precision", name, bits, 1, _MOST_BITS)


def checked_forward_bits(bits: Any) -> Bits:
    """`checked_bits` of one number, or of a pair (input, weight)."""
    name = "forward_bits"
    if not isinstance(bits, tuple):
        return checked_bits(name, bits)
    if len(bits) != 2:
        raise ValueError(
            f"set_precision: {name} must be an int or a pair (input, weight), got {bits!r}"
        )
    return checked_bits(name, bits[0]), checked_bits(name, bits[1])


def checked_formats(formats: Mapping[int, FormatLike] | None) -> Formats | None:
    """The table of `formats`, {bits: format or its name}, in the order of bits; None stays None.

    Raises:  TypeError: no mapping of ints to formats.  ValueError: an empty one, an unknown name.
    """
    if formats is None:
        return None
    if not isinstance(formats, Mapping):
        raise TypeError(
            "set_precision: formats must be a mapping {bits: format}, got "
            f"{type(formats).__name__}; for example {{4: 'fp4_e2m1', 8: 'e4m3fn_sat'}}"
        )
    if not formats:
        raise ValueError("set_precision: formats is empty; give a format for each number of bits")
    pairs = []
    for bits, fmt in formats.items():
        key = checked_int("set_precision", "a key of formats", bits, 1, _MOST_BITS)
        try:
            pairs.append((key, as_format(fmt)))
        except (TypeError, ValueError) as error:
            raise type(error)(f"set_precision: formats[{key}]: {error}") from error
    return tuple(sorted(pairs, key=lambda pair: pair[0]))


def _new_widths(forward: Bits, backward: int | None) -> list[tuple[str, int]]:
    """The quantizers that are to change, each with its width."""
    pair = forward if isinstance(forward, tuple) else (forward, forward)
    widths = [*zip(_FORWARD, pair, strict=True), *((name, backward) for name in _BACKWARD)]
    return [(name, bits) for name, bits in widths if bits is not None]


def rounds(recipe: Recipe, forward: Bits, backward: int | None) -> bool:
    """Whether the recipe rounds a tensor that one of these widths is for."""
    return any(getattr(recipe, name) is not None for name, _ in _new_widths(forward, backward))


@lru_cache(maxsize=4096)
def with_precision(
    recipe: Recipe,
    forward: Bits,
    backward: int | None,
    formats: Formats | None = None,
    narrow: Recipe | None = None,
) -> Recipe:
    """`recipe` with quantizers of so many bits; a side of None stays, and so does a tensor that is
    not rounded.

    `forward` is for `input` and `weight`, or a pair for each; `backward` for `grad_output`,
    `grad_input` and `grad_weight`. An operand of one product goes with its tensor, unless it is
    left in fp32. Rounding modes, axis, symmetric and input_range are kept. An affine quantizer of
    more than 16 bits becomes fp32, which rounds nothing; from there it comes back as `narrow` has
    it, a recipe of the same fields. `formats` is the table of `checked_formats`.

    Raises:
        ValueError: a side that is to change has no quantizer on either; formats lacks a width; a
            format that takes no such width, or none without formats.
    """
    widths = _new_widths(forward, backward)
    changes = {}
    for name, bits in widths:
        for field in (name, *(own for own, of in TENSORS.items() if of.general == name)):
            quantizer = getattr(recipe, field)
            before = getattr(narrow or recipe, field)
            if quantizer is None or (field != name and before.fmt == FP32):
                continue
            old = before.fmt if quantizer.fmt == FP32 else quantizer.fmt
            try:
                fmt = _format_of(old, bits, formats)
            except ValueError as error:
                raise ValueError(f"cannot take {bits} bits as {field}: {error}") from error
            changes[field] = replace(quantizer, fmt=fmt)
    if widths and not changes:
        names = ", ".join(name for name, _ in widths)
        raise ValueError(
            f"has no quantizer to set a precision of ({names}); its recipe is {recipe}. Give it "
            "one that rounds, or leave the layer out"
        )
    return replace(recipe, **changes)


def _format_of(fmt: Format, bits: int, formats: Formats | None) -> Format:
    """fmt in so many bits: taken from the table, else made in its own family."""
    if formats is not None:
        table = dict(formats)
        if bits not in table:
            raise ValueError(
                f"formats has no entry for {bits} bits, only for {', '.join(map(str, table))}; add "
                "one"
            )
        return in_place_of(fmt, table[bits])
    if isinstance(fmt, AffineFormat):
        return FP32 if bits > MOST_AFFINE_BITS else replace(fmt, bits=bits)
    if isinstance(fmt, FixedFormat):
        # The integer part stays, and with it the largest value except for its last bits.
        frac_bits = fmt.frac_bits + bits - fmt.word_bits
        return replace(fmt, word_bits=bits, frac_bits=frac_bits)
    raise ValueError(
        f"{fmt} has no width to choose; give a table of formats, "
        f"formats={{{_width(fmt)}: '{fmt}', {bits}: ...}}"
    )


def in_place_of(old: Format, new: Format) -> Format:
    """The format new for a quantizer that had old: an affine format, or one of blocks or rows along
    an axis, keeps old's axis; so does any format along "k"."""
    if isinstance(old, AffineFormat) and isinstance(new, AffineFormat):
        return replace(new, symmetric=old.symmetric, axis=old.axis)
    if isinstance(old, BlockFormat) and isinstance(new, BlockFormat):
        if (_runs(old) and _runs(new)) or (old.axis == "k" and new.block_size != "tensor"):
            return replace(new, axis=old.axis)
    return new


def _runs(fmt: BlockFormat) -> bool:
    """Whether its blocks run along an axis: no tiles, and not one scale a tensor."""
    return isinstance(fmt.block_size, int) or fmt.block_size == "row"


def with_accumulators(
    recipe: Recipe, acc: Accumulator | FormatLike | Mapping[str, Accumulator | FormatLike]
) -> Recipe:
    """`recipe` with `acc` in all three products, or with a mapping {product: acc} in these.

    Raises:  TypeError: no accumulator.  ValueError: an unknown name, or one of no product.
    """
    sums: dict[str, Any] = dict(acc) if isinstance(acc, Mapping) else dict.fromkeys(PRODUCTS, acc)
    unknown = [name for name in sums if name not in PRODUCTS]
    if unknown:
        raise ValueError(
            f"set_accumulator: {unknown[0]!r} is no product; expected {', '.join(PRODUCTS)}"
        )
    try:
        changes: dict[str, Any] = {name: as_accumulator(value) for name, value in sums.items()}
    except (TypeError, ValueError) as error:
        raise type(error)(f"set_accumulator: {error}") from error
    return replace(recipe, **changes)

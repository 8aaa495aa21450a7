"""How the products of a Recipe read their operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lpkernels.arithmetic._accumulator import Accumulator
from lpkernels.arithmetic._quantizer import Quantizer
from lpkernels.arithmetic._ranks import TENSORS
from lpkernels.arithmetic.groups import Side, check_operands
from lpkernels.arithmetic.hadamard import TE
from lpkernels.formats import FP32, BlockFormat
from lpkernels.formats.integers import (
    BLOCK,
    KIND,
    TENSOR,
    InBlock,
    Ints,
    follows_from_values,
    has_total,
    has_totals_of_lines,
)
from lpkernels.rng import Role

if TYPE_CHECKING:
    from lpkernels.arithmetic._recipe import Recipe

#: The operands of each product, left and right, by the field of a Recipe that comes first.
OPERANDS = {
    "fprop": ("input", "weight"),
    "dgrad": ("grad_output", "dgrad_weight"),
    "wgrad": ("wgrad_grad_output", "wgrad_input"),
}
#: The field that holds where the one of a product is None.
GENERAL = {name: tensor.general for name, tensor in TENSORS.items() if tensor.general is not None}
_PRODUCT_OF = {name: product for product, names in OPERANDS.items() for name in names}
# The axis of the sum of each operand.
_ALONG = {name: tensor.along for name, tensor in TENSORS.items() if tensor.along is not None}


class Reading(NamedTuple):
    """How a product reads one of its operands.

    quantizer: with blocks along the axis of the sum in place of "k", and without its transform;
        None for an operand that is used as it is.
    ints: the quantizer's; () where it rounds nothing.
    role: of its draws.
    along: the axis of the sum, -1 or -2.
    fused: the quantizer, where the products that read the tensor apply it themselves; else ().
    as_is: whether the product takes the tensor itself: it has no quantizer, or it is `fused`.
    transform: size and signs of the transform before it, or None.
    own: whether the codes belong to this product alone; otherwise they are fprop's, or of
        grad_output dgrad's.
    along_k: whether they lie along the sum in every matrix; otherwise their axis is one of the
        layer's tensor.
    from_codes: whether they are made from the values of fprop's codes.
    is_block: whether the codes have scales beside them, which values do not tell.
    in_parts: whether the product takes codes and scales; otherwise it takes values.
    by_scale: whether its sums end where a scale changes.
    on_matrix: whether the codes are those of the matrix that the product sums; otherwise they are
        the codes of the layer's tensor.
    matrix_ints: `ints` for that matrix, with blocks along the axis of the sum.
    key, matrix_key: texts that tell the codes of one tensor, and of its matrices, apart.
    """

    quantizer: Quantizer | None
    ints: Ints
    role: Role
    along: int
    fused: Ints = ()
    as_is: bool = False
    transform: tuple[int, str | int] | None = None
    own: bool = False
    along_k: bool = False
    from_codes: bool = False
    is_block: bool = False
    in_parts: bool = False
    by_scale: bool = False
    on_matrix: bool = False
    matrix_ints: Ints = ()
    key: str = ""
    matrix_key: str = ""


#: How a product reads its left and its right operand.
Pair = tuple[Reading, Reading]


class Readings(NamedTuple):
    """How the three products of a Recipe read their left and right operands (`OPERANDS`).

    by_product: whether products read codes of their own, or with codes that values do not tell.
        Otherwise all readings of a tensor are the same.
    plain_bias: whether the bias' gradient sums the unquantized output gradient.
    depends_on_shapes: whether a layer must check its shapes: transforms have runs, and the scales
        of blocks along an axis of the tensor must be constant along a sum.
    """

    fprop: Pair
    dgrad: Pair
    wgrad: Pair
    by_product: bool = False
    plain_bias: bool = False
    depends_on_shapes: bool = False


def readings(recipe: Recipe) -> Readings:
    """How the products of a recipe read their operands.

    Raises:  ValueError: as `_check_operands`.
    """
    quantizers = [getattr(recipe, name) for name in _ALONG]
    own = any(getattr(recipe, name) is not None for name in GENERAL)
    scales = any(getattr(recipe, product).takes_scales for product in OPERANDS)
    if own or scales or any(q is not None and q.is_scaled for q in quantizers):
        _check_operands(recipe)
        if own or scales or any(map(_needs_codes, quantizers)):
            return _readings_by_product(recipe, own)
    return plain_readings(recipe)


def plain_readings(recipe: Recipe) -> Readings:
    """The readings of a recipe whose rounded tensors serve every product, as values that tell their
    codes."""
    by_field = {}
    for name, along in _ALONG.items():
        general = GENERAL.get(name, name)
        if name == general:
            quantizer = getattr(recipe, name)
            ints = () if quantizer is None else quantizer.to_ints()
            fused = getattr(recipe.fused, name)
            as_is = not ints or bool(fused)
            by_field[name] = Reading(quantizer, ints, Role[name.upper()], along, fused, as_is)
        else:
            by_field[name] = by_field[general]._replace(along=along)
    return Readings(*_pairs(by_field))


def _readings_by_product(recipe: Recipe, own: bool) -> Readings:
    by_field = {name: _reading(recipe, name) for name in _ALONG}
    shapes = any(r.transform or (r.on_matrix and not r.along_k) for r in by_field.values())
    plain_bias = by_field["grad_output"].along_k or own
    return Readings(*_pairs(by_field), True, plain_bias, shapes)


def _pairs(by_field: Mapping[str, Reading]) -> tuple[Pair, Pair, Pair]:
    """The readings of the operands of fprop, dgrad and wgrad."""
    fprop, dgrad, wgrad = ((by_field[left], by_field[right]) for left, right in OPERANDS.values())
    return fprop, dgrad, wgrad


def _needs_codes(quantizer: Quantizer | None) -> bool:
    if quantizer is None:
        return False
    fmt = quantizer.to_ints()
    along_k = bool(quantizer.hadamard) or _is_along_k(quantizer)
    return along_k or (fmt[KIND] == BLOCK and not follows_from_values(fmt))


def _reading(recipe: Recipe, name: str) -> Reading:
    general = GENERAL.get(name, name)
    own = name != general and getattr(recipe, name) is not None
    quantizer = getattr(recipe, name if own else general)
    along, role = _ALONG[name], Role[general.upper()]
    transform, along_k, ints = None, False, ()
    if quantizer is not None and quantizer.fmt == FP32 and not quantizer.hadamard:
        quantizer = None
    if quantizer is not None:
        fmt = quantizer.fmt
        transform = quantizer.transform
        along_k = transform is not None or _is_along_k(quantizer)
        own = own or (name != general and along_k and (transform is not None or has_axis(fmt)))
        if _is_along_k(quantizer):
            fmt = along_axis(fmt, along)
        quantizer = replace(quantizer, fmt=fmt, hadamard=None, signs=TE)
        ints = () if fmt == FP32 else quantizer.to_ints()
        role = Role[name.upper()] if own else role
    acc: Accumulator = getattr(recipe, _PRODUCT_OF[name])
    is_block = bool(ints) and ints[KIND] == BLOCK
    in_parts = is_block and not acc.is_native and (acc.takes_scales or has_total(ints))
    on_matrix = along_k or (
        in_parts
        and ints[InBlock.LINES] != TENSOR
        and (acc.takes_scales or has_totals_of_lines(ints))
    )
    matrix_ints = ints
    if on_matrix and is_block and not along_k and ints[InBlock.LINES] <= 0:
        matrix_ints = (*ints[: InBlock.AXIS], along, *ints[InBlock.AXIS + 1 :])
    # A gradient is always quantized from its source.
    from_codes = own and recipe.requantize == "codes" and GENERAL[name] != "grad_output"
    return Reading(
        quantizer,
        ints,
        role,
        along,
        transform=transform,
        own=own,
        along_k=along_k,
        from_codes=from_codes,
        is_block=is_block,
        in_parts=in_parts,
        by_scale=acc.takes_scales,
        on_matrix=on_matrix,
        matrix_ints=matrix_ints,
        key=f"{ints} {role:d} {along if transform else 0}",
        matrix_key=f"{matrix_ints} {role:d} {along if transform else 0}",
    )


def has_axis(fmt: BlockFormat) -> bool:
    """Whether the codes of a matrix are not those of its transpose."""
    size = fmt.block_size
    return size != "tensor" and not (isinstance(size, tuple) and size[0] == size[1])


def _is_along_k(quantizer: Quantizer | None) -> bool:
    fmt = None if quantizer is None else quantizer.fmt
    return isinstance(fmt, BlockFormat) and fmt.axis == "k"


def along_axis(fmt: BlockFormat, axis: int) -> BlockFormat:
    """A format along "k" of a matrix in which k is the last axis, -1, or the one before it, -2."""
    if not isinstance(fmt.block_size, tuple):
        return replace(fmt, axis=axis)
    rows, cols = fmt.block_size
    if axis == -1:
        return replace(fmt, axis=-1)
    # Tiles of (rows, cols) with cols along k lie on their side. One row is no tile, but a block.
    return replace(fmt, axis=-1, block_size=rows if cols == 1 else (cols, rows))


def _check_operands(recipe: Recipe) -> None:
    """Checks that the two operands of each product go together, and with its accumulator.

    Raises:  ValueError: a transform of one operand alone, or another one of the other; codes of a
        transformed operand as the source of others; an accumulator with chunk="scale" and operands
        without scales, or with groups and operands that its unit does not take; float32 scales of
        blocks under another accumulator that is not native.
    """
    for product, names in OPERANDS.items():
        operands = {}
        for name in names:
            name = name if getattr(recipe, name) is not None else GENERAL.get(name, name)
            operands[name] = getattr(recipe, name)
        _check_transforms(product, operands)
        _check_scales(product, getattr(recipe, product), operands)
    if recipe.requantize == "codes":
        for name in ("input", "weight"):
            quantizer = getattr(recipe, name)
            if quantizer is not None and quantizer.hadamard:
                raise ValueError(
                    f"Recipe: requantize='codes' takes the values of {name}'s codes for other "
                    f"products, but {str(quantizer)!r} transforms them; use requantize='source'"
                )


def _check_transforms(product: str, operands: Mapping[str, Any]) -> None:
    left, right = (quantizer and quantizer.transform for quantizer in operands.values())
    if left == right:
        return
    texts = ", ".join(f"{name}={q and repr(str(q))}" for name, q in operands.items())
    raise ValueError(
        f"Recipe: {product} reads {texts}: a Hadamard transform cancels only where both operands "
        "of a product have the same size and signs; give it to both, or to neither"
    )


def _check_scales(product: str, acc: Accumulator, operands: Mapping[str, Any]) -> None:
    formats = {name: quantizer and quantizer.fmt for name, quantizer in operands.items()}
    if acc.group is not None:
        sides = {name: Side(fmt, _ALONG[name]) for name, fmt in formats.items()}
        return check_operands(f"Recipe: {product}", acc, sides)
    formats = {name: fmt for name, fmt in formats.items() if isinstance(fmt, BlockFormat)}
    if acc.chunk == "scale":
        if not formats:
            names = " and ".join(operands)
            raise ValueError(
                f"Recipe: {product}={str(acc)!r} ends its sums where a scale changes, and neither "
                f"of {names} has scales; give one a format with scales, such as 'mxfp8', or use an "
                "accumulator with a chunk of a length"
            )
        return
    for name, fmt in formats.items():
        if fmt.scale == "fp32" and not isinstance(fmt.block_size, str) and not acc.is_native:
            raise ValueError(
                f"Recipe: {name}: codes of {fmt} times their float32 scales do not fit in float32, "
                f"which {product}={str(acc)!r} adds; use an accumulator with chunk='scale', such "
                f"as {product}='fp32_chunkscale', or 'native'"
            )

"""Tensors as codes and scales."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Quantizer
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.formats import (
    BF16,
    E4M3FN,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    FP4_E2M1,
    FP16,
    FP32,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    Number,
    TableFormat,
    format_from_ints,
    table_of_parts,
)
from lpkernels.formats.grids import grid_shape, tensor_scale_shape
from lpkernels.formats.integers import BLOCK, KIND, Ints, has_tensor_scale
from lpkernels.functional import _checks
from lpkernels.functional._limits import amax_of
from lpkernels.functional.quantize import format_ints, lowered
from lpkernels.functional.seeds import seed_for
from lpkernels.rng import SITE_QUANTIZE, Role

BlockLike: TypeAlias = BlockFormat | str
_PARTS = ("values", "scale", "tensor_scale")


# The parts of a table that is the element, in a pickle.
_ELEMENT = "table"
# torch's own narrow types. Values reach them as codes: torch's conversions round, saturate and
# flush in their own way.
_TYPES = {
    E4M3FN: torch.float8_e4m3fn,
    E4M3FNUZ: torch.float8_e4m3fnuz,
    E5M2FNUZ: torch.float8_e5m2fnuz,
    E5M2: torch.float8_e5m2,
    FP16: torch.float16,
    BF16: torch.bfloat16,
    FP32: torch.float32,
}
_BYTE = 8
# Each block is packed as the byte of its scale and the byte of its one element.
_BYTES = BlockFormat("e4m3", 1).to_ints()


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Scaled:
    """A tensor as codes q, the scales s of their blocks and a scale t: the values are q * s * t.

    `scaled` makes them; one can be made by hand too, of parts from elsewhere. It is frozen, a node
    of torch.utils._pytree, and can be pickled, copied, and read by torch.load in its default mode
    once lpkernels is imported. No gradient passes through it.

    Args:
        values:       q, float32, of the tensor's shape; 0, or the least value where 0 is none, in
                      a block that is NaN.
        scale:        s, float32, on the grid of blocks: the tensor's dimensions counted in blocks
                      (one value for each line with "row", one at all with "tensor"; 0 where the
                      dimension is 0); NaN for a block that is NaN. 2^-127 is a subnormal.
        tensor_scale: t, 0-d float32, or of the tensor's shape with 1 along the axis where each line
                      has one; 1 (or None, by hand) where the format has no tensor scale.
        fmt:          the BlockFormat, or its name.

    Raises:  TypeError: a part is no float32 tensor.  ValueError: a shape or device that does not
        fit, no tensor scale where the format has one, another kind of format, or blocks along "k".

    >>> codes, scale = torch.tensor([[1.0, -1.5]]), torch.tensor([[2.0]])
    >>> lp.Scaled(codes, scale, None, "mxfp8").dequantize()
    tensor([[ 2., -3.]])
    """

    values: Tensor
    scale: Tensor
    tensor_scale: Tensor
    # torch.compile holds integers, but makes no format while it traces.
    _ints: Ints

    def __init__(
        self, values: Tensor, scale: Tensor, tensor_scale: Tensor | None, fmt: BlockLike
    ) -> None:
        ints = _block_ints("Scaled", fmt)
        if tensor_scale is None and has_tensor_scale(ints):
            raise ValueError(
                f"Scaled: {format_from_ints(ints)} has a tensor scale, but tensor_scale is None; "
                "give it, a float32 tensor of no dimensions, or of one value a line"
            )
        if tensor_scale is None and isinstance(values, Tensor):
            tensor_scale = torch.ones((), dtype=torch.float32, device=values.device)
        parts: dict[str, Any] = {"values": values, "scale": scale, "tensor_scale": tensor_scale}
        for name, part in parts.items():
            _checks.tensor("Scaled", name, part)
            if part.dtype != torch.float32:
                raise TypeError(
                    f"Scaled: {name} must be float32, got {part.dtype}; "
                    "Scaled.from_tensors takes torch's narrow types"
                )
        _checks.same_device("Scaled", **parts)
        _checks.axis("Scaled", "values", values.shape, ints)
        of_lines = tensor_scale_shape(values.shape, ints)
        shapes = {"scale": grid_shape(values.shape, ints), "tensor_scale": of_lines}
        for name, shape in shapes.items():
            if tuple(parts[name].shape) != tuple(shape):
                raise ValueError(
                    f"Scaled: {name} has shape {tuple(parts[name].shape)}, expected {tuple(shape)} "
                    f"for values of shape {tuple(values.shape)} in {format_from_ints(ints)}"
                )
        _set(self, [part.detach() for part in parts.values()], ints)

    @property
    def fmt(self) -> BlockFormat:
        """The format."""
        fmt = format_from_ints(self._ints)
        assert isinstance(fmt, BlockFormat)
        return fmt

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape."""
        return self.values.shape

    @property
    def mT(self) -> Scaled:
        """The transposed matrix, as views: codes of B (N, K) as the right operand of `matmul`.

        Raises: ValueError: fewer than two dimensions.
        """
        fmt, rank = self.fmt, self.values.dim()
        if rank < 2:
            raise ValueError(
                f"Scaled.mT: expected two dimensions or more, got shape {tuple(self.shape)}; "
                "reshape the tensor before lp.scaled"
            )
        if isinstance(size := fmt.block_size, tuple):
            fmt = replace(fmt, block_size=size[::-1])
        elif size != "tensor" and (axis := int(fmt.axis) % rank - rank) >= -2:
            fmt = replace(fmt, axis=-3 - axis)
        t = self.tensor_scale.mT if self.tensor_scale.dim() else self.tensor_scale
        return Scaled(self.values.mT, self.scale.mT, t, fmt)

    def __repr__(self) -> str:
        return (
            f"Scaled({str(self.fmt)!r}, values={self.values!r}, scale={self.scale!r}, "
            f"tensor_scale={self.tensor_scale!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        element = self.fmt.element
        table = element.parts() if isinstance(element, TableFormat) else None
        return {**vars(self), **({} if table is None else {_ELEMENT: table})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A table is known from now on."""
        if _ELEMENT in state:
            table_of_parts(*state.pop(_ELEMENT))
        vars(self).update(state)

    def dequantize(self, *, backend: str = "auto") -> Tensor:
        """The values q * s * t, rounded once to float32, as `lpkernels.quantize` returns them."""
        _checks.backend("dequantize", backend)
        parts = (self.values, self.scale, self.tensor_scale)
        return ops.dequantize(*parts, self._ints, backend)

    def tensors(self) -> ops.Parts:
        """(elements, scale, tensor_scale) in torch's own types, as its functions read them.

        Elements are float8_e4m3fn, float8_e5m2 or int8, of the shape of the values; e2m1 is
        float4_e2m1fn_x2, two codes a byte, the first in the low four bits, with half the last
        dimension. An integer element is its code, the value times 2^frac_bits. Scales are
        float8_e8m0fnu, float8_e4m3fn, float8_e5m2, float16, bfloat16 or float32, on the grid of
        blocks, which is not the order in which matrix units take them. Where torch has no type
        (FP6, INT4, UE5M3), codes are uint8, one a byte. The tensor scale is float32.

        Raises:  ValueError: an odd last dimension of e2m1; codes of more than 8 bits for which
            torch has no type; a value that is none of the format's.
        """
        fmt = self.fmt
        return _elements(self.values, fmt), _scales(self.scale, fmt), self.tensor_scale

    @staticmethod
    def from_tensors(
        elements: Tensor, scale: Tensor, tensor_scale: Tensor | None, fmt: BlockLike
    ) -> Scaled:
        """The inverse of `tensors`; tensor_scale may be None where the format has none.

        Raises:  TypeError: a tensor of another type than `tensors` gives.  ValueError: as `Scaled`.
        """
        parsed = format_from_ints(_block_ints("from_tensors", fmt))
        assert isinstance(parsed, BlockFormat)
        values = _values_of(elements, parsed)
        return Scaled(values, _scales_of(scale, parsed), tensor_scale, parsed)


def scaled(
    x: Tensor,
    fmt: BlockLike | Quantizer,
    rounding: str = "nearest_even",
    *,
    random_bits: int | None = None,
    generator: torch.Generator | Tensor | None = None,
    amax: float | Tensor | None = None,
    backend: str = "auto",
) -> Scaled:
    """x in a block format, as codes and scales: `quantize` in parts.

    ``scaled(x, fmt).dequantize()`` is ``quantize(x, fmt)``, to the bit. It is not differentiable:
    the parts carry no gradient, where `quantize` has a straight-through one.

    Args:
        x, rounding, random_bits, generator, amax, backend: as for `quantize`; empty and 0-d x too.
        fmt: a BlockFormat, its name such as "nvfp4", a Quantizer of one, or its text.

    Returns: a `Scaled` of new float32 tensors on x's device.
    Raises: TypeError, ValueError: as `quantize`; a format that is no BlockFormat.

    >>> x = lp.scaled(torch.tensor([[1.0, 6.0, 0.25, 0.5]]), lp.BlockFormat("e2m1", 2))
    >>> x.values, x.scale
    (tensor([[1., 6., 2., 4.]]), tensor([[1.0000, 0.1250]]))
    >>> x.dequantize()
    tensor([[1.0000, 6.0000, 0.2500, 0.5000]])
    """
    _checks.floating("scaled", x=x)
    quantizer, stochastic = lowered("scaled", fmt, rounding, random_bits)
    ints = quantizer[InQuantizer.FORMAT]
    _check_blocks("scaled", ints)
    _checks.axis("scaled", "x", x.shape, ints)
    _checks.call("scaled", backend, generator)
    largest = amax_of("scaled", x, quantizer, amax)
    seed = seed_for(stochastic, generator)
    parts = ops.scaled(x, quantizer, largest, seed, Role.DIRECT, SITE_QUANTIZE, backend)
    return _of(parts, ints)


def _block_ints(function: str, fmt: BlockLike) -> Ints:
    ints = format_ints(function, fmt)
    _check_blocks(function, ints)
    return ints


def _check_blocks(function: str, ints: Ints) -> None:
    if ints[KIND] != BLOCK:
        raise ValueError(
            f"{function}: expected a BlockFormat, whose codes have scales, got "
            f"{format_from_ints(ints)}; use one such as 'mxfp8', or lp.quantize"
        )


def _set(target: Scaled, parts: Iterable[Any], ints: Ints) -> None:
    for name, part in zip(_PARTS, parts, strict=True):
        object.__setattr__(target, name, part)
    object.__setattr__(target, "_ints", ints)


def _of(parts: Iterable[Any], ints: Ints) -> Scaled:
    """Without checks: compilers and transforms put other things in the place of tensors."""
    result = object.__new__(Scaled)
    _set(result, parts, ints)
    return result


def parts_of(q: Scaled) -> tuple[Ints, ops.Parts]:
    """The integers of the format, and the three tensors."""
    return q._ints, (q.values, q.scale, q.tensor_scale)


def _torch_type(fmt: Number) -> torch.dtype:
    """torch's type of a format, two values a byte for e2m1; uint8 where it has none."""
    if isinstance(fmt, TableFormat):
        return torch.uint8
    if isinstance(fmt, FixedFormat):
        return torch.int8 if fmt.word_bits == _BYTE else torch.uint8
    if _same_values(fmt, FP4_E2M1):
        return torch.float4_e2m1fn_x2
    dtypes = (dtype for one, dtype in _TYPES.items() if _same_values(fmt, one))
    return next(dtypes, torch.uint8)


def _same_values(one: FloatFormat, other: FloatFormat) -> bool:
    """Whether they have the same codes; what becomes of larger values does not matter."""
    names = ("exp_bits", "man_bits", "bias", "specials", "subnormals", "signed")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _elements(values: Tensor, fmt: BlockFormat) -> Tensor:
    """The codes of values as `Scaled.tensors` gives them."""
    dtype = _torch_type(fmt.element)
    if dtype == torch.float4_e2m1fn_x2:
        if not values.dim() or values.shape[-1] % 2:
            raise ValueError(
                f"tensors: two values of {fmt} share a byte, so the last dimension must be even, "
                f"got shape {tuple(values.shape)}; pad x with a zero"
            )
        shape = (*values.shape[:-1], values.shape[-1] // 2)
        return ops.pack(values, fmt.element).view(shape).view(dtype)
    return _coded(values, fmt.element, dtype, fmt.element.bits)


def _values_of(codes: Tensor, fmt: BlockFormat) -> Tensor:
    """The values of `_elements`."""
    dtype = _torch_type(fmt.element)
    _check_type("elements", codes, dtype, fmt)
    if dtype == torch.float4_e2m1fn_x2:
        shape = (*codes.shape[:-1], codes.shape[-1] * 2)
        return ops.unpack(codes.contiguous().view(torch.uint8).flatten(), fmt.element, shape)
    return _values(codes, fmt.element, fmt.element.bits)


def _scales(s: Tensor, fmt: BlockFormat) -> Tensor:
    """The codes of scales as `Scaled.tensors` gives them."""
    if fmt.scale == "e8m0":
        codes = ops.pack_scaled(torch.zeros_like(s), s, s.new_ones(()), _BYTES)[::2]
        return codes.contiguous().view(s.shape).view(torch.float8_e8m0fnu)
    scale = _scale(fmt)
    return _coded(s, scale, _type_of_scale(scale), scale.bits - 1)


def _scales_of(codes: Tensor, fmt: BlockFormat) -> Tensor:
    """The values of `_scales`."""
    if fmt.scale == "e8m0":
        _check_type("scale", codes, torch.float8_e8m0fnu, fmt)
        return ops.unpack_powers(codes.view(torch.uint8))
    scale = _scale(fmt)
    _check_type("scale", codes, _type_of_scale(scale), fmt)
    return _values(codes, scale, scale.bits - 1)


def _scale(fmt: BlockFormat) -> FloatFormat:
    return fmt.scale if isinstance(fmt.scale, FloatFormat) else FP32


def _type_of_scale(scale: FloatFormat) -> torch.dtype:
    # Scales of e2m1 do not share bytes. A scale has no sign: eight bits hold a code of nine.
    return torch.uint8 if scale.bits < _BYTE else _torch_type(scale)


def _check_type(name: str, codes: object, dtype: torch.dtype, fmt: BlockFormat) -> None:
    _checks.tensor("from_tensors", name, codes)
    assert isinstance(codes, Tensor)
    if codes.dtype != dtype:
        raise TypeError(
            f"from_tensors: {name} of {fmt} must be {dtype}, as tensors() gives them, got "
            f"{codes.dtype}; .view({dtype}) reads codes"
        )


def _coded(x: Tensor, fmt: Number, dtype: torch.dtype, width: int) -> Tensor:
    """The codes of x; where they are one a byte, their lowest `width` bits."""
    if dtype == torch.float32:
        return x
    if not x.numel():
        return x.new_empty(x.shape, dtype=dtype)
    if dtype != torch.uint8:
        return ops.pack(x, fmt).view(dtype).view(x.shape)
    if width > _BYTE:
        raise ValueError(
            f"tensors: torch has no type of {fmt}, whose codes do not fit into a byte; lp.pack "
            "stores them densely"
        )
    bits = _bits_of(ops.pack(x, fmt), _BYTE)[: x.numel() * fmt.bits]
    return _bytes_of(bits.view(-1, fmt.bits)[:, :width]).view(x.shape)


def _values(codes: Tensor, fmt: Number, width: int) -> Tensor:
    """The inverse of `_coded`."""
    if codes.dtype == torch.float32 or not codes.numel():
        return codes.float()
    dense = codes.contiguous().view(-1).view(torch.uint8)
    if codes.dtype == torch.uint8:
        bits = _bits_of(dense, width).view(-1, width)
        bits = torch.nn.functional.pad(bits, (0, fmt.bits - width)).flatten()
        bits = torch.nn.functional.pad(bits, (0, -bits.numel() % _BYTE))
        dense = _bytes_of(bits.view(-1, _BYTE))
    return ops.unpack(dense, fmt, codes.shape)


def _bits_of(codes: Tensor, width: int) -> Tensor:
    """The lowest `width` bits of every byte, in one dimension."""
    places = torch.arange(width, dtype=torch.uint8, device=codes.device)
    return ((codes.view(-1, 1) >> places) & 1).flatten()


def _bytes_of(bits: Tensor) -> Tensor:
    """The number that each row of bits is, the lowest bit first."""
    places = torch.arange(bits.shape[-1], dtype=torch.uint8, device=bits.device)
    return (bits << places).sum(-1, dtype=torch.uint8)


def _with_names(q: Scaled) -> tuple[list[Any], Ints]:
    return [(torch.utils._pytree.GetAttrKey(name), getattr(q, name)) for name in _PARTS], q._ints


torch.utils._pytree.register_pytree_node(
    Scaled,
    lambda q: ([getattr(q, name) for name in _PARTS], q._ints),
    _of,
    flatten_with_keys_fn=_with_names,
    serialized_type_name="lpkernels.Scaled",
    to_dumpable_context=list,
    from_dumpable_context=tuple,
)
torch.serialization.add_safe_globals([Scaled])

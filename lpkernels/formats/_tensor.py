"""AffineFormat and BlockFormat: formats whose scale comes from the tensor itself."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from lpkernels.formats import _scaled
from lpkernels.formats._fixed import FixedFormat
from lpkernels.formats._float import FloatFormat
from lpkernels.formats._named import FP4_E2M1, FP32
from lpkernels.formats._table import TableFormat
from lpkernels.formats.checks import Named, checked_bool, checked_choice, checked_int, set_fields
from lpkernels.formats.integers import (
    AFFINE,
    AXIS_K,
    BLOCK,
    CANDIDATES,
    E8M0,
    FLOAT_SCALE,
    FP32_SCALE,
    LINE_SCALE,
    ROW,
    RULES,
    STEPS,
    TENSOR,
    TENSOR_SCALE,
    InBlock,
    scale_bits,
)

# X >= -127, so an element step of 2^-22 is 2^-149, float32's own.
_LEAST_ELEMENT_STEP = -22
_MAX_AXIS = 63
# The rules of power-of-two scales and of the others; the first is the default.
_RULES = {True: ("floor", "ceil", "even", "up"), False: ("nearest", "up")}


@dataclass(frozen=True)
class AffineFormat(Named):
    """Codes ``rint((x - lo) / s)`` over the min/max range of a tensor, or of each slice along axis.

    lo and hi are taken over the finite values, with 2^bits - 1 steps s of at least 1e-8 between
    them; symmetric, they are -max|x| and max|x|, and zero is exact, which is not forced else. The
    code is rounded in the rounding mode, and its value is ``code * s + lo`` (docs/contract.md,
    "Fixed, table, block and affine formats"). NaN stays NaN, an infinity takes the end code,
    everything is NaN if nothing is finite, a zero result is +0. Float64 arithmetic, rounded once to
    float32; results are always float32.

    Args:
        bits:      1..16, symmetric 2..16.
        symmetric: range [-max|x|, max|x|] instead of [min, max].
        axis:      slice i is ``x.select(axis, i)``, each with its own range; None: one range.

    Raises:
        TypeError: an argument has the wrong type.  ValueError: bits out of range.

    >>> lp.quantize(torch.tensor([0.0, 0.4, 1.0]), lp.AffineFormat(2))
    tensor([0.0000, 0.3333, 1.0000])
    """

    bits: int
    _: KW_ONLY
    symmetric: bool = False
    axis: int | None = None

    def __post_init__(self) -> None:
        owner = "AffineFormat"
        symmetric = checked_bool(owner, "symmetric", self.symmetric)
        called = f"{owner} with symmetric=True" if symmetric else owner
        bits = checked_int(called, "bits", self.bits, 1 + symmetric, 16)
        axis = self.axis if self.axis is None else _checked_axis(owner, self.axis)
        set_fields(self, bits=bits, axis=axis)

    @property
    def name(self) -> str:
        """``affine<bits>``, "_sym" where symmetric, "_axis<axis>" where sliced."""
        symmetric = "_sym" if self.symmetric else ""
        axis = "" if self.axis is None else f"_axis{self.axis}"
        return f"affine{self.bits}{symmetric}{axis}"

    def to_ints(self) -> tuple[int, ...]:
        """Eight integers (`integers.InAffine`)."""
        has_axis = self.axis is not None
        return (AFFINE, self.bits, int(self.symmetric), int(has_axis), self.axis or 0, 0, 0, 0)

    @staticmethod
    def from_ints(ints: tuple[int, ...]) -> "AffineFormat":
        """The format of `to_ints`."""
        _, bits, symmetric, has_axis, axis, *_ = ints
        return AffineFormat(bits, symmetric=bool(symmetric), axis=axis if has_axis else None)


@dataclass(frozen=True, init=False)
class BlockFormat(Named):
    """Codes of a narrow format that share a scale: MX, NVFP4, scaled FP8 and integer groups.

    A tensor is codes q, a scale s for every block and a tensor scale t (1 without
    ``tensor_scale``); its values are ``q * s * t``, rounded once to float32. `lpkernels.scaled`
    returns q, s and t, `lpkernels.quantize` the values. s follows from the largest magnitude of the
    block, t from that of the tensor's finite values, and q is x / (s t) in the Quantizer's
    rounding, saturating whatever the element's own overflow says. docs/contract.md, "Fixed, table,
    block and affine formats", has every step.

    Zeros keep their signs in float elements; those of integers and tables are +0. A block that
    holds NaN or an infinity is NaN throughout. The last block may be short.
    Results are always float32. docs/formats.md lists what other libraries call these formats.

    Args:
        element:    a FloatFormat, a signed saturating FixedFormat, a TableFormat whose boundaries
                    have at most 28 significant bits (with scale "fp32"), or a name: "e5m2", "e4m3",
                    "e3m2", "e2m3" and "e2m1" mean the OCP types here ("e4m3ieee" is the IEEE one),
                    "int8", "int4" and "int8f6" FixedFormat(8, 0), (4, 0) and (8, 6). Integer codes
                    are symmetric, unless target is beyond the largest. An element with one exponent
                    bit, ``FloatFormat(1, m, specials="none")``, is block floating point with
                    sign-magnitude integers of m + 1 bits.
        block_size: n values along axis; tiles (r, c) of r rows and c columns, r > 1; "row": one
                    scale for each line along axis; "tensor": one scale.
        scale:      "e8m0", "fp32" or a FloatFormat, of which the sign is not used; its largest
                    finite value is the largest scale. Default "e8m0"; of "row" and "tensor" "fp32".
        axis:       the dimension blocks run along; "k": the summed dimension of the product that
                    reads the operand, for recipes alone. Tiles have -1 or "k", a tensor -1.
        rule:       how s is rounded. Of "e8m0": OCP's "floor" (default), "ceil", "even", or "up",
                    under which nothing saturates; of others: "nearest" (default) or "up".
        tensor_scale: one float32 scale more; with blocks or tiles whose scale is a FloatFormat.
                    "row": one for each line along axis; not with tiles.
        scale_target: the scale of the block that holds the tensor's largest, kept as a float32;
                    default the scale's largest, at which scales are still cut off. For formats with
                    tensor_scale.
        target:     the value that a block's largest maps to, kept as a float32; default the
                    element's largest. Not for floor, ceil and even. "4or6mae" or "4or6mse": the
                    better one of two (four over six, arXiv 2512.02010), for e2m1 with tensor_scale
                    and rule "nearest".
        steps:      "exact", or the roundings of float32 on the way to the codes in another program:
                    "te" (TransformerEngine), "torchao", "deepgemm". Which formats they take is in
                    docs/formats.md.

    Raises:
        TypeError: an argument has the wrong type.  ValueError: a value or a combination that is not
        defined, or a power-of-two scale and an element with ``emin - man_bits < -22``, whose values
        float32 could not carry.

    >>> fmt = lp.BlockFormat("e2m1", 2)
    >>> str(fmt)
    'block2_e2m1'
    >>> lp.quantize(torch.tensor([1.0, 5.0, 0.1, 0.3]), fmt)
    tensor([1.0000, 4.0000, 0.0938, 0.2500])
    """

    element: FloatFormat | FixedFormat | TableFormat
    block_size: int | tuple[int, int] | str
    scale: str | FloatFormat
    axis: int | str
    rule: str
    tensor_scale: bool | str
    scale_target: float | None
    target: float | str | None
    steps: str

    def __init__(
        self,
        element: FloatFormat | FixedFormat | TableFormat | str,
        block_size: int | tuple[int, int] | str = 32,
        *,
        scale: str | FloatFormat | None = None,
        axis: int | str = -1,
        rule: str | None = None,
        tensor_scale: bool | str = False,
        scale_target: float | None = None,
        target: float | str | None = None,
        steps: str = "exact",
    ) -> None:
        element = _checked_element(element)
        block_size = _checked_size(block_size)
        if scale is None:
            scale = "fp32" if isinstance(block_size, str) else "e8m0"
        scale = _scaled.parse_scale(scale)
        rules = _RULES[scale == "e8m0"]
        set_fields(
            self,
            element=element,
            block_size=block_size,
            scale=scale,
            axis=checked_choice("BlockFormat", "a named axis", axis, ("k",))
            if isinstance(axis, str)
            else _checked_axis("BlockFormat", axis),
            rule=rules[0] if rule is None else checked_choice("BlockFormat", "rule", rule, RULES),
            tensor_scale=tensor_scale
            if tensor_scale == "row"
            else checked_bool("BlockFormat", "tensor_scale", tensor_scale),
            scale_target=_checked_scale_target(scale_target, scale),
            target=target
            if isinstance(target, str) and target in CANDIDATES
            else _checked_target("target", target, "the element", _scaled.largest(element)),
            steps=checked_choice("BlockFormat", "steps", steps, STEPS),
        )
        if isinstance(element, TableFormat):
            _scaled.check_table(self, element)
        problem = self._problem(rules) or _scaled.steps_problem(self)
        if problem:
            raise ValueError(f"BlockFormat: {problem}")

    def _problem(self, rules: tuple[str, ...]) -> str | None:
        """Why the fields do not go together."""
        size, scale, element = self.block_size, _scaled.scale_name(self.scale), self.element
        if self.rule not in rules:
            return f"the rules of scale={scale} are {', '.join(rules)}; got rule={self.rule!r}"
        if self.target is not None and self.rule in ("floor", "ceil", "even"):
            return (
                f"rule={self.rule!r} takes the element's largest exponent and no target; use "
                f"rule='up', or leave target={self.target} away"
            )
        if isinstance(size, tuple) and self.axis not in (-1, "k"):
            return (
                "tiles lie in the last two dimensions, so their axis is -1 or 'k', got "
                f"{self.axis!r}; leave it away"
            )
        if size == "tensor" and self.axis != -1:
            return (
                f"one scale for a tensor runs along no axis, got axis={self.axis!r}; leave it away"
            )
        if self.tensor_scale and (isinstance(size, str) or isinstance(self.scale, str)):
            return (
                "tensor_scale stands behind blocks or tiles whose scale is a narrow FloatFormat, "
                f"got block_size={size!r}, scale={scale}; use scale='e4m3fn', or leave "
                "tensor_scale away"
            )
        if self.tensor_scale == "row" and isinstance(size, tuple):
            return f"tiles have no rows of their own, got tensor_scale='row' with {size}; use True"
        if self.scale_target is not None and not self.tensor_scale:
            return (
                f"scale_target={self.scale_target} is for t, and there is none; use "
                "tensor_scale=True, or leave scale_target away"
            )
        if self.has_candidates and not (
            element == FP4_E2M1 and self.tensor_scale and self.rule == "nearest"
        ):
            return (
                f"target={self.target!r} chooses between 4 and 6, for element='e2m1', a narrow "
                "FloatFormat as the scale, tensor_scale and rule='nearest'; use the format "
                "'nvfp4_46', or a number as the target"
            )
        if isinstance(element, TableFormat) or self.scale != "e8m0":
            return None
        if isinstance(element, FixedFormat):
            step = -element.frac_bits
        else:
            step = element.emin - element.man_bits
        if step >= _LEAST_ELEMENT_STEP:
            return None
        return (
            f"element {element.name} has a smallest step of 2^{step}; scaled by 2^-127 it leaves "
            f"float32, so emin - man_bits must be at least {_LEAST_ELEMENT_STEP}; use fewer "
            "exp_bits or man_bits"
        )

    @property
    def largest(self) -> float:
        """The value that a block's largest maps to: target, or the element's largest magnitude."""
        target = self.target
        return (
            _scaled.largest(self.element) if target is None or isinstance(target, str) else target
        )

    @property
    def largest_scale(self) -> float:
        """The scale of the block that holds the largest of a tensor with a tensor scale."""
        assert isinstance(self.scale, FloatFormat)
        return self.scale.max if self.scale_target is None else self.scale_target

    @property
    def has_candidates(self) -> bool:
        """Whether every block is encoded twice and the better encoding is stored."""
        return isinstance(self.target, str)

    @property
    def without_zero(self) -> bool:
        """Whether the element has no zero: 0 in a block of other values becomes its least value."""
        return isinstance(self.element, TableFormat) and not self.element.has_zero

    @property
    def zero_scale(self) -> float:
        """s of a block of zeros; of "e8m0" it is 2^-127 instead."""
        return 1.0 if self.scale == "fp32" and not self.without_zero else 0.0

    @property
    def bits(self) -> float:
        """Stored bits per value of a full block, its share of the block's scale included."""
        if isinstance(self.block_size, str):
            return self.element.bits
        values = self.block_size if isinstance(self.block_size, int) else math.prod(self.block_size)
        return self.element.bits + scale_bits(self.to_ints()) / values

    @property
    def name(self) -> str:
        """The name that :func:`lpkernels.parse_format` reads back, without fields at their default.

        ``<block<n> | tile<r>x<c> | row | tensor>[_axis<a> | _k]_<element>[_s<scale>][_<rule>]
        [_t[row][<scale_target>]][_to<target>][_<steps>]``.
        """
        return _scaled.name(self)

    def to_ints(self) -> tuple[int, ...]:
        """Sixteen integers (`integers.InBlock`); the last eight are the element's, and eight
        more where the scale is a FloatFormat, or fp32 for an element without zero."""
        size, lines = self.block_size, 0
        if isinstance(size, tuple):
            lines, size = size
        elif isinstance(size, str):
            lines, size = {"row": ROW, "tensor": TENSOR}[size], 0
        scale = FP32_SCALE if self.scale == "fp32" else E8M0
        scale_ints: tuple[int, ...] = ()
        if isinstance(self.scale, FloatFormat):
            scale = TENSOR_SCALE if self.tensor_scale else FLOAT_SCALE
            scale = LINE_SCALE if self.tensor_scale == "row" else scale
            scale_ints = self.scale.to_ints()
        elif self.without_zero:
            # Kernels make such a scale 0 for a block of zeros.
            scale, scale_ints = FLOAT_SCALE, FP32.to_ints()
        axis = AXIS_K if isinstance(self.axis, str) else self.axis
        target = CANDIDATES[self.target] if isinstance(self.target, str) else _bits(self.target)
        target |= _bits(self.scale_target) << 32
        rule, steps = RULES.index(self.rule), STEPS.index(self.steps)
        head = (BLOCK, size, axis, lines, scale, rule, target, steps)
        return (*head, *self.element.to_ints(), *scale_ints)

    @staticmethod
    def from_ints(ints: tuple[int, ...]) -> "BlockFormat":
        """The format of `to_ints`."""
        _, size, axis, lines, scale, rule, targets, steps = ints[: InBlock.ELEMENT.start]
        shapes: dict[int, Any] = {ROW: "row", TENSOR: "tensor", 0: size}
        scale_format = {E8M0: "e8m0", FP32_SCALE: "fp32"}.get(scale)
        target, scale_target = np.array([targets], "<i8").view("<f4").tolist()
        metrics = {number: name for name, number in CANDIDATES.items()}
        return BlockFormat(
            _scaled.element_from_ints(ints[InBlock.ELEMENT]),
            shapes.get(lines, (lines, size)),
            scale=scale_format or FloatFormat.from_ints(ints[InBlock.SCALE_FORMAT]),
            axis="k" if axis == AXIS_K else axis,
            rule=RULES[rule],
            tensor_scale="row" if scale == LINE_SCALE else scale == TENSOR_SCALE,
            scale_target=scale_target or None,
            target=metrics.get(targets & 0xFFFFFFFF) or target or None,
            steps=STEPS[steps],
        )


def _bits(target: float | None) -> int:
    """The bits of a positive normal float32, without NumPy: torch.compile traces it; 0 of None."""
    if target is None:
        return 0
    mantissa, exponent = math.frexp(target)
    return (exponent + 126 << 23) + int((2 * mantissa - 1) * 2**23)


def _checked_element(element: object) -> FloatFormat | FixedFormat | TableFormat:
    if isinstance(element, str):
        element = _scaled.parse_element(element)
    if not isinstance(element, FloatFormat | FixedFormat | TableFormat):
        raise TypeError(
            "BlockFormat: element must be a FloatFormat, a FixedFormat, a TableFormat or a name, "
            f"got {element!r} ({type(element).__name__}); for example 'e4m3' or 'int8'"
        )
    if isinstance(element, FixedFormat):
        if not element.signed or element.overflow != "saturate" or element.word_bits < 2:
            raise ValueError(
                f"BlockFormat: integer elements are signed, saturate and have 2 bits or more, got "
                f"{element.name}; use FixedFormat({max(2, element.word_bits)}, "
                f"{element.frac_bits})"
            )
    elif isinstance(element, FloatFormat) and not element.signed:
        raise ValueError(
            f"BlockFormat: elements have a sign, got {element.name}; use FloatFormat("
            f"{element.exp_bits}, {element.man_bits}, specials={element.specials!r})"
        )
    return element


def _checked_size(size: object) -> int | tuple[int, int] | str:
    if isinstance(size, str) and size not in ("row", "tensor"):
        raise ValueError(
            "BlockFormat: block_size must be an int, (rows, columns), 'row' or 'tensor', got "
            f"{size!r}"
        )
    if isinstance(size, str):
        return size
    if isinstance(size, tuple | list):
        if len(size) != 2:
            raise ValueError(
                f"BlockFormat: tiles are (rows, columns), got block_size={tuple(size)}"
            )
        if size[0] == 1:
            raise ValueError(
                f"BlockFormat: tiles have 2 rows or more, got block_size={tuple(size)}; blocks of "
                f"one row are block_size={size[1]}"
            )
        rows = checked_int("BlockFormat", "rows of tiles", size[0], 2, 2**31)
        return rows, checked_int("BlockFormat", "columns of tiles", size[1], 1)
    return checked_int("BlockFormat", "block_size", size, 1)


def _checked_axis(owner: str, axis: object) -> int:
    return checked_int(owner, "axis", axis, -_MAX_AXIS - 1, _MAX_AXIS)


def _checked_scale_target(target: object, scale: str | FloatFormat) -> float | None:
    if target is None:
        return None
    largest = scale.max if isinstance(scale, FloatFormat) else math.inf
    rounded = _checked_target("scale_target", target, "the scale", largest)
    if rounded is not None and rounded > largest:
        raise ValueError(
            f"BlockFormat: scale_target is at most the largest scale, {largest}, got {target!r}; "
            "leave it away for that"
        )
    return rounded


def _checked_target(name: str, target: object, owner: str, largest: float) -> float | None:
    if target is None:
        return None
    if isinstance(target, bool) or not isinstance(target, int | float | np.number):
        words = "".join(f", {word!r}" for word in CANDIDATES) if name == "target" else ""
        raise TypeError(
            f"BlockFormat: {name} must be a number{words}, got {target!r} ({type(target).__name__})"
        )
    with np.errstate(over="ignore"):
        rounded = float(np.float32(target))
    if not 2.0**-126 <= rounded < math.inf:
        raise ValueError(
            f"BlockFormat: {name} must be positive, finite and a normal float32, got {target!r}; "
            f"{owner}'s largest value is {largest}"
        )
    return None if rounded == largest else rounded

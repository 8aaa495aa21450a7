"""AffineFormat and BlockFormat: formats whose scale comes from the tensor itself."""

from dataclasses import dataclass

from lpkernels.formats._float import FloatFormat
from lpkernels.formats._named import OCP_ELEMENTS, parse_float_name
from lpkernels.formats.checks import (
    checked_bool,
    checked_choice,
    checked_int,
    did_you_mean,
    set_fields,
)
from lpkernels.formats.integers import AFFINE, BLOCK

# X >= -127, so an element step of 2^-22 is 2^-149, float32's own.
_LEAST_ELEMENT_STEP = -22
_MAX_AXIS = 63


@dataclass(frozen=True, init=False)
class AffineFormat:
    """Codes ``rint((x - lo) / s)`` over the min/max range of a tensor, or of each slice along axis.

    With ``L = 2^bits - 1`` and lo, hi over the finite values: ``s = max((hi - lo) / L, 1e-8)``,
    ``u = clamp((x - lo) / s, 0, L)``, the code is u rounded in the rounding mode and the value
    ``code * s + lo``, where code L is exactly hi unless s is at its floor. No zero is forced.
    The floor flattens tensors narrower than 1e-8. Symmetric: ``s = max(max|x| / (2^(bits-1) - 1),
    1e-8)``, codes ``-(2^(bits-1) - 1) .. 2^(bits-1) - 1``, zero exact. NaN stays NaN, an infinity
    takes the end code, everything is NaN if nothing is finite, a zero result is +0. Float64
    arithmetic, rounded once to float32; results are always float32.

    Args:
        bits:      1..16, symmetric 2..16.
        symmetric: range [-max|x|, max|x|] instead of [min, max].
        axis:      slice i is ``x.select(axis, i)``, each with its own range; None: one range.

    Raises:
        TypeError: an argument has the wrong type.  ValueError: bits out of range.
    """

    bits: int
    symmetric: bool
    axis: int | None

    def __init__(self, bits: int, *, symmetric: bool = False, axis: int | None = None) -> None:
        symmetric = checked_bool("AffineFormat", "symmetric", symmetric)
        least = 2 if symmetric else 1
        bits = checked_int(
            "AffineFormat with symmetric=True" if symmetric else "AffineFormat",
            "bits",
            bits,
            least,
            16,
        )
        if axis is not None:
            axis = checked_int("AffineFormat", "axis", axis, -_MAX_AXIS - 1, _MAX_AXIS)
        set_fields(self, bits=bits, symmetric=symmetric, axis=axis)

    @property
    def name(self) -> str:
        """``affine<bits>``, "_sym" where symmetric, "_axis<axis>" where sliced."""
        symmetric = "_sym" if self.symmetric else ""
        axis = "" if self.axis is None else f"_axis{self.axis}"
        return f"affine{self.bits}{symmetric}{axis}"

    def __str__(self) -> str:
        return self.name

    def fits_in(self, exp_bits: int, man_bits: int) -> bool:
        """Whether results may keep a narrower dtype: affine values always travel as float32."""
        return (exp_bits, man_bits) == (8, 23)

    def to_ints(self) -> tuple[int, ...]:
        """Eight integers: AFFINE, bits, symmetric, has_axis, axis, 0, 0, 0."""
        has_axis = self.axis is not None
        return (AFFINE, self.bits, int(self.symmetric), int(has_axis), self.axis or 0, 0, 0, 0)


@dataclass(frozen=True, init=False)
class BlockFormat:
    """Blocks of values that share one power-of-two scale (OCP Microscaling Formats v1.0).

    The scale of a block is ``2^X``, ``X = clamp(floor(log2 max|x|) - emax, -127, 127)`` with the
    element's emax (section 6.3); each ``x / 2^X`` is rounded once to the element format, saturating
    whatever the element's own overflow says. A zero block has X = -127 and keeps its signed zeros;
    a block holding NaN or infinity is all NaN. The last block along axis may be short. An element
    with one exponent bit, ``FloatFormat(1, m, specials="none")``, is block floating point with
    sign-magnitude integers of m + 1 bits. Results are always float32.

    Args:
        element:    a FloatFormat, or its name; "e5m2", "e4m3", "e3m2", "e2m3" and "e2m1" mean the
                    OCP types here ("e4m3ieee" is the IEEE one).
        block_size: at least 1.
        scale:      "e8m0", the only one.
        axis:       the dimension blocks run along.

    Raises:
        TypeError: an argument has the wrong type.  ValueError: another scale, a block_size below 1,
        or an element with ``emin - man_bits < -22``, whose values float32 could not carry.
    """

    element: FloatFormat
    block_size: int
    scale: str
    axis: int

    def __init__(
        self,
        element: FloatFormat | str,
        block_size: int = 32,
        *,
        scale: str = "e8m0",
        axis: int = -1,
    ) -> None:
        if isinstance(element, str):
            element = _parse_element(element)
        if not isinstance(element, FloatFormat):
            raise TypeError(
                f"BlockFormat: element must be a FloatFormat or its name, got {element!r} "
                f"({type(element).__name__}); for integer elements use "
                "FloatFormat(1, man_bits, specials='none')"
            )
        block_size = checked_int("BlockFormat", "block_size", block_size, 1)
        scale = checked_choice("BlockFormat", "scale", scale, ("e8m0",))
        axis = checked_int("BlockFormat", "axis", axis, -_MAX_AXIS - 1, _MAX_AXIS)
        step = element.emin - element.man_bits
        if step < _LEAST_ELEMENT_STEP:
            raise ValueError(
                f"BlockFormat: element {element.name} has a smallest step of 2^{step}; scaled by "
                f"2^-127 it leaves float32, so emin - man_bits must be at least "
                f"{_LEAST_ELEMENT_STEP}; use fewer exp_bits or man_bits"
            )
        set_fields(self, element=element, block_size=block_size, scale=scale, axis=axis)

    @property
    def bits(self) -> float:
        """Stored bits per value of a full block, its share of the scale byte included."""
        return self.element.bits + 8 / self.block_size

    @property
    def name(self) -> str:
        """``block<size>_<element>``, with "_axis<axis>" after the size where axis is not -1."""
        axis = "" if self.axis == -1 else f"_axis{self.axis}"
        return f"block{self.block_size}{axis}_{_element_name(self.element)}"

    def __str__(self) -> str:
        return self.name

    def fits_in(self, exp_bits: int, man_bits: int) -> bool:
        """Whether results may keep a narrower dtype: block values always travel as float32."""
        return (exp_bits, man_bits) == (8, 23)

    def to_ints(self) -> tuple[int, ...]:
        """Sixteen integers: BLOCK, block_size, axis, 0, 0, 0, 0, 0 and the element's eight."""
        return (BLOCK, self.block_size, self.axis, 0, 0, 0, 0, 0, *self.element.to_ints())


def _parse_element(name: str) -> FloatFormat:
    fmt = OCP_ELEMENTS.get(name) or parse_float_name(name)
    if fmt is None:
        raise ValueError(
            f"BlockFormat: unknown element {name!r}{did_you_mean(name, list(OCP_ELEMENTS))} "
            f"Use one of {', '.join(OCP_ELEMENTS)} or the name of a float format"
        )
    return fmt


def _element_name(element: FloatFormat) -> str:
    for short, fmt in OCP_ELEMENTS.items():
        if element == fmt:
            return short
    # The bare name of an IEEE format would read back as the OCP type.
    return f"{element.name}ieee" if element.name in OCP_ELEMENTS else element.name

"""The findings of the probes of a matrix unit, and the Accumulator that adds like the unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lpkernels import Accumulator, FloatFormat
from lpkernels.formats import FP16, parse_format

#: The mantissa bits of float32.
FP32_BITS = 23


@dataclass(frozen=True)
class Inputs:
    """The input formats of a unit, and whether its results are fp16 or float32."""

    left: FloatFormat
    right: FloatFormat
    half: bool = False

    @staticmethod
    def of(left: str, right: str = "", *, half: bool = False) -> Inputs:
        fmt = parse_format(left)
        other = parse_format(right) if right else fmt
        assert isinstance(fmt, FloatFormat) and isinstance(other, FloatFormat)
        return Inputs(fmt, other, half)

    @property
    def result(self) -> FloatFormat:
        return FP16 if self.half else FloatFormat(8, FP32_BITS)

    @property
    def least(self) -> tuple[int, int]:
        """The exponents of the smallest factors."""
        return self.left.emin - self.left.man_bits, self.right.emin - self.right.man_bits


@dataclass(frozen=True)
class Found:
    """What the probes say of a unit.

    aligned_bits: places below the largest exponent of a block that alignment keeps.
    cut: how it drops the other places; "unknown" is none of an Accumulator's modes.
    by_operands: whether exponents are those of the operands together, not of their product.
    bounds: the least exponents of the left and the right operand's format, None where unseen.
    least_exponent: the least exponent of a block; None: none is seen.
    block: how many products are aligned together; 0: they are neither a run of neighbours nor pairs
        in turns.
    interleaved: how many blocks take turns in pairs of positions.
    man_bits, rounding: the mantissa bits of a written sum, 23 also where nothing can show more; and
        how it rounds to them, "unseen" where nothing is ever rounded.
    sum_is_aligned: whether the running sum takes part in the alignment of the next block.
    chunk: the products after which a sum is added to an outer one; 0: it never is.
    outer_bits, outer_rounding: the same of the outer sum; 23 and "unseen" where there is none.
    """

    aligned_bits: int
    cut: str
    by_operands: bool
    bounds: tuple[int | None, int | None]
    least_exponent: int | None
    block: int
    interleaved: int
    man_bits: int
    rounding: str
    sum_is_aligned: bool
    chunk: int
    outer_bits: int
    outer_rounding: str

    @property
    def fits(self) -> bool:
        """Whether an Accumulator sums like this."""
        known = {self.rounding, self.outer_rounding}.isdisjoint({"unknown"})
        return self.block > 0 and self.cut == "toward_zero" and self.sum_is_aligned and known

    def accumulator(self, inputs: Inputs) -> Accumulator:
        """The Accumulator that adds like the unit.

        Raises: ValueError: there is none.
        """
        if not self.fits:
            raise ValueError(f"no Accumulator sums like {self}")
        rounding = "toward_zero" if self.rounding == "unseen" else self.rounding
        more: dict[str, Any] = {}
        if self.chunk:
            outer_rounding = rounding if self.outer_rounding == "unseen" else self.outer_rounding
            more |= {"chunk": self.chunk, "outer_rounding": outer_rounding}
            more["outer"] = FP16 if inputs.half else FloatFormat(8, self.outer_bits)
        if self.by_operands:
            formats = zip((inputs.left, inputs.right), self.bounds, strict=True)
            more["operands"] = tuple(_bounded(fmt, bound) for fmt, bound in formats)
            more["least_exponent"] = self.least_exponent
            more["interleaved"] = self.interleaved
        return Accumulator(
            FP16 if inputs.half else FloatFormat(8, self.man_bits), rounding, block=self.block,
            aligned_bits=self.aligned_bits, **more,
        )  # fmt: skip


def _bounded(fmt: FloatFormat, bound: int | None) -> FloatFormat:
    """fmt, or an IEEE format with the seen bound or a lower one, if that bound is not fmt's own."""
    if bound is None or bound == fmt.emin:
        return fmt
    exponents = (FloatFormat(bits, fmt.man_bits) for bits in range(2, 9))
    return next((each for each in exponents if each.emin <= bound), FloatFormat(8, fmt.man_bits))

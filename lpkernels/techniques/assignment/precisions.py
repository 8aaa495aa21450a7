"""Which formats "high" and "low" are, for each kind of tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import Format
from lpkernels.formats.checks import set_fields
from lpkernels.techniques.assignment.grouping import Kind, TensorSpec

Rounding = Quantizer | Format | str


class Pair(NamedTuple):
    """How a tensor is rounded in high and in low precision."""

    high: Quantizer
    low: Quantizer


@dataclass(frozen=True, init=False)
class Formats:
    """High and low precision of each kind of tensor.

    Without arguments these are the paper's formats: 16 bits (6 of exponent, 9 of mantissa) or 8
    (weights and activations have 4 and 3, gradients of activations 5 and 2), rounded to nearest,
    ties away from zero. Weights and activations saturate; gradients overflow to infinity, which a
    loss scaler sees. Gradients of weights keep 16 bits in low precision too.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), formats as in their released code; those of
        8 bits are of Sun et al. 2019 (HFP8).

    Args:
        weight, activation, grad_activation, grad_weight: (high, low), each a Quantizer, a format
            or text such as "fp8_e5m2:stochastic"; one alone is both. Rounding is to nearest even
            where none is said.
    Raises:
        TypeError, ValueError: no format, one whose bits depend on the shape (BlockFormat), or a
            low one of more bits than the high one.
    """

    weight: Pair
    activation: Pair
    grad_activation: Pair
    grad_weight: Pair

    def __init__(
        self,
        *,
        weight: Rounding | Iterable[Rounding] = (
            "fp_6_9_0:nearest_away",
            "fp_4_3_4:nearest_away",
        ),
        activation: Rounding | Iterable[Rounding] = (
            "fp_6_9_0:nearest_away",
            "fp_4_3_4:nearest_away",
        ),
        grad_activation: Rounding | Iterable[Rounding] = (
            "fp_6_9_0_backward:nearest_away",
            "fp_5_2_0_backward:nearest_away",
        ),
        grad_weight: Rounding | Iterable[Rounding] = "fp_6_9_0_backward:nearest_away",
    ) -> None:
        set_fields(
            self,
            weight=_pair("weight", weight),
            activation=_pair("activation", activation),
            grad_activation=_pair("grad_activation", grad_activation),
            grad_weight=_pair("grad_weight", grad_weight),
        )

    @classmethod
    def same(cls, high: Rounding, low: Rounding | None = None) -> Formats:
        """The same two formats for all kinds; without `low`, high precision alone, as
        Formats.same("fp32")."""
        pair = (high, high if low is None else low)
        return cls(weight=pair, activation=pair, grad_activation=pair, grad_weight=pair)

    def of(self, kind: Kind, low: bool) -> Quantizer:
        """How a tensor of that kind is rounded."""
        pair: Pair = getattr(self, kind)
        return pair.low if low else pair.high

    def bits(self, tensor: TensorSpec, low: bool) -> int:
        """Bits of the whole tensor."""
        return tensor.numel * _bits(self.of(tensor.kind, low))


def _bits(quantizer: Quantizer) -> int:
    return int(quantizer.fmt.bits)


def _pair(kind: str, given: Rounding | Iterable[Rounding]) -> Pair:
    both = [given, given] if isinstance(given, Rounding) else list(given)
    if len(both) != 2:
        raise ValueError(f"Formats: {kind} must be (high, low), got {len(both)} of them")
    try:
        pair = Pair(*(as_quantizer(each) for each in both))
    except (TypeError, ValueError) as error:
        raise type(error)(f"Formats: {kind}: {error}") from error
    for quantizer in pair:
        if not isinstance(quantizer.fmt.bits, int):
            raise ValueError(
                f"Formats: {kind}: the bits of {quantizer} depend on the tensor's shape; take a "
                "format whose codes have one width"
            )
    if _bits(pair.low) > _bits(pair.high):
        raise ValueError(
            f"Formats: {kind}: low precision {pair.low} has {_bits(pair.low)} bits, more than the "
            f"{_bits(pair.high)} of {pair.high}; give (high, low)"
        )
    return pair


#: The paper's formats.
PAPER = Formats()

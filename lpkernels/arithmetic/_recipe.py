"""Recipe: the arithmetic of a layer, forward and backward."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from lpkernels.arithmetic._accumulator import Accumulator
from lpkernels.arithmetic._named_accumulators import NATIVE, as_accumulator
from lpkernels.arithmetic._quantizer import Quantizer, as_quantizer
from lpkernels.arithmetic._ranks import Axis, axes
from lpkernels.arithmetic._running_range import RunningRange, as_running_range
from lpkernels.formats import AffineFormat, Format
from lpkernels.formats.checks import set_fields

QUANTIZERS = ("input", "weight", "bias", "output", "grad_output", "grad_input", "grad_weight")
PRODUCTS = ("fprop", "dgrad", "wgrad")


@dataclass(frozen=True, init=False)
class Recipe:
    """Which tensors of a layer are quantised, and how its three products are summed.

    Every field takes an object or its name; a quantizer of None leaves the tensor as it is.

    Args:
        input, weight, bias, output:        quantizers of the forward pass.
        grad_output, grad_input, grad_weight: quantizers of the backward pass. grad_output is
            quantised once and feeds both products; grad_weight does not touch the bias gradient.
        fprop, dgrad, wgrad:                accumulators of the output, the input's gradient and the
            weight's gradient.
        input_range:                        for an affine `input` quantizer without an axis, how
            layers of one input (linear, convolutions) find its range in evaluation; None: from the
            tensor itself, as functions and all other layers always do.

    Raises:  TypeError, ValueError: a field is no quantizer or accumulator, or an unknown name; an
        input_range whose `input` is not affine or has an axis.
    """

    input: Quantizer | None
    weight: Quantizer | None
    bias: Quantizer | None
    output: Quantizer | None
    grad_output: Quantizer | None
    grad_input: Quantizer | None
    grad_weight: Quantizer | None
    fprop: Accumulator
    dgrad: Accumulator
    wgrad: Accumulator
    input_range: RunningRange | None
    if TYPE_CHECKING:
        # The quantizers whose formats have an axis, for `check_axes`.
        axes: tuple[Axis, ...]

    def __init__(
        self,
        input: Quantizer | Format | str | None = None,
        weight: Quantizer | Format | str | None = None,
        bias: Quantizer | Format | str | None = None,
        output: Quantizer | Format | str | None = None,
        grad_output: Quantizer | Format | str | None = None,
        grad_input: Quantizer | Format | str | None = None,
        grad_weight: Quantizer | Format | str | None = None,
        fprop: Accumulator | Format | str = NATIVE,
        dgrad: Accumulator | Format | str = NATIVE,
        wgrad: Accumulator | Format | str = NATIVE,
        input_range: RunningRange | str | None = None,
    ) -> None:
        set_fields(
            self,
            input=_quantizer("input", input),
            weight=_quantizer("weight", weight),
            bias=_quantizer("bias", bias),
            output=_quantizer("output", output),
            grad_output=_quantizer("grad_output", grad_output),
            grad_input=_quantizer("grad_input", grad_input),
            grad_weight=_quantizer("grad_weight", grad_weight),
            fprop=_accumulator("fprop", fprop),
            dgrad=_accumulator("dgrad", dgrad),
            wgrad=_accumulator("wgrad", wgrad),
            input_range=_running_range(input_range),
        )
        object.__setattr__(self, "axes", axes([(n, getattr(self, n)) for n in QUANTIZERS]))
        if self.input_range is not None:
            _check_range(self.input)

    @property
    def is_torch(self) -> bool:
        """Whether it is torch's own arithmetic: no quantizer, and three native products."""
        quantized = any(getattr(self, name) is not None for name in QUANTIZERS)
        return not quantized and all(getattr(self, name).is_native for name in PRODUCTS)

    @property
    def is_stochastic(self) -> bool:
        """Whether any part of it draws random bits."""
        parts = (getattr(self, name) for name in QUANTIZERS + PRODUCTS)
        return any(part is not None and part.is_stochastic for part in parts)

    def __str__(self) -> str:
        shown = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value != NATIVE:
                shown.append(f"{field.name}='{value}'")
        return f"Recipe({', '.join(shown)})"


def _quantizer(name: str, value: Quantizer | Format | str | None) -> Quantizer | None:
    if value is None:
        return None
    try:
        return as_quantizer(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"Recipe: {name}: {error}") from error


def _accumulator(name: str, value: Accumulator | Format | str) -> Accumulator:
    try:
        if value is None:
            raise TypeError("expected an Accumulator or its name, got None; use 'native'")
        return as_accumulator(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"Recipe: {name}: {error}") from error


def _running_range(value: RunningRange | str | None) -> RunningRange | None:
    if value is None:
        return None
    try:
        return as_running_range(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"Recipe: input_range: {error}") from error


def _check_range(its: Quantizer | None) -> None:
    fmt = None if its is None else its.fmt
    if not isinstance(fmt, AffineFormat) or fmt.axis is not None:
        raise ValueError(
            f"Recipe: input_range is for an affine input quantizer of one range, got input={fmt}; "
            "use input='affine8', or leave input_range away"
        )


#: What torch itself computes: nothing quantised, native products.
TORCH = Recipe()

"""Recipe: the arithmetic of a layer, forward and backward."""

import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from lpkernels.arithmetic._accumulator import Accumulator
from lpkernels.arithmetic._named_accumulators import NATIVE, as_accumulator
from lpkernels.arithmetic._quantizer import Quantizer, any_quantizer, as_quantizer
from lpkernels.arithmetic._ranks import TENSORS, Axis, axes
from lpkernels.arithmetic._scaling import (
    DelayedScaling,
    RunningRange,
    check_scaling,
)
from lpkernels.arithmetic.by_product import Readings, has_axis, readings
from lpkernels.arithmetic.text import (
    PlainValues,
    call_text,
    check_field,
    checked_text,
    field_names,
    parse_call,
)
from lpkernels.formats import FP32, AffineFormat, BlockFormat, FormatLike
from lpkernels.formats.checks import checked_choice, set_fields

QUANTIZERS = tuple(TENSORS)
PRODUCTS = ("fprop", "dgrad", "wgrad")


class FixedAxisWarning(UserWarning):
    """A Recipe whose gradients reuse blocks along a dimension that their products do not sum."""


class Applied(NamedTuple):
    """The quantizers that products apply themselves, as integers. () stands for rounding in a pass
    of its own, needed where not every product of the tensor can apply the quantizer."""

    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    grad_output: tuple[int, ...]
    grad_input: tuple[int, ...]
    grad_weight: tuple[int, ...]


_FORM = (
    "Recipe(input='e5m2', weight='e5m2', fprop='e6m9_chunk64'), say; lp.recipe(name) is the recipe "
    "of a name"
)
P = ParamSpec("P")
T = TypeVar("T")


def _names_fields(
    make: Callable[Concatenate["Recipe", P], None],
) -> Callable[Concatenate["Recipe", P], None]:
    """The constructor with a better error: an unknown keyword is answered with the field's name."""
    parameters = list(inspect.signature(make).parameters)[1:]

    @functools.wraps(make)
    def checked(self: "Recipe", *args: P.args, **kwargs: P.kwargs) -> None:
        for name in kwargs:
            check_field("Recipe", name, parameters, TypeError)
        make(self, *args, **kwargs)

    return checked


@dataclass(frozen=True, init=False)
class Recipe(PlainValues):
    """The quantizers of a layer's tensors, and the accumulators of its three products.

    Every field takes an object or its name; a quantizer of None leaves the tensor as it is.

    Text form: ``Recipe(<field>='<text>', ...)`` without the fields that have their defaults.

    Args:
        input, weight, bias, output:        quantizers of the forward pass.
        grad_output, grad_input, grad_weight: quantizers of the backward pass. grad_output is
            quantised once and feeds both products; grad_weight does not touch the bias gradient.
        fprop, dgrad, wgrad:                accumulators of the output, the input's gradient and the
            weight's gradient.
        input_range:                        for an affine `input` quantizer without an axis, how
            layers of one input (linear, convolutions) find its range in evaluation; None: from the
            tensor itself, as functions and all other layers always do. Under input="fp32" they
            keep the average for an affine quantizer that comes later.
        dgrad_weight, wgrad_input, wgrad_grad_output: quantizers of one operand of one product, in
            place of weight, input and grad_output; "fp32" leaves the operand as it is.
        requantize:                         what the codes of one product alone are made from:
            "source", the tensor as the layer got it (None is the same), or "codes", the values of
            the codes that fprop read. The output gradient is always quantised from its source.
        scaling:                            a DelayedScaling, by which the scales of input, weight
            and grad_output follow from earlier steps, in layers of lpkernels.nn; None: every scale
            follows from its own tensor.

    Attributes:
        is_torch:       whether it is torch's own arithmetic: no quantizer, three native products.
        emulated:       the products that are not torch's own: their sums or a tensor is rounded.
        is_stochastic:  whether any part of it draws random bits.

    An operand is quantised once, and its codes serve every product that reads it (docs/contract.md,
    "Gradients"). A format with axis="k", a Hadamard transform and a field of one product are the
    exceptions: they are applied for each product along the dimension that it sums, x (..., I) and w
    (O, I) along I in fprop, g (..., O) and w along O in dgrad, g and x along the rows, the leading
    dimensions in row-major order, in wgrad. Both operands of a product need the same transform.
    Codes made for one product have draws of their own.

    A BlockFormat of input, weight or grad_output with blocks along a fixed axis has codes that
    dgrad and wgrad reuse, though they sum over other dimensions: nobody builds that.
    `FixedAxisWarning` says so; axis="k", one scale a tensor and square tiles suit every product.

    Raises:  TypeError, ValueError: a field is no quantizer or accumulator, or an unknown name; an
        input_range whose `input` is neither affine without an axis nor fp32; axis="k" or a
        transform of a tensor that is no operand; a transform of one operand of a product alone; an
        accumulator with chunk="scale" for operands without scales, or with groups for operands that
        its unit does not take; fp32 scales of blocks under an accumulator that is neither by scale
        nor native; fp32 scales of rows that gradients reuse; a format without zero;
        requantize="codes" of transformed codes; scaling with a format that has not one fp32 scale
        a tensor.

    >>> recipe = lp.Recipe(input="e4m3fn", grad_output="e5m2", fprop="e6m9_chunk64")
    >>> print(recipe)
    Recipe(input='e4m3fn', grad_output='e5m2', fprop='e6m9_chunk64')
    >>> lp.Recipe.parse(str(recipe)) == recipe
    True
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
    dgrad_weight: Quantizer | None
    wgrad_input: Quantizer | None
    wgrad_grad_output: Quantizer | None
    if TYPE_CHECKING:
        # The quantizers whose formats have an axis, for `check_axes`.
        axes: tuple[Axis, ...]
        is_torch: bool
        emulated: tuple[str, ...]
        is_stochastic: bool
        # The integers of the accumulators of the three products and of the bias' gradient.
        sums: dict[str, tuple[int, ...]]
        fused: "Applied"
        readings: Readings
    # Recipes of compiled layers lack these two.
    requantize: str = "source"
    scaling: Any = None

    @_names_fields
    def __init__(
        self,
        input: Quantizer | FormatLike | None = None,
        weight: Quantizer | FormatLike | None = None,
        bias: Quantizer | FormatLike | None = None,
        output: Quantizer | FormatLike | None = None,
        grad_output: Quantizer | FormatLike | None = None,
        grad_input: Quantizer | FormatLike | None = None,
        grad_weight: Quantizer | FormatLike | None = None,
        fprop: Accumulator | FormatLike = NATIVE,
        dgrad: Accumulator | FormatLike = NATIVE,
        wgrad: Accumulator | FormatLike = NATIVE,
        input_range: RunningRange | str | None = None,
        dgrad_weight: Quantizer | FormatLike | None = None,
        wgrad_input: Quantizer | FormatLike | None = None,
        wgrad_grad_output: Quantizer | FormatLike | None = None,
        requantize: str | None = None,
        scaling: DelayedScaling | str | None = None,
    ) -> None:
        arguments = locals()
        set_fields(
            self,
            **{name: _quantizer(name, arguments[name]) for name in QUANTIZERS},
            **{name: _accumulator(name, arguments[name]) for name in PRODUCTS},
            input_range=_optional("input_range", RunningRange.of, input_range),
            requantize=checked_choice(
                "Recipe", "requantize", requantize or "source", ("source", "codes")
            ),
            scaling=_optional("scaling", DelayedScaling.of, scaling),
        )
        if self.input_range is not None:
            _check_range(self.input)
        if self.scaling is not None:
            check_scaling({name: getattr(self, name) for name in QUANTIZERS})
        self._learn()
        _check_reused(self)

    def _learn(self, quantizer_axes: tuple[Axis, ...] | None = None) -> None:
        """Computes once what every call of a layer asks; quantizer_axes: None to find them."""
        fields = {name: getattr(self, name) for name in QUANTIZERS}
        quantizers = {name: field for name, field in fields.items() if field is not None}
        sums = {name: getattr(self, name) for name in PRODUCTS}
        rounded = {product for name in quantizers for product in TENSORS[name].products}
        emulated = [name for name, acc in sums.items() if name in rounded or not acc.is_native]
        parts = (*quantizers.values(), *sums.values())
        set_fields(
            self,
            axes=axes(quantizers.items()) if quantizer_axes is None else quantizer_axes,
            is_torch=not quantizers and all(acc.is_native for acc in sums.values()),
            emulated=tuple(emulated),
            sums={name: acc.to_ints() for name, acc in sums.items()},
            is_stochastic=any(part.is_stochastic for part in parts),
            fused=Applied(*map(self._applied, Applied._fields)),
        )
        set_fields(self, readings=self._readings())
        self.sums["bias"] = self._bias_sum().to_ints()

    def _readings(self) -> Readings:
        return readings(self)

    def _bias_sum(self) -> Accumulator:
        """The accumulator of the bias' gradient, whose left factor is 1."""
        acc = self.wgrad.exchanged()
        # A sum without scales is none of the unit's: it has its format and rounding.
        grouped = self.readings.by_product and acc.group is not None
        return Accumulator(acc.fmt, acc.rounding) if grouped else acc

    def _applied(self, name: str) -> tuple[int, ...]:
        quantizer = getattr(self, name)
        if quantizer is None or not quantizer.fuses:
            return ()
        native = any(getattr(self, acc).order == "native" for acc in TENSORS[name].products)
        return () if native else quantizer.to_ints()

    @staticmethod
    def parse(text: str) -> "Recipe":
        """The Recipe of a text form: ``Recipe.parse(str(recipe)) == recipe``.

        Raises:  TypeError: not a str.  ValueError: text of another form, or an unknown name.
        """
        text = checked_text("Recipe.parse", text, "Recipe(<field>='<text>', ...)")
        values: dict[str, Any] = dict(parse_call("Recipe", text, field_names(Recipe), _FORM))
        return Recipe(**values)

    def __str__(self) -> str:
        values = {name: getattr(self, name) for name in field_names(Recipe)}
        return call_text("Recipe", {k: v for k, v in values.items() if v not in _DEFAULTS})

    # That of a dataclass would write out every field of every format.
    __repr__ = __str__


# Field values that a text leaves out.
_DEFAULTS = (None, NATIVE, "source")


def _quantizer(name: str, value: Quantizer | FormatLike | None) -> Quantizer | None:
    quantizer = _optional(name, any_quantizer if TENSORS[name].along else as_quantizer, value)
    if quantizer is None:
        return None
    fmt = quantizer.fmt
    if isinstance(fmt, BlockFormat) and fmt.without_zero:
        raise ValueError(
            f"Recipe: {name}: {fmt} has no zero and no negative values, and is for optimizers' "
            "states; use another format, such as 'block128_nf4_sfp32'"
        )
    if TENSORS[name].along is None and isinstance(fmt, BlockFormat) and fmt.axis == "k":
        raise ValueError(
            f"Recipe: {name}: {fmt} has axis='k', the summed dimension of the product "
            f"that reads an operand, which {name} is not; give the dimension, such as axis=-1"
        )
    return quantizer


def _check_reused(recipe: Recipe) -> None:
    """Warns of blocks along a fixed axis that gradients reuse."""
    fixed: dict[str, BlockFormat] = {}
    for field, tensor in TENSORS.items():
        quantizer = tensor.general and getattr(recipe, tensor.general)
        fmt = quantizer.fmt if quantizer and getattr(recipe, field) is None else None
        if isinstance(fmt, BlockFormat) and fmt.axis != "k" and has_axis(fmt):
            fixed[str(tensor.general)] = fmt
    for name, fmt in fixed.items():
        by_line = fmt.tensor_scale == "row"
        if by_line or (fmt.block_size == "row" and fmt.scale == "fp32"):
            other = "tensor_scale=True" if by_line else "scale='e8m0'"
            raise ValueError(
                f"Recipe: {name}: {fmt} has a scale for each row, and the gradients would reuse "
                "it where their sums run across the rows; use rows along each product's sum "
                f"({str(replace(fmt, axis='k'))!r}), one scale a tensor ('tensor_e4m3'), square "
                f"tiles, or {other}"
            )
    if not fixed:
        return
    formats = ", ".join(f"{name}={fmt}" for name, fmt in fixed.items())
    backward = {name: [p for p in TENSORS[name].products if p != "fprop"] for name in fixed}
    reusing = ", ".join(f"{name}'s in {' and '.join(p)}" for name, p in backward.items())
    along_k = ", ".join(f"{name}='{replace(fmt, axis='k')}'" for name, fmt in fixed.items())
    warnings.warn(
        f"Recipe: {formats}: the gradients reuse codes whose blocks run along a fixed axis, not "
        f"along the dimension that their products sum ({reusing}); hardware quantises an operand "
        f"for each product, which is axis='k': {along_k}. One scale a tensor and square tiles suit "
        "every product; warnings.simplefilter('ignore', lpkernels.FixedAxisWarning) silences this",
        FixedAxisWarning,
        stacklevel=4,
    )


def _accumulator(name: str, value: Accumulator | FormatLike) -> Accumulator:
    if value is None:
        raise TypeError(
            f"Recipe: {name}: expected an Accumulator or its name, got None; use 'native'"
        )
    return _parsed(name, as_accumulator, value)


def _optional(name: str, parse: Callable[[Any], T], value: object) -> T | None:
    return None if value is None else _parsed(name, parse, value)


def _parsed(name: str, parse: Callable[[Any], T], value: object) -> T:
    try:
        return parse(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"Recipe: {name}: {error}") from error


def _check_range(quantizer: Quantizer | None) -> None:
    fmt = None if quantizer is None else quantizer.fmt
    if fmt != FP32 and (not isinstance(fmt, AffineFormat) or fmt.axis is not None):
        raise ValueError(
            f"Recipe: input_range is for an affine input quantizer of one range, got input={fmt}; "
            "use input='affine8', or leave input_range away"
        )


#: torch's own arithmetic: nothing quantised, native products.
TORCH = Recipe()

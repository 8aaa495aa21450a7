"""Recipe: the arithmetic of a layer, forward and backward."""

import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec

from lpkernels.arithmetic._accumulator import Accumulator
from lpkernels.arithmetic._named_accumulators import NATIVE, as_accumulator
from lpkernels.arithmetic._quantizer import Quantizer, any_quantizer
from lpkernels.arithmetic._ranks import Axis, axes
from lpkernels.arithmetic._running_range import RunningRange, as_running_range
from lpkernels.arithmetic.text import (
    PlainValues,
    call_text,
    check_field,
    checked_text,
    field_names,
    parse_call,
)
from lpkernels.formats import AffineFormat, BlockFormat, Format, FormatLike
from lpkernels.formats.checks import set_fields

QUANTIZERS = ("input", "weight", "bias", "output", "grad_output", "grad_input", "grad_weight")
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


#: The products that read or make these tensors, in the order of `Applied`.
_TAKEN_BY = {
    "input": ("fprop", "wgrad"),
    "weight": ("fprop", "dgrad"),
    "output": ("fprop",),
    "grad_output": ("dgrad", "wgrad"),
    "grad_input": ("dgrad",),
    "grad_weight": ("wgrad",),
}

_REUSED_BY = {"input": "wgrad", "weight": "dgrad", "grad_output": "dgrad and wgrad"}

_FORM = (
    "Recipe(input='e5m2', weight='e5m2', fprop='e6m9_chunk64'), say; lp.recipe(name) is the recipe "
    "of a name"
)
P = ParamSpec("P")


def _names_fields(
    make: Callable[Concatenate["Recipe", P], None],
) -> Callable[Concatenate["Recipe", P], None]:
    """The constructor with a better error: an unknown keyword is answered with the field's name."""
    known = list(inspect.signature(make).parameters)[1:]

    @functools.wraps(make)
    def checked(self: "Recipe", *args: P.args, **kwargs: P.kwargs) -> None:
        for name in kwargs:
            check_field("Recipe", name, known, TypeError)
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
            tensor itself, as functions and all other layers always do.

    Attributes:
        is_torch:       whether it is torch's own arithmetic: no quantizer, three native products.
        is_stochastic:  whether any part of it draws random bits.

    A BlockFormat of input, weight or grad_output with blocks along a fixed axis is quantised once,
    along that axis, and its codes serve every product that reads it, though dgrad sums over the
    output features and wgrad over the rows: nobody builds that. `FixedAxisWarning` says so; one
    scale a tensor and square tiles suit every product.

    Raises:  TypeError, ValueError: a field is no quantizer or accumulator, or an unknown name; an
        input_range whose `input` is not affine or has an axis; a BlockFormat with axis="k", or one
        fp32 scale a row for input, weight or grad_output.
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
        is_torch: bool
        is_stochastic: bool
        fused: "Applied"

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
        self._learn()
        if self.input_range is not None:
            _check_range(self.input)
        reused = {name: getattr(self, name) for name in ("input", "weight", "grad_output")}
        _check_reused({name: its.fmt for name, its in reused.items() if its is not None})

    def _learn(self, its_axes: tuple[Axis, ...] | None = None) -> None:
        """Computes once what every call of a layer asks; its_axes: where they are known."""
        quantizers = {name: getattr(self, name) for name in QUANTIZERS}
        given = [each for each in quantizers.values() if each is not None]
        sums = [getattr(self, name) for name in PRODUCTS]
        set_fields(
            self,
            axes=axes(list(quantizers.items())) if its_axes is None else its_axes,
            is_torch=not given and all(acc.is_native for acc in sums),
            is_stochastic=any(part.is_stochastic for part in (*given, *sums)),
            fused=Applied(*(self._applied(name, by) for name, by in _TAKEN_BY.items())),
        )

    def _applied(self, name: str, products: tuple[str, ...]) -> tuple[int, ...]:
        quantizer = getattr(self, name)
        if quantizer is None or not quantizer.fuses:
            return ()
        native = any(getattr(self, product).order == "native" for product in products)
        return () if native else quantizer.to_ints()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A pickle may lack the computed attributes: they are computed anew."""
        vars(self).update(state)
        self._learn(state.get("axes"))

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
        return call_text("Recipe", {k: v for k, v in values.items() if v not in (None, NATIVE)})


def _quantizer(name: str, value: Quantizer | FormatLike | None) -> Quantizer | None:
    if value is None:
        return None
    try:
        quantizer = any_quantizer(value)
        if quantizer.hadamard is not None:
            raise ValueError(
                "Hadamard transforms are not supported in recipes yet, got "
                f"{str(quantizer)!r}; leave hadamard away"
            )
    except (TypeError, ValueError) as error:
        raise type(error)(f"Recipe: {name}: {error}") from error
    if isinstance(quantizer.fmt, BlockFormat) and quantizer.fmt.axis == "k":
        raise ValueError(
            f"Recipe: {name}: {quantizer.fmt} has axis='k', the summed dimension of each product, "
            "which is not supported in recipes yet; give the dimension, such as axis=-1"
        )
    return quantizer


def _check_reused(formats: dict[str, Format]) -> None:
    """Warns of blocks along a fixed axis; formats: of the operands, by name."""
    fixed = {name: fmt for name, fmt in formats.items() if _has_fixed_axis(fmt)}
    for name, fmt in fixed.items():
        if isinstance(fmt, BlockFormat) and fmt.block_size == "row" and fmt.scale == "fp32":
            raise ValueError(
                f"Recipe: {name}: {fmt} has a scale for each row, and the gradients would reuse "
                "it where their sums run across the rows; use one scale a tensor ('tensor_e4m3'), "
                "square tiles, or scale='e8m0'"
            )
    if not fixed:
        return
    given = ", ".join(f"{name}={fmt}" for name, fmt in fixed.items())
    reusing = ", ".join(f"{name}'s in {_REUSED_BY[name]}" for name in fixed)
    warnings.warn(
        f"Recipe: {given}: the gradients reuse codes whose blocks run along a fixed axis, not "
        f"along the dimension that their products sum ({reusing}); hardware quantises an operand "
        "for each product, which will be axis='k'. One scale a tensor and square tiles suit every "
        "product; warnings.simplefilter('ignore', lpkernels.FixedAxisWarning) silences this",
        FixedAxisWarning,
        stacklevel=4,
    )


def _has_fixed_axis(fmt: Format) -> bool:
    """Whether the codes of a matrix are not those of its transpose."""
    if not isinstance(fmt, BlockFormat) or fmt.block_size == "tensor":
        return False
    return not isinstance(fmt.block_size, tuple) or fmt.block_size[0] != fmt.block_size[1]


def _accumulator(name: str, value: Accumulator | FormatLike) -> Accumulator:
    try:
        if value is None:
            raise TypeError("expected an Accumulator or its name, got None; use 'native'")
        acc = as_accumulator(value)
        if acc.takes_scales:
            raise ValueError(
                f"{acc} takes operands with scales, which is not supported in recipes yet; use it "
                "in lp.matmul of lp.Scaled operands"
            )
        return acc
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


#: torch's own arithmetic: nothing quantised, native products.
TORCH = Recipe()

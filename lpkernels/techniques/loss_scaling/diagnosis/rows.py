"""The kinds of tensors and the formats asked for them; a row of the report, one tensor of one layer
over all calls; and the rows as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpkernels._table import TextTable
from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import FloatFormat, Format, parse_format
from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques.loss_scaling.diagnosis.histograms import (
    Histogram,
    InFormat,
    lost_below,
    smallest_exponent,
)

#: Formats by kind; one format for all kinds; or "recipe", for the formats of each layer's recipe.
AskedFormats = Format | Quantizer | str | Mapping[str, Any]

FORWARD = ("input", "weight", "bias", "output")
BACKWARD = ("grad_output", "wgrad_grad_output", "grad_input", "grad_weight")
# Operands of one product stand behind the tensors that they are.
KINDS = ("input", "wgrad_input", "weight", "dgrad_weight", "bias", "output", *BACKWARD)
#: The kinds that a format can be asked for; biases are counted only where a recipe rounds them.
ASKED = ("input", "weight", "output", "grad_output", "grad_input", "grad_weight")
RECIPE = "recipe"


def float_format(label: str, value: Any) -> FloatFormat:
    """The float format of a format, a Quantizer or the text of either.

    Raises: TypeError, ValueError: there is none, or its range depends on the tensor.
    """
    try:
        fmt = as_quantizer(value).fmt
    except (TypeError, ValueError) as error:
        raise type(error)(f"{label}: {error}") from error
    if not isinstance(fmt, FloatFormat):
        raise ValueError(
            f"{label}: expected a format with an exponent, whose range is the same for all "
            f"tensors, got {fmt}; a FloatFormat such as fp16 or e5m2, or {RECIPE!r}"
        )
    return fmt


def check_formats(asked: AskedFormats) -> None:
    """Raises the errors of `diagnose` for formats that it does not take."""
    formats_by_kind(asked)


def formats_by_kind(asked: AskedFormats) -> dict[str, FloatFormat] | None:
    """The formats by kind, as `diagnose` is asked; tensors without one are not counted. None: the
    recipes' formats.

    Raises: TypeError, ValueError: an unknown kind, or a format without exponents.
    """
    if isinstance(asked, Mapping):
        unknown = [kind for kind in asked if kind not in ASKED]
        if unknown or not asked:
            listed = nearest(unknown[:1], ASKED, "help(diagnose) lists all")
            raise ValueError(
                f"diagnose: fmt: expected formats by {listed}; got "
                f"{', '.join(map(str, unknown)) or 'an empty mapping'}"
            )
        given = {kind: fmt for kind, fmt in asked.items() if fmt is not None}
        return {kind: float_format(f"diagnose: fmt: {kind}", fmt) for kind, fmt in given.items()}
    if asked == RECIPE:
        return None
    return dict.fromkeys(ASKED, float_format("diagnose: fmt", asked))


@dataclass(frozen=True, eq=False)
class TensorRow:
    """The counts of one tensor of one layer, over all its calls.

    layer, kind, tensor: the tensor of the row. layer: the layer's name. kind: "input", "weight" (a
        product of two activations has the left one as input and the right one as weight), "bias",
        "output", or one of these but bias after "grad_". tensor: the name of the argument where
        there are several of a kind, or the number of the product, from the second on.
    format: the one that the recipe, or the caller, gives the tensor.
    calls: how many tensors were counted.
    histogram: of the elements as the quantizer gets them, before they are rounded, or, in a format
        of the caller's, as the layer takes and gives them: gradients times the loss scale, if there
        is one.
    unscaled: the histogram of the gradients without the loss scale; the same where there is none.
    overflow, underflow: how many elements the format rounds, to nearest even, beyond its largest
        value or to zero; 0 where the format has no range of its own.
    rounded: the format in which the layer's recipe rounds this tensor; None: it does not.
    """

    layer: str
    kind: str
    tensor: str
    format: Format
    calls: int
    histogram: Histogram
    unscaled: Histogram
    overflow: int
    underflow: int
    rounded: Format | None = None

    @property
    def is_gradient(self) -> bool:
        return self.kind in BACKWARD

    @property
    def float_format(self) -> FloatFormat | None:
        """The format, if its range is its own. A format that takes its range from the tensor loses
        nothing that a histogram could tell."""
        return self.format if isinstance(self.format, FloatFormat) else None

    @property
    def name(self) -> str:
        return f"{self.kind} {self.tensor}".rstrip()

    @property
    def is_zero(self) -> bool:
        """Whether it has elements, and all of them are zero."""
        return 0 < self.histogram.elements == self.histogram.zeros

    @property
    def scale_exponent(self) -> int:
        """The exponent of the loss scale, as the largest number shows it; 0 without a number."""
        seen, own = self.histogram.exponents, self.unscaled.exponents
        return 0 if seen is None or own is None else seen[1] - own[1]

    @property
    def lost_to_zero(self) -> float:
        """The part of sum |x| below the smallest value of the format in which it is rounded."""
        if not isinstance(self.rounded, FloatFormat) or not self.histogram.numbers:
            return 0.0
        return lost_below(self.histogram, self.rounded)

    @property
    def infinite(self) -> float:
        """The part of the elements, but for zeros, that is infinite or NaN."""
        of = self.histogram
        return of.nonfinite / max(1, of.numbers + of.nonfinite)

    @property
    def zeros(self) -> float:
        """The part of the elements that is zero; 0 without elements."""
        return self.histogram.zeros / max(1, self.histogram.elements)

    @property
    def below_normal(self) -> float | None:
        """The part of the numbers (finite, not zero) below the format's smallest normal value; None
        where its range is not its own."""
        fmt = self.float_format
        return None if fmt is None else self._part(self.histogram.below(fmt.emin))

    @property
    def below_subnormal(self) -> float | None:
        """The part of the numbers below the format's smallest value: these underflow."""
        fmt = self.float_format
        return None if fmt is None else self._part(self.histogram.below(smallest_exponent(fmt)))

    def _part(self, count: int) -> float:
        return count / max(1, self.histogram.numbers)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as records hold them."""
        of = self.histogram
        return {
            "layer": self.layer,
            "kind": self.kind,
            "tensor": self.tensor,
            "format": str(self.format),
            "rounded": None if self.rounded is None else str(self.rounded),
            "calls": self.calls,
            "elements": of.elements,
            "zeros": of.zeros,
            "nonfinite": of.nonfinite,
            "overflow": self.overflow,
            "underflow": self.underflow,
            "below_normal": self.below_normal,
            "below_subnormal": self.below_subnormal,
            "exponents": of.to_pairs(),
            "unscaled": None if self.unscaled is of else self.unscaled.to_pairs(),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TensorRow:
        """The row of `to_dict`."""
        special = (plain["zeros"], plain["nonfinite"])
        seen = Histogram.from_pairs(plain["exponents"], *special)
        own, rounded = plain["unscaled"], plain["rounded"]
        return cls(
            plain["layer"],
            plain["kind"],
            plain["tensor"],
            parse_format(plain["format"]),
            plain["calls"],
            seen,
            seen if own is None else Histogram.from_pairs(own, *special),
            plain["overflow"],
            plain["underflow"],
            None if rounded is None else parse_format(rounded),
        )


def in_formats(
    rows: list[TensorRow], fmt: FloatFormat | None = None
) -> Iterator[tuple[TensorRow, InFormat]]:
    """The rows that have a format to hold them, their own or `fmt`, with unscaled histograms."""
    for row in rows:
        its = fmt or row.float_format
        if its is not None and row.histogram.numbers:
            yield row, (row.unscaled, its)


#: The columns of a report's tables.
HEAD = (
    "layer", "tensor", "format", "count", "zeros", "< normal", "< least", "over", "inf NaN",
    "exponents",
)  # fmt: skip
# The exponents of float32's subnormals are not known.
_LEAST = {-127: "<-126"}
# The first columns hold words, this many of them.
_WORDS = 3


def cells(row: TensorRow) -> tuple[str, ...]:
    """A row as texts."""
    low_high = row.unscaled.exponents
    has = row.float_format is not None
    return (
        row.layer,
        row.name,
        str(row.format),
        short(row.histogram.elements),
        share(row.zeros),
        share(row.below_normal),
        share(row.below_subnormal),
        short(row.overflow) if has else "-",
        short(row.histogram.nonfinite),
        "-" if low_high is None else f"{_LEAST.get(low_high[0], low_high[0])}..{low_high[1]}",
    )


def short(count: int) -> str:
    """A count in at most 5 characters."""
    for unit, name in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        # A count that would round to 1000 of a unit is 1 of the next unit.
        if count >= 0.9995 * unit and count >= 10_000:
            return f"{count / unit:.3g}{name}"
    return str(count)


def share(value: float | None) -> str:
    """A part in percent; a small part is not shown as none."""
    if value is None:
        return "-"
    return "0" if value == 0 else "<0.1%" if value < 0.0005 else f"{value:.1%}"


def table(rows: Sequence[TensorRow]) -> TextTable:
    """The table; where there are no rows, a line that says so."""
    if not rows:
        return TextTable([], notes=["nothing was counted yet"])
    return TextTable([HEAD, *map(cells, rows)], range(_WORDS), rule=True)

"""The kinds of tensors and the formats asked for them; a row of the report, one tensor of one layer
over all calls; and the rows as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lpkernels._table import TextTable
from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import FloatFormat, Format, parse_format
from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques.loss_scaling.diagnosis.histograms import (
    Histogram,
    InFormat,
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


# The fields of a row that are plain values.
_PLAIN = ("layer", "kind", "tensor", "calls", "overflow", "underflow")


@dataclass(frozen=True, eq=False)
class TensorRow:
    """The counts of one tensor of one layer, over all its calls.

    layer, kind, tensor: the tensor of the row. layer: the module's name, "" stands for its class;
        where the forward of a module with layers or other products computes a product itself, the
        module's name and the function's ("block.matmul"). kind: one of `KINDS`. tensor: torch's
        name of the argument where there are several of a kind ("query"), or the number of the
        product, from the second on, where a recipe rounds the tensor ("2"); else "".
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
    def below_normal(self) -> float | None:
        """The part of the numbers (finite, not zero) below the format's smallest normal value; None
        where its range is not its own."""
        fmt = self.float_format
        return None if fmt is None else self._part_below(fmt.emin)

    @property
    def below_subnormal(self) -> float | None:
        """The part of the numbers below the format's smallest value: these underflow."""
        fmt = self.float_format
        return None if fmt is None else self._part_below(smallest_exponent(fmt))

    def _part_below(self, exponent: int) -> float:
        return self.histogram.below(exponent) / max(1, self.histogram.numbers)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as records hold them."""
        of, own = self.histogram, self.unscaled
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "format": str(self.format),
            "rounded": None if self.rounded is None else str(self.rounded),
            **{name: getattr(of, name) for name in ("elements", "zeros", "nonfinite")},
            "below_normal": self.below_normal,
            "below_subnormal": self.below_subnormal,
            "exponents": of.to_pairs(),
            "unscaled": None if own is of else own.to_pairs(),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TensorRow:
        """The row of `to_dict`."""
        special = (plain["zeros"], plain["nonfinite"])
        seen = Histogram.from_pairs(plain["exponents"], *special)
        own, rounded = plain["unscaled"], plain["rounded"]
        return cls(
            **{name: plain[name] for name in _PLAIN},
            format=parse_format(plain["format"]),
            rounded=None if rounded is None else parse_format(rounded),
            histogram=seen,
            unscaled=seen if own is None else Histogram.from_pairs(own, *special),
        )


def in_format(row: TensorRow, fmt: FloatFormat | None = None) -> InFormat | None:
    """The unscaled histogram of a row with the format to hold it, its own or `fmt`; None where
    there is no such format or no number."""
    its = fmt or row.float_format
    return (row.unscaled, its) if its is not None and row.histogram.numbers else None


def merged(rows: Iterable[TensorRow]) -> tuple[TensorRow, ...]:
    """Rows of the same tensor and format added up, in the order of a report."""
    found: dict[tuple[Any, ...], list[TensorRow]] = {}
    for row in rows:
        found.setdefault((row.layer, row.kind, row.tensor, row.format), []).append(row)
    # A layer that is new in a later part of the rows may have gradients before its values.
    first = [key[0] for key in sorted(found, key=lambda key: key[1] in BACKWARD)]
    layers = {layer: place for place, layer in enumerate(dict.fromkeys(first))}
    order = sorted(found, key=lambda key: (layers[key[0]], KINDS.index(key[1])))
    return tuple(_added(found[key]) for key in order)


def _added(rows: list[TensorRow]) -> TensorRow:
    if len(rows) == 1:
        return rows[0]
    seen = Histogram.sum(row.histogram for row in rows)
    scaled = any(row.unscaled is not row.histogram for row in rows)
    return replace(
        rows[0],
        calls=sum(row.calls for row in rows),
        histogram=seen,
        unscaled=Histogram.sum(row.unscaled for row in rows) if scaled else seen,
        overflow=sum(row.overflow for row in rows),
        underflow=sum(row.underflow for row in rows),
        rounded=next((row.rounded for row in rows if row.rounded), None),
    )


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
    of, low_high = row.histogram, row.unscaled.exponents
    return (
        row.layer,
        row.name,
        str(row.format),
        short(of.elements),
        share(of.zeros / max(1, of.elements)),
        share(row.below_normal),
        share(row.below_subnormal),
        "-" if row.float_format is None else short(row.overflow),
        short(of.nonfinite),
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


def table(rows: Sequence[TensorRow], *notes: str) -> TextTable:
    """The table with notes below; where there are no rows, a line that says so."""
    if not rows:
        return TextTable([], notes=["nothing was counted yet", *notes])
    return TextTable([HEAD, *map(cells, rows)], range(_WORDS), notes, rule=True)

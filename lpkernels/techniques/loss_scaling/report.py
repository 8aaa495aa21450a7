"""The report of a diagnosis, and the loss scale and the formats that follow from exponents alone.

Source: Micikevicius et al. 2017, "Mixed precision training", arXiv 1710.03740, section 3.2. They
count the values below fp16's range, and find that in one network the smallest of these do not
matter. Differs: the rules are ours, which decide by the lost part of a tensor's magnitude and leave
zeros out: half of the gradients behind a ReLU are zeros, which no format loses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lpkernels import schemas
from lpkernels._table import Tabular, TextTable
from lpkernels.arithmetic import as_quantizer
from lpkernels.formats import FloatFormat, Format
from lpkernels.techniques import checks
from lpkernels.techniques.loss_scaling.rows import (
    COLUMNS,
    EXPONENTS,
    GRADIENTS,
    KINDS,
    Counts,
    Histogram,
    TensorRow,
    smallest_exponent,
)

_KIND = "diagnosis"
#: Formats that hardware has, and some between, by width.
_CANDIDATES = (
    "fp4_e2m1", "fp6_e2m3", "fp6_e3m2", "e4m3fn", "e5m2", "e5m6", "fp16", "bf16", "e6m9", "tf32",
    "fp32",
)  # fmt: skip
# A sum of magnitudes takes a number as the middle of its bin, and float32's subnormals as 0.
_MIDDLES = np.where(EXPONENTS > EXPONENTS[0], np.ldexp(1.5, EXPONENTS), 0.0)
# Under such exponents a scale and its inverse are normal numbers of float32, as LossScaler asks.
_MOST = 126
# Half of float32's largest number in the binade of 1.
_TOP = 1 - 2.0**-24
# The binades by which a scale is lowered where nothing that was seen says how far.
_DOWN = 8


def float_format(label: str, value: Any) -> FloatFormat:
    """The format of a value whose range is the same for all tensors.

    Raises: TypeError, ValueError: there is no such format, or it has no exponent.
    """
    try:
        fmt = as_quantizer(value).fmt
    except (TypeError, ValueError) as error:
        raise type(error)(f"{label}: {error}") from error
    if not isinstance(fmt, FloatFormat):
        raise ValueError(
            f"{label}: expected a format with an exponent, whose range is the same for all "
            f"tensors, got {fmt}; a FloatFormat such as fp16 or e5m2, or 'recipe'"
        )
    return fmt


class Report(Tabular):
    """The counts, one row for every tensor of every layer; ``print`` shows a table.

    Args:
        rows: layers in the order of their first calls; input, weight, output, then the gradients.
        uncovered: a sentence that names the products of the first forward pass without a row; "" if
            there are none.
    """

    def __init__(self, rows: Iterable[TensorRow], uncovered: str = "") -> None:
        self._rows, self.uncovered = tuple(rows), uncovered

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        """The rows, in their order."""
        return self._rows

    def _counted(self) -> tuple[TensorRow, ...]:
        rows = self.rows
        if not rows:
            raise RuntimeError(
                "diagnose: nothing was counted yet; run the model, and its backward pass, inside "
                "`with diagnose(model) as report:`; without a fmt only what a recipe rounds is "
                'counted: a plain model needs one, as diagnose(model, "fp16")'
            )
        return rows

    def totals(self) -> dict[tuple[str, str], Counts]:
        """Elements, overflow and underflow so far, by layer and tensor, whatever the formats."""
        totals: dict[tuple[str, str], Counts] = {}
        for row in self.rows:
            counts = np.array([row.histogram.elements, row.overflow, row.underflow])
            totals[row.layer, row.name] = totals.get((row.layer, row.name), 0) + counts
        return totals

    def recommend(
        self,
        *,
        candidates: Sequence[Format | str] = _CANDIDATES,
        margin: int = 1,
        threshold: float = 0.01,
    ) -> Recommendation:
        """A static scale of the loss, and the narrowest formats, from the histograms alone.

        A model that rounds its gradients shows them as they come through at the present scale.
        Where a gradient holds no number because one before it underflows, or holds infinities or
        NaN, neither a scale nor formats follow: `scale.unseen` says so, and `scale.scale` is the
        scale to diagnose at again. A model before `convert` needs one diagnosis.

        Args:
            candidates: float formats. For every kind the narrowest of them is looked for.
            margin: binades that stay free above the top of the largest gradient's binade. That top
                is up to a binade above the gradient: 1 leaves one to two.
            threshold: how large a part of the sum of a tensor's magnitudes may be lost.
        Raises:
            RuntimeError: nothing was counted yet.
            TypeError, ValueError: a format without exponent, no candidate, a margin below 0, a
                threshold outside of 0..1.
        """
        checks.whole("recommend: margin", margin, 0)
        checks.number("recommend: threshold", threshold, least=0, below=1)
        formats = [float_format("recommend: candidates", value) for value in candidates]
        if not formats:
            raise ValueError("recommend: candidates: expected at least one format, got none")
        rows = self._counted()
        scale, advice = _scale_advice(rows, margin, threshold), []
        for kind in KINDS:
            tensors = [row.unscaled for row in rows if row.kind == kind and row.unscaled.numbers]
            # An operand of one product alone gets no format of its own, nor do unseen gradients.
            is_operand = kind.startswith(("dgrad_", "wgrad_"))
            is_unseen = kind in GRADIENTS and scale is not None and scale.unseen
            if tensors and not is_operand and not is_unseen:
                best = narrowest(kind, tensors, formats, margin=margin, threshold=threshold)
                advice.append(best)
        return Recommendation(scale, tuple(advice))

    def state_dict(self) -> dict[str, Any]:
        """The rows so far, as plain values; there may be none."""
        return {"rows": [row.to_dict() for row in self.rows]}

    def records(self) -> list[dict[str, Any]]:
        """The lines of `save`: a header, then the rows as plain values."""
        uncovered = {"uncovered": self.uncovered} if self.uncovered else {}
        rows = [{"type": "tensor", **row.to_dict()} for row in self._counted()]
        return [{**schemas.header(_KIND), **uncovered}, *rows]

    def save(self, path: str | Path) -> Path:
        """Writes JSON lines: a header, then a line for every row.

        Raises: RuntimeError: nothing was counted yet.
        """
        lines = [json.dumps(record, allow_nan=False) for record in self.records()]
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    @staticmethod
    def load(path: str | Path) -> Report:
        """The report of a file that `save` wrote.

        Raises: ValueError: another file, or another schema.
        """
        records = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
        lines = schemas.check_all(records, path)
        kind = lines[0].get("kind") if lines else None
        if kind != _KIND:
            raise ValueError(f"{path}: expected the records of a diagnosis, got {kind!r}")
        # A run's file has its epochs below.
        rows = (TensorRow.from_dict(line) for line in lines[1:] if line["type"] == "tensor")
        return Report(rows, lines[0].get("uncovered", ""))

    def cells(self) -> list[tuple[str, ...]]:
        """The table as texts, its head first."""
        rows = self._counted()
        return [tuple(COLUMNS), *(tuple(cell(row) for cell in COLUMNS.values()) for row in rows)]

    def _table(self) -> TextTable:
        notes = [self.uncovered] if self.uncovered else []
        if not self.rows:
            return TextTable([], notes=["nothing was counted yet", *notes])
        # The first three columns are words.
        return TextTable(self.cells(), range(3), notes, rule=True)


class ScaleAdvice(NamedTuple):
    """A static scale of the loss; ``str`` of it says what the gradients lose with and without it.

    scale: the largest safe scale, at which no tensor leaves its format: 2 ** floor(log2(max /
        largest gradient)) less the margin; LossScaler(static=scale). Where some gradients are
        unseen, the scale at which to diagnose again.
    least: the smallest scale at which no tensor loses more than the threshold of sum |g|, over its
        elements; None: either no scale up to `scale` is enough, or some gradients are unseen.
    unseen: a sentence on gradients that hold no number because one before them underflows, or hold
        infinities or NaN; "": there are none.
    text: all lines.
    """

    scale: float
    least: float | None
    unseen: str
    text: str

    def __str__(self) -> str:
        return self.text


class FormatAdvice(NamedTuple):
    """The narrowest format for the tensors of a kind.

    format: None: no candidate holds the tensors.
    scale: the scale of the loss under which it holds them; 1 for tensors of the forward pass.
    lost: the part of its magnitude that the tensor loses that loses most.
    """

    kind: str
    format: FloatFormat | None = None
    scale: float = 1.0
    lost: float = 0.0

    def __str__(self) -> str:
        if self.format is None:
            return f"{self.kind}: none of the candidates"
        times = f" at a loss scale of {self.scale:g}" if self.scale != 1 else ""
        return f"{self.kind}: {self.format}{times}, losing at most {self.lost:.2%}"


class Recommendation(NamedTuple):
    """scale: None if no gradient with a format holds a number. formats: for the kinds that were
    seen."""

    scale: ScaleAdvice | None
    formats: tuple[FormatAdvice, ...]

    def __str__(self) -> str:
        lines = [str(self.scale or "no loss scale: no gradient with a format holds a number")]
        if self.formats:
            lines.append(
                "narrowest formats by range, and the magnitude that the worst tensor loses:"
            )
        return "\n".join([*lines, *(f"  {advice}" for advice in self.formats)])


class InFormats:
    """Tensors by binary exponent, each with the format that is to hold it.

    Numbers below the smallest value underflow: rounded to the nearest, those below half of it
    become zero, and the others the smallest value. Numbers in the binade of the largest value are
    held, though a few may round beyond it. Most numbers of a gradient can be so small that nothing
    depends on them, so that the rules decide by the part of the magnitude.
    """

    def __init__(self, tensors: Sequence[tuple[Histogram, FloatFormat]]) -> None:
        self.formats = [fmt for _, fmt in tensors]
        self._bins = np.stack([histogram.bins for histogram, _ in tensors])
        self._magnitudes = self._bins * _MIDDLES
        self._low = np.array([[smallest_exponent(fmt)] for fmt in self.formats])
        self._high = np.array([[fmt.emax + 1] for fmt in self.formats])

    def lost(self, scale: int = 0) -> tuple[float, float]:
        """The parts of all numbers that underflow and overflow, times 2 ** scale."""
        numbers = max(1, int(self._bins.sum()))
        under, over = (int(self._bins[beyond].sum()) for beyond in self._beyond(scale))
        return under / numbers, over / numbers

    def worst(self, scale: int = 0, *, overflow: bool = True) -> float:
        """The part of its magnitude that the tensor loses that loses most, times 2 ** scale."""
        under, over = self._beyond(scale)
        gone = np.where(under | (over & overflow), self._magnitudes, 0.0).sum(axis=1)
        whole = self._magnitudes.sum(axis=1)
        return float((gone / np.where(whole, whole, 1.0)).max())

    def _beyond(self, scale: int) -> tuple[Any, Any]:
        return EXPONENTS < self._low - scale, EXPONENTS >= self._high - scale

    def fitting(self, margin: int) -> int:
        """The largest exponent of a scale, from -126 to 126, under which no tensor leaves its
        format: a floor(log2(max / largest)) - margin; 0 without numbers.

        A histogram knows no more of the largest number than its binade, so the binade's top stands
        for it, and with margin=1 the scale is one or two binades below the scale for the number.
        Micikevicius et al. take any constant whose product with the largest gradient is below
        65504.
        """
        fitting = []
        for fmt, bins in zip(self.formats, self._bins, strict=True):
            most, exponent = math.frexp(fmt.max)
            if bins.any():
                largest = int(EXPONENTS[bins > 0][-1])
                fitting.append(exponent - largest - 1 - (most < _TOP) - margin)
        return min(_MOST, max(-_MOST, min(fitting, default=0)))

    def enough(self, most: int, threshold: float) -> int | None:
        """The smallest exponent up to `most` at which no tensor loses more than the threshold; None
        where there is none. It is looked for from 0 on or, where `most` is negative, at `most`.

        Of the scales that are enough, the smallest leaves the most room for gradients that grow.
        """
        scales = range(min(0, most), most + 1)
        return next((s for s in scales if self.worst(s) <= threshold), None)


def narrowest(
    kind: str,
    histograms: Sequence[Histogram],
    candidates: Sequence[FloatFormat],
    *,
    margin: int = 1,
    threshold: float = 0.01,
) -> FormatAdvice:
    """The format of fewest bits that loses at most the threshold of every tensor.

    Gradients have the smallest scale that is `enough`, up to `fitting`; others have none. Among
    formats of one width it takes the one with most mantissa bits, then the first. A format that
    does not saturate may lose nothing by overflow, because one infinity or NaN spoils everything
    that follows. The histogram tells which numbers are out of range. It tells nothing about
    precision: only training does.
    """
    for fmt in sorted(candidates, key=lambda f: (f.bits, -f.man_bits)):
        tensors = InFormats([(histogram, fmt) for histogram in histograms])
        scale = tensors.enough(tensors.fitting(margin) if kind in GRADIENTS else 0, threshold)
        if scale is None:
            continue
        if fmt.overflow == "saturate" or not tensors.lost(scale)[1]:
            return FormatAdvice(kind, fmt, 2.0**scale, tensors.worst(scale))
    return FormatAdvice(kind)


def _scale_advice(rows: Iterable[TensorRow], margin: int, threshold: float) -> ScaleAdvice | None:
    """The scale for the gradients among the rows, in their own formats."""
    gradients = [row for row in rows if row.is_gradient and row.float_format]
    layers: dict[str, list[Any]] = {}
    for row in gradients:
        if row.unscaled.numbers:
            layers.setdefault(row.layer, []).append((row.unscaled, row.float_format))
    if not layers:
        return None
    tensors = InFormats([tensor for of_layer in layers.values() for tensor in of_layer])
    names = ", ".join(dict.fromkeys(map(str, tensors.formats)))
    unseen, scale = _unseen(gradients, tensors.fitting(margin), threshold)
    if unseen:
        text = f"no loss scale and no formats for gradients in {names}: {unseen}"
        return ScaleAdvice(2.0**scale, None, unseen, text)
    exponent = tensors.enough(scale, threshold)
    least = None if exponent is None else 2.0**exponent
    smallest = "none" if least is None else f"{least:.17g} the smallest"
    under, over = tensors.lost()
    lines = [
        f"loss scale for gradients in {names}: {2.0**scale:.17g} is the largest safe one, "
        f"{smallest} that loses at most {100 * threshold:.3g}% of sum |g|",
        f"  underflow: {tensors.lost(scale)[0]:.2%} of the gradients, and of the worst tensor "
        f"{tensors.worst(scale):.2%} of its magnitude",
        f"  without a scale: {under:.2%}, and {tensors.worst():.2%}"
        + (f"; {over:.2%} overflow" if over else ""),
    ]
    by_layer = {name: InFormats(of_layer) for name, of_layer in layers.items()}
    lost = {name: x for name, x in by_layer.items() if x.worst(scale) > threshold}
    if lost:
        lines.append(
            f"  no one scale fits: at this one {', '.join(lost)} underflow, larger ones overflow"
        )
    wide = [name for name, x in lost.items() if x.worst(x.fitting(margin)) > threshold]
    if wide:
        lines.append(f"  {names} is too narrow for {', '.join(wide)}, whatever the scale")
    return ScaleAdvice(2.0**scale, least, "", "\n".join(lines))


def _unseen(gradients: Sequence[TensorRow], safe: int, threshold: float) -> tuple[str, int]:
    """A sentence on the gradients that a diagnosis at the present scale cannot see, "" where all
    were seen; and the exponent of the scale at which to diagnose again.

    A tensor is empty where it holds no number while another loses more than the threshold to
    underflow: without these zeros it might hold numbers. It is infinite where more than the
    threshold of its elements that are not zero are infinities or NaN: a tensor before it
    overflowed. The next scale is `safe`, the exponent of the largest that is safe for what is seen,
    or 8 binades below a scale at which something overflowed.
    """
    histograms = [row.histogram for row in gradients]
    rounded = [(x.histogram, x.rounded) for x in gradients if isinstance(x.rounded, FloatFormat)]
    infinite = sum(h.nonfinite > threshold * max(1, h.elements - h.zeros) for h in histograms)
    underflows = rounded and InFormats(rounded).worst(overflow=False) > threshold
    empty = sum(0 < h.elements == h.zeros for h in histograms) if underflows else 0
    if not (empty or infinite):
        return "", safe
    # The largest numbers show the exponent of the loss scale.
    tops = [(row.histogram.exponents, row.unscaled.exponents) for row in gradients]
    now = max(seen[1] - own[1] for seen, own in tops if seen is not None and own is not None)
    again = now - _DOWN if infinite and safe >= now else safe
    counts = [(empty, "no number"), (infinite, "infinities or NaN")]
    what = [f"{n} of {len(gradients)} tensors hold {kind}" for n, kind in counts if n]
    how = f", or again at a scale of {2.0**again:.17g}"
    if not infinite and safe <= now:
        how = "; no larger scale is safe for the others"
    return f"{' and '.join(what)}: diagnose the model before convert{how}", again

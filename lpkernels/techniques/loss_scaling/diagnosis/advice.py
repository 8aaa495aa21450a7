"""The advice that follows from a report: a scale of the loss, and formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lpkernels.formats import FloatFormat
from lpkernels.techniques.loss_scaling.diagnosis.histograms import (
    InFormat,
    enough,
    fitting_exponent,
    narrowest,
    smallest_exponent,
    together,
    worst,
)
from lpkernels.techniques.loss_scaling.diagnosis.rows import FORWARD, KINDS, TensorRow, in_format

# The binades by which a scale is lowered where nothing that was seen says how far.
_DOWN = 8


@dataclass(frozen=True)
class ScaleAdvice:
    """A static scale of the loss, for the gradients that a format holds.

    formats: the formats of these gradients.
    scale: the largest safe scale, at which no tensor leaves its format: 2 ** floor(log2(max /
        largest gradient)) less the margin; LossScaler(static=scale). Where some gradients are
        unseen, the scale at which to diagnose again.
    least: the smallest scale at which no tensor loses more than `threshold` of sum |g|, over its
        elements; None: either no scale up to `scale` is enough, or some gradients are unseen.
    threshold: 0.01 is 1%.
    underflow: the part of all gradients (finite, not zero) that underflows at `scale`.
    underflow_unscaled, overflow_unscaled: the parts that are lost at a scale of 1.
    worst, worst_unscaled: the part of its magnitude that the tensor loses that loses most.
    lost: layers that lose more than the threshold at `scale`, where no one scale fits.
    left: the lost layers with gradients too far apart for the format, at any scale.
    unseen: a sentence on gradients that hold no number because one before them underflows, or hold
        infinities or NaN; "": there are none.
    """

    formats: tuple[FloatFormat, ...]
    scale: float
    least: float | None
    threshold: float
    underflow: float
    underflow_unscaled: float
    overflow_unscaled: float
    worst: float
    worst_unscaled: float
    lost: tuple[str, ...]
    left: tuple[str, ...]
    unseen: str

    @property
    def fits(self) -> bool:
        return self.least is not None

    def __str__(self) -> str:
        names = ", ".join(map(str, self.formats))
        if self.unseen:
            return f"no loss scale and no formats for gradients in {names}: {self.unseen}"
        least = "none" if self.least is None else f"{self.least:.17g} the smallest"
        lines = [
            f"loss scale for gradients in {names}: {self.scale:.17g} is the largest safe one, "
            f"{least} that loses at most {100 * self.threshold:.3g}% of sum |g|",
            f"  underflow: {self.underflow:.2%} of the gradients, and of the worst tensor "
            f"{self.worst:.2%} of its magnitude",
            f"  without a scale: {self.underflow_unscaled:.2%}, and {self.worst_unscaled:.2%}",
        ]
        if self.overflow_unscaled:
            lines[-1] += f"; {self.overflow_unscaled:.2%} overflow"
        if not self.fits:
            lines.append(
                f"  no one scale fits: at this one {', '.join(self.lost)} underflow, larger ones "
                "overflow"
            )
        if self.left:
            lines.append(f"  {names} is too narrow for {', '.join(self.left)}, whatever the scale")
        return "\n".join(lines)


@dataclass(frozen=True)
class FormatAdvice:
    """The narrowest format for the tensors of a kind.

    format: the narrowest one; None: no candidate holds the tensors.
    scale: the scale of the loss under which it holds them; 1 for tensors of the forward pass.
    lost: the part of its magnitude that the tensor loses that loses most.
    """

    kind: str
    format: FloatFormat | None
    scale: float
    lost: float

    def __str__(self) -> str:
        if self.format is None:
            return f"{self.kind}: none of the candidates"
        times = f" at a loss scale of {self.scale:g}" if self.scale != 1 else ""
        return f"{self.kind}: {self.format}{times}, losing at most {self.lost:.2%}"


@dataclass(frozen=True)
class Recommendation:
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


def scale_advice(
    rows: Sequence[TensorRow], fmt: FloatFormat | None, margin: int, threshold: float
) -> ScaleAdvice | None:
    """The scale for the gradients among the rows, in their own formats or in `fmt`."""
    gradients = [row for row in rows if row.is_gradient and (fmt or row.float_format)]
    layers: dict[str, list[InFormat]] = {}
    for row in gradients:
        held = in_format(row, fmt)
        if held is not None:
            layers.setdefault(row.layer, []).append(held)
    everything = [held for of in layers.values() for held in of]
    if not everything:
        return None
    scale = fitting_exponent(everything, margin=margin)
    unseen, scale = _unseen(gradients, scale, threshold)
    least, lost, left = None, [], []
    if not unseen:
        least = enough(everything, scale, threshold=threshold)
        lost = [n for n, of in layers.items() if worst(of, scale) > threshold]
        own = {name: fitting_exponent(layers[name], margin=margin) for name in lost}
        left = [n for n in lost if worst(layers[n], own[n]) > threshold]
    return ScaleAdvice(
        tuple(dict.fromkeys(its for _, its in everything)),
        2.0**scale,
        None if least is None else 2.0**least,
        threshold,
        together(everything, scale)[0],
        *together(everything),
        worst(everything, scale),
        worst(everything),
        tuple(lost),
        tuple(left),
        unseen,
    )


def _unseen(gradients: Sequence[TensorRow], safe: int, threshold: float) -> tuple[str, int]:
    """A sentence on the gradients with a format that a diagnosis at the present scale cannot see,
    "" where all were seen; and the exponent of the scale at which to diagnose again.

    A tensor is empty where it holds no number while another loses more than the threshold to
    underflow: without these zeros it might hold numbers. It is infinite where more than the
    threshold of its elements that are not zero are infinities or NaN: a tensor before it
    overflowed.

    safe: the exponent of the largest safe scale of the gradients that are seen. It is the next one,
        so that these come through; where that is not below a scale at which something overflowed,
        the next one is 8 binades below that scale.
    """
    of = [(row.histogram, row) for row in gradients]
    infinite = sum(h.nonfinite > threshold * max(1, h.elements - h.zeros) for h, _ in of)
    underflows = any(_lost_to_zero(row) > threshold for row in gradients)
    empty = sum(0 < h.elements == h.zeros for h, _ in of) if underflows else 0
    if not (empty or infinite):
        return "", safe
    # The largest numbers show the exponent of the loss scale.
    tops = [(h.exponents, row.unscaled.exponents) for h, row in of if h.numbers]
    now = max(seen[1] - own[1] for seen, own in tops if seen is not None and own is not None)
    again = now - _DOWN if infinite and safe >= now else safe
    counts = [(empty, "no number"), (infinite, "infinities or NaN")]
    what = [f"{n} of {len(gradients)} tensors hold {kind}" for n, kind in counts if n]
    how = f", or again at a scale of {2.0**again:.17g}"
    if not infinite and safe <= now:
        how = "; no larger scale is safe for the others"
    return f"{' and '.join(what)}: diagnose the model before convert{how}", again


def _lost_to_zero(row: TensorRow) -> float:
    """The part of sum |x| below the smallest value of the format in which the model rounds it."""
    if not isinstance(row.rounded, FloatFormat):
        return 0.0
    whole = row.histogram.magnitude()
    return row.histogram.magnitude(None, smallest_exponent(row.rounded)) / whole if whole else 0.0


def format_advice(
    rows: Sequence[TensorRow],
    candidates: Sequence[FloatFormat],
    margin: int,
    threshold: float,
    *,
    gradients: bool,
) -> tuple[FormatAdvice, ...]:
    """The narrowest format for every kind among the rows, with a loss scale for gradients.

    gradients: whether the gradients were seen, so that a format can be named for them.
    """
    advice = []
    for kind in KINDS:
        scaled = kind.startswith("grad_")
        found = [row.unscaled for row in rows if row.kind == kind and row.unscaled.numbers]
        if found and (kind in FORWARD or (scaled and gradients)):
            best = narrowest(found, candidates, scaled=scaled, margin=margin, threshold=threshold)
            fmt, scale, lost = best or (None, 0, 0.0)
            advice.append(FormatAdvice(kind, fmt, 2.0**scale, lost))
    return tuple(advice)

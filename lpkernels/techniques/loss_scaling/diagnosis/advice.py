"""The advice that follows from a report: a scale of the loss, and formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lpkernels.formats import FloatFormat
from lpkernels.techniques.loss_scaling.diagnosis.histograms import (
    NOTHING,
    InFormat,
    Lost,
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
class Unseen:
    """Gradients that a diagnosis at the present scale cannot see.

    empty: how many tensors hold no number, while another tensor loses more than the threshold to
        underflow: without these zeros the empty tensors might hold numbers.
    infinite: how many tensors hold infinities or NaN in more than the threshold of their elements
        that are not zero: a tensor before them overflowed.
    tensors: how many gradient tensors have a format.
    scale: where to diagnose again. It is the largest safe scale for the gradients that were seen,
        so that these come through; where that is not below a scale at which something overflowed,
        it is that scale less 8 binades. None: it is not above the present scale, so that no scale
        shows the tensors that are empty.
    """

    empty: int
    infinite: int
    tensors: int
    scale: float | None

    def __str__(self) -> str:
        what = [f"{self.empty} of {self.tensors} tensors hold no number"] if self.empty else []
        if self.infinite:
            what.append(f"{self.infinite} of {self.tensors} tensors hold infinities or NaN")
        again = (
            "; no larger scale is safe for the others"
            if self.scale is None
            else f", or again at a scale of {self.scale:.17g}"
        )
        return f"{' and '.join(what)}: diagnose the model before convert{again}"


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
    underflow, overflow: the parts of all gradients (finite, not zero) that are lost at `scale`.
    underflow_unscaled, overflow_unscaled: the same at a scale of 1.
    worst, worst_unscaled: the losses of the tensor that loses most of its magnitude.
    lost: layers that lose more than the threshold at `scale`, where no one scale fits.
    left: the lost layers with gradients too far apart for the format, at any scale.
    unseen: the gradients that were not seen; None: all were.
    """

    formats: tuple[FloatFormat, ...]
    scale: float
    least: float | None
    threshold: float
    underflow: float
    overflow: float
    underflow_unscaled: float
    overflow_unscaled: float
    worst: Lost
    worst_unscaled: Lost
    lost: tuple[str, ...]
    left: tuple[str, ...]
    unseen: Unseen | None = None

    @property
    def fits(self) -> bool:
        return self.least is not None

    def __str__(self) -> str:
        names = ", ".join(map(str, self.formats))
        if self.unseen is not None:
            return f"no loss scale and no formats for gradients in {names}: {self.unseen}"
        least = "none" if self.least is None else f"{self.least:.17g} the smallest"
        lines = [
            f"loss scale for gradients in {names}: {self.scale:.17g} is the largest safe one, "
            f"{least} that loses at most {100 * self.threshold:.3g}% of sum |g|",
            f"  underflow: {self.underflow:.2%} of the gradients, and of the worst tensor "
            f"{self.worst.magnitude:.2%} of its magnitude",
            f"  without a scale: {self.underflow_unscaled:.2%}, and "
            f"{self.worst_unscaled.magnitude:.2%}",
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
    lost: the losses of the tensor that loses most of its magnitude.
    """

    kind: str
    format: FloatFormat | None
    scale: float
    lost: Lost

    def __str__(self) -> str:
        if self.format is None:
            return f"{self.kind}: none of the candidates"
        times = f" at a loss scale of {self.scale:g}" if self.scale != 1 else ""
        return f"{self.kind}: {self.format}{times}, losing at most {self.lost.magnitude:.2%}"


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
    unseen = _unseen(gradients, scale, threshold)
    least, lost, left = None, [], []
    if unseen is None:
        least = enough(everything, scale, threshold=threshold)
        lost = [n for n, of in layers.items() if worst(of, scale).magnitude > threshold]
        own = {name: fitting_exponent(layers[name], margin=margin) for name in lost}
        left = [n for n in lost if worst(layers[n], own[n]).magnitude > threshold]
    elif unseen.scale is not None:
        scale = math.frexp(unseen.scale)[1] - 1
    return ScaleAdvice(
        tuple(dict.fromkeys(its for _, its in everything)),
        2.0**scale,
        None if least is None else 2.0**least,
        threshold,
        *together(everything, scale),
        *together(everything),
        worst(everything, scale),
        worst(everything),
        tuple(lost),
        tuple(left),
        unseen,
    )


def _unseen(gradients: Sequence[TensorRow], safe: int, threshold: float) -> Unseen | None:
    """The gradients with a format that were not seen; None where all were.

    safe: the exponent of the largest safe scale of the gradients that are seen.
    """
    of = [(row.histogram, row) for row in gradients]
    infinite = sum(h.nonfinite > threshold * max(1, h.elements - h.zeros) for h, _ in of)
    underflows = any(_lost_to_zero(row) > threshold for row in gradients)
    empty = sum(0 < h.elements == h.zeros for h, _ in of) if underflows else 0
    if not (empty or infinite):
        return None
    # The largest numbers show the exponent of the loss scale.
    tops = [(h.exponents, row.unscaled.exponents) for h, row in of if h.numbers]
    now = max(seen[1] - own[1] for seen, own in tops if seen is not None and own is not None)
    again: int | None = safe
    if infinite and safe >= now:
        again = now - _DOWN
    elif not infinite and safe <= now:
        again = None
    return Unseen(empty, infinite, len(gradients), None if again is None else 2.0**again)


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
            fmt, scale, lost = best or (None, 0, NOTHING)
            advice.append(FormatAdvice(kind, fmt, 2.0**scale, lost))
    return tuple(advice)

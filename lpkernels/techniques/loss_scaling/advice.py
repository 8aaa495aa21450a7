"""The advice that follows from the exponents alone: a scale of the loss, and formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lpkernels.formats import FloatFormat
from lpkernels.techniques.loss_scaling.rows import (
    GRADIENTS,
    KINDS,
    Histogram,
    TensorRow,
    smallest_exponent,
)

#: The largest part of a tensor's magnitude that may be lost before a rule says no.
THRESHOLD = 0.01
#: Binades kept free above the largest gradient, beyond its own.
MARGIN = 1
# Under such exponents a scale and its inverse are normal numbers of float32, as LossScaler asks.
_MOST = 126
# Half of float32's largest number in the binade of 1.
_TOP = 1 - 2.0**-24
# The binades by which a scale is lowered where nothing that was seen says how far.
_DOWN = 8

#: A tensor's histogram and the format that is to hold it.
InFormat = tuple[Histogram, FloatFormat]


class Losses(NamedTuple):
    """What formats lose of some tensors.

    underflow, overflow: the parts of all numbers (finite, not zero).
    worst: the part of its magnitude that the tensor loses that loses most.
    """

    underflow: float
    overflow: float
    worst: float


def losses(tensors: Sequence[InFormat], scale: int = 0) -> Losses:
    """What the tensors, times 2 ** scale, lose in their formats.

    Numbers below the smallest value underflow: rounded to the nearest, those below half of it
    become zero, and the others the smallest value. Numbers in the binade of the largest value are
    held, though a few may round beyond it. The rules decide by the part of the sum of all
    magnitudes, because most numbers of a gradient can be so small that nothing depends on them.

    Reference: Micikevicius et al. 2017, arXiv 1710.03740, section 3.2, count the values below
        fp16's range, and find that in one network the smallest of these do not matter. Two things
        are ours: the share of the magnitude, and that shares leave out zeros (half of the gradients
        behind a ReLU are zeros, which no format loses).
    """
    numbers, under, over, worst = 0, 0, 0, 0.0
    for histogram, fmt in tensors:
        low, high = smallest_exponent(fmt) - scale, fmt.emax + 1 - scale
        numbers += histogram.numbers
        under += histogram.below(low)
        over += histogram.numbers - histogram.below(high)
        gone = histogram.magnitude(None, low) + histogram.magnitude(high, None)
        worst = max(worst, gone / (histogram.magnitude() or 1))
    return Losses(under / max(1, numbers), over / max(1, numbers), worst)


def fitting_exponent(tensors: Sequence[InFormat], *, margin: int = MARGIN) -> int:
    """The largest exponent of a scale, from -126 to 126, under which no tensor leaves its format: a
    floor(log2(max / largest)) - margin; 0 without numbers.

    A histogram knows no more of the largest number than its binade, so the binade's top stands for
    it, and with margin=1 the scale is one or two binades below the scale for the number itself.

    Reference: Micikevicius et al. 2017, arXiv 1710.03740, section 3.2: any constant will do whose
        product with the largest gradient is below 65504. The formula and the margin are ours.
    """
    fitting = []
    for histogram, fmt in tensors:
        exponents, (most, e_max) = histogram.exponents, math.frexp(fmt.max)
        if exponents is not None:
            fitting.append(e_max - exponents[1] - 1 - (most < _TOP) - margin)
    return min(_MOST, max(-_MOST, min(fitting, default=0)))


def enough(tensors: Sequence[InFormat], most: int, *, threshold: float = THRESHOLD) -> int | None:
    """The smallest exponent up to `most` at which no tensor loses more than `threshold` of its
    magnitude; None where there is none. It is looked for from 0 on or, where `most` is negative, at
    `most` itself.

    Of the scales that are enough, the smallest leaves the most room for gradients that grow.
    """
    scales = range(min(0, most), most + 1)
    return next((s for s in scales if losses(tensors, s).worst <= threshold), None)


def narrowest(
    kind: str,
    histograms: Sequence[Histogram],
    candidates: Sequence[FloatFormat],
    *,
    margin: int = MARGIN,
    threshold: float = THRESHOLD,
) -> FormatAdvice:
    """The format of fewest bits that loses at most `threshold` of the magnitude of every tensor.

    Gradients have the smallest scale that is `enough`, up to `fitting_exponent`; others have none.
    Among formats of one width it takes the one with most mantissa bits, then the first. A format
    that does not saturate may lose nothing by overflow, because one infinity or NaN spoils
    everything that follows. The histogram tells which numbers are out of range. It tells nothing
    about precision: only training does.

    Reference: ours.
    """
    for fmt in sorted(candidates, key=lambda f: (f.bits, -f.man_bits)):
        tensors = [(histogram, fmt) for histogram in histograms]
        most = fitting_exponent(tensors, margin=margin) if kind in GRADIENTS else 0
        scale = enough(tensors, most, threshold=threshold)
        if scale is None:
            continue
        losing = losses(tensors, scale)
        if fmt.overflow == "saturate" or not losing.overflow:
            return FormatAdvice(kind, fmt, 2.0**scale, losing.worst)
    return FormatAdvice(kind, None, 1.0, 0.0)


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
    scaled, unscaled: what the gradients lose at `scale`, and at a scale of 1.
    lost: layers that lose more than the threshold at `scale`, where no one scale fits.
    left: the lost layers with gradients too far apart for the format, at any scale.
    unseen: a sentence on gradients that hold no number because one before them underflows, or hold
        infinities or NaN; "": there are none.
    """

    formats: tuple[FloatFormat, ...]
    scale: float
    least: float | None
    threshold: float
    scaled: Losses
    unscaled: Losses
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
        at, bare = self.scaled, self.unscaled
        overflow = f"; {bare.overflow:.2%} overflow" if bare.overflow else ""
        lines = {
            f"loss scale for gradients in {names}: {self.scale:.17g} is the largest safe one, "
            f"{least} that loses at most {100 * self.threshold:.3g}% of sum |g|": True,
            f"  underflow: {at.underflow:.2%} of the gradients, and of the worst tensor "
            f"{at.worst:.2%} of its magnitude": True,
            f"  without a scale: {bare.underflow:.2%}, and {bare.worst:.2%}{overflow}": True,
            f"  no one scale fits: at this one {', '.join(self.lost)} underflow, larger ones "
            "overflow": not self.fits,
            f"  {names} is too narrow for {', '.join(self.left)}, whatever the scale": self.left,
        }
        return "\n".join(line for line, holds in lines.items() if holds)


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


def recommend(
    rows: Sequence[TensorRow],
    fmt: FloatFormat | None,
    candidates: Sequence[FloatFormat],
    *,
    margin: int,
    threshold: float,
) -> Recommendation:
    """The scale for the gradients among the rows, in their own formats or in `fmt`, and the
    narrowest format for every kind of tensors."""
    scale, advice = _scale_advice(rows, fmt, margin, threshold), []
    for kind in KINDS:
        tensors = [row.unscaled for row in rows if row.kind == kind and row.unscaled.numbers]
        # An operand of one product alone gets no format of its own, nor do unseen gradients.
        is_operand = kind.startswith(("dgrad_", "wgrad_"))
        is_unseen = kind in GRADIENTS and scale is not None and scale.unseen
        if tensors and not is_operand and not is_unseen:
            best = narrowest(kind, tensors, candidates, margin=margin, threshold=threshold)
            advice.append(best)
    return Recommendation(scale, tuple(advice))


def _scale_advice(
    rows: Sequence[TensorRow], fmt: FloatFormat | None, margin: int, threshold: float
) -> ScaleAdvice | None:
    gradients = [row for row in rows if row.is_gradient and (fmt or row.float_format)]
    layers: dict[str, list[InFormat]] = {}
    for row in gradients:
        wanted = fmt or row.float_format
        if wanted is not None and row.unscaled.numbers:
            layers.setdefault(row.layer, []).append((row.unscaled, wanted))
    tensors = [tensor for layer in layers.values() for tensor in layer]
    if not tensors:
        return None
    unseen, scale = _unseen(gradients, fitting_exponent(tensors, margin=margin), threshold)
    least, losing, left = None, [], []
    if not unseen:
        least = enough(tensors, scale, threshold=threshold)
        losing = [name for name, of in layers.items() if losses(of, scale).worst > threshold]
        own = {name: fitting_exponent(layers[name], margin=margin) for name in losing}
        left = [name for name in losing if losses(layers[name], own[name]).worst > threshold]
    return ScaleAdvice(
        tuple(dict.fromkeys(wanted for _, wanted in tensors)),
        2.0**scale,
        None if least is None else 2.0**least,
        threshold,
        losses(tensors, scale),
        losses(tensors),
        tuple(losing),
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
    histograms = [row.histogram for row in gradients]
    infinite = sum(h.nonfinite > threshold * max(1, h.elements - h.zeros) for h in histograms)
    underflows = any(_lost_to_zero(row) > threshold for row in gradients)
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


def _lost_to_zero(row: TensorRow) -> float:
    """The part of sum |x| below the smallest value of the format in which the model rounds it."""
    whole = row.histogram.magnitude()
    if not isinstance(row.rounded, FloatFormat) or not whole:
        return 0.0
    return row.histogram.magnitude(None, smallest_exponent(row.rounded)) / whole

"""The part of a histogram that a format loses, the scale that fits, and the narrowest format. It
needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lpkernels.formats import FloatFormat
from lpkernels.techniques.loss_scaling.diagnosis.histograms import Histogram

#: The largest part of a tensor's magnitude that may be lost before a rule says no.
THRESHOLD = 0.01
#: Binades kept free above the largest gradient, beyond its own.
MARGIN = 1
# Under such exponents a scale and its inverse are normal numbers of float32, as LossScaler asks.
_MOST = 126

#: A tensor's histogram and the format that is to hold it.
InFormat = tuple[Histogram, FloatFormat]


@dataclass(frozen=True)
class Lost:
    """The parts of a tensor's numbers (finite and not zero) that a format does not hold.

    underflow: the part of the numbers that lie below its smallest value. Rounded to the nearest,
        those below half of it become zero, and the others become the smallest value.
    overflow: the part of the numbers from 2 ** (exponent of its largest value + 1) on. Numbers in
        the binade of the largest value are held, though a few may round beyond it.
    magnitude: the part of the sum of all magnitudes that both make up. The rules decide by it,
        because most numbers of a gradient can be so small that nothing depends on them.
    """

    underflow: float
    overflow: float
    magnitude: float


NOTHING = Lost(0.0, 0.0, 0.0)


def lost(histogram: Histogram, fmt: FloatFormat, scale: int = 0) -> Lost:
    """The losses in `fmt` of the numbers times 2 ** scale; nothing where there is no number.

    Reference: Micikevicius et al. 2017, arXiv 1710.03740, section 3.2, count the values below
        fp16's range, and find that in one network the smallest of these do not matter. Two things
        are ours: the share of the magnitude, and that shares leave out zeros (half of the gradients
        behind a ReLU are zeros, which no format loses).
    """
    numbers = histogram.numbers
    if not numbers:
        return NOTHING
    low, high = smallest_exponent(fmt) - scale, fmt.emax + 1 - scale
    under, over = histogram.below(low), histogram.above(high)
    gone = histogram.magnitude(None, low) + histogram.magnitude(high, None)
    return Lost(under / numbers, over / numbers, gone / histogram.magnitude())


def lost_below(histogram: Histogram, fmt: FloatFormat) -> float:
    """The part of the magnitude that lies below the smallest value of `fmt`."""
    whole = histogram.magnitude()
    return histogram.magnitude(None, smallest_exponent(fmt)) / whole if whole else 0.0


def smallest_exponent(fmt: FloatFormat) -> int:
    """The exponent of the smallest value of a format."""
    return fmt.emin - fmt.man_bits if fmt.subnormals else fmt.emin


def static_exponent(largest: float, fmt: FloatFormat, *, margin: int = 0) -> int:
    """floor(log2(max / largest)) - margin: the largest exponent of 2 by which `largest` may be
    multiplied and stay below the largest value of `fmt`, with `margin` binades to spare.

    It lies between -126 and 126, and is exact, also where the quotient rounds.

    Raises: ValueError: largest is not positive and finite.
    Reference: Micikevicius et al. 2017, arXiv 1710.03740, section 3.2: any constant will do whose
        product with the largest gradient is below 65504. The formula and the margin are ours.
    """
    if not 0 < largest < math.inf:
        raise ValueError(f"static_exponent: expected a positive finite magnitude, got {largest}")
    (m_max, e_max), (m_top, e_top) = math.frexp(fmt.max), math.frexp(largest)
    return min(_MOST, max(-_MOST, e_max - e_top - (m_max < m_top) - margin))


def fitting_exponent(held: Sequence[InFormat], *, margin: int = MARGIN) -> int:
    """The largest exponent of a scale under which no tensor leaves its format; 0 without numbers.

    It is `static_exponent` of the top of each tensor's largest binade, because a histogram knows no
    more of the largest number.

    The top is up to a binade above the largest number, so that with margin=1 the scale is one or
    two binades below the scale for the number itself.
    """
    tops = [(h.largest, fmt) for h, fmt in held if h.numbers]
    return min((static_exponent(top, fmt, margin=margin) for top, fmt in tops), default=0)


def worst(held: Sequence[InFormat], scale: int = 0) -> Lost:
    """The losses of the tensor that loses most of its magnitude at 2 ** scale."""
    losses = [lost(histogram, fmt, scale) for histogram, fmt in held]
    return max(losses, key=lambda found: found.magnitude, default=NOTHING)


def together(held: Sequence[InFormat], scale: int = 0) -> tuple[float, float]:
    """The parts of the numbers of all tensors that underflow and overflow at 2 ** scale."""
    numbers = max(1, sum(histogram.numbers for histogram, _ in held))
    losses = [(h.numbers / numbers, lost(h, fmt, scale)) for h, fmt in held]
    return sum(n * x.underflow for n, x in losses), sum(n * x.overflow for n, x in losses)


def enough(held: Sequence[InFormat], most: int, *, threshold: float = THRESHOLD) -> int | None:
    """The smallest exponent up to `most` at which no tensor loses more than `threshold` of its
    magnitude; None where there is none. It is looked for from 0 on or, where `most` is negative, at
    `most` itself.

    Of the scales that are enough, the smallest leaves the most room for gradients that grow.
    """
    for scale in range(min(0, most), most + 1):
        if worst(held, scale).magnitude <= threshold:
            return scale
    return None


def layer_exponents(
    layers: Mapping[str, Sequence[InFormat]],
    scale: int,
    *,
    margin: int = MARGIN,
    threshold: float = THRESHOLD,
) -> dict[str, int]:
    """For every layer that loses more than `threshold` at 2 ** scale, the exponent that
    `layer_scales` adds for it so that its own gradients fill its formats; a layer for which that
    changes nothing is left out.
    """
    found = {}
    for layer, held in layers.items():
        if worst(held, scale).magnitude > threshold:
            more = fitting_exponent(held, margin=margin) - scale
            if more:
                found[layer] = min(_MOST, max(-_MOST, more))
    return found


def narrowest(
    histograms: Sequence[Histogram],
    candidates: Sequence[FloatFormat],
    *,
    scaled: bool,
    margin: int = MARGIN,
    threshold: float = THRESHOLD,
) -> tuple[FloatFormat, int, Lost] | None:
    """The format of fewest bits that loses at most `threshold` of the magnitude of every tensor,
    the exponent of its scale, and the losses of the worst tensor; None where no format does.

    The scale is 0 unless `scaled`: then the smallest that is `enough`, up to `fitting_exponent`.
    Among formats of one width it takes the one with most mantissa bits, then the first. A format
    that does not saturate may lose nothing by overflow, because one infinity or NaN spoils
    everything that follows. The histogram tells which numbers are out of range. It tells nothing
    about precision: only training does.

    Reference: ours.
    """
    for fmt in sorted(candidates, key=lambda f: (f.bits, -f.man_bits)):
        held = [(histogram, fmt) for histogram in histograms]
        most = fitting_exponent(held, margin=margin) if scaled else 0
        scale = enough(held, most, threshold=threshold)
        if scale is None:
            continue
        if fmt.overflow == "saturate" or not together(held, scale)[1]:
            return fmt, scale, worst(held, scale)
    return None

"""The advice that follows from a report: a scale of the loss, and formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lpkernels.formats import FloatFormat
from lpkernels.techniques.loss_scaling.diagnosis._formats import KINDS
from lpkernels.techniques.loss_scaling.diagnosis.histograms import Histogram
from lpkernels.techniques.loss_scaling.diagnosis.rows import TensorRow, held
from lpkernels.techniques.loss_scaling.diagnosis.rules import (
    NOTHING,
    Held,
    Lost,
    enough,
    fitting_exponent,
    layer_exponents,
    narrowest,
    together,
    worst,
)


@dataclass(frozen=True)
class ScaleAdvice:
    """A static scale of the loss, for the gradients that a format holds.

    formats: the formats of these gradients.
    scale: 2 ** floor(log2(max / largest gradient)) less the margin; LossScaler(static=scale).
    least: the smallest scale at which no tensor loses more than the threshold; None: there is none
        up to `scale`, so that no one scale fits, and `layers` says what does.
    underflow, overflow: the parts of all gradients (finite, not zero) that are lost at `scale`.
    underflow_unscaled, overflow_unscaled: the same at a scale of 1.
    worst, worst_unscaled: the losses of the tensor that loses most of its magnitude.
    layers: {layer: exponent} for `layer_scales`, on top of `scale`, where no one scale fits.
    left: layers that lose more than the threshold even with a scale of their own: the format is too
        narrow for them.
    """

    formats: tuple[FloatFormat, ...]
    scale: float
    least: float | None
    underflow: float
    overflow: float
    underflow_unscaled: float
    overflow_unscaled: float
    worst: Lost
    worst_unscaled: Lost
    layers: Mapping[str, int]
    left: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return self.least is not None

    def __str__(self) -> str:
        names = ", ".join(map(str, self.formats))
        some = "" if self.least in (None, self.scale) else f"; {self.least:g} is enough"
        lines = [
            f"loss scale for gradients in {names}: {self.scale:g}{some}",
            f"  underflow: {self.underflow:.2%} of the gradients, and of the worst tensor "
            f"{self.worst.magnitude:.2%} of its magnitude",
            f"  without a scale: {self.underflow_unscaled:.2%}, and "
            f"{self.worst_unscaled.magnitude:.2%}",
        ]
        if self.overflow_unscaled:
            lines[-1] += f"; {self.overflow_unscaled:.2%} overflow"
        if not self.fits:
            lost = dict.fromkeys([*self.layers, *self.left])
            lines.append(
                f"  no one scale fits: at this one {', '.join(lost)} underflow, larger ones "
                "overflow"
            )
        if self.layers:
            lines.append(f"  layer_scales(model, {dict(self.layers)}) beside it")
        if self.left:
            lines.append(f"  {names} is too narrow for {', '.join(self.left)}, whatever the scale")
        return "\n".join(lines)


@dataclass(frozen=True)
class FormatAdvice:
    """The narrowest format for the tensors of a kind.

    format: the narrowest one; None: no candidate holds the tensors.
    scale: the scale of the loss under which it holds them; 1 for tensors of the forward pass.
    lost: what the tensor that loses most of its magnitude loses.
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
    """scale: None if no gradient that was seen has a format. formats: for the kinds that were
    seen."""

    scale: ScaleAdvice | None
    formats: tuple[FormatAdvice, ...]

    def __str__(self) -> str:
        scale = (
            "no loss scale: of no gradient was a format counted"
            if self.scale is None
            else str(self.scale)
        )
        narrow = "narrowest formats by range, and the magnitude that the worst tensor loses:"
        return "\n".join([scale, narrow, *(f"  {advice}" for advice in self.formats)])


def scale_advice(
    rows: Sequence[TensorRow], fmt: FloatFormat | None, margin: int, threshold: float
) -> ScaleAdvice | None:
    """The scale for the gradients among the rows, in their own formats or in `fmt`."""
    found = list(held([row for row in rows if row.is_gradient], fmt))
    if not found:
        return None
    everything = [each for _, each in found]
    layers: dict[str, list[Held]] = {}
    for row, each in found:
        layers.setdefault(row.layer, []).append(each)
    scale = fitting_exponent(everything, margin=margin)
    least = enough(everything, scale, threshold=threshold)
    own = layer_exponents(layers, scale, margin=margin, threshold=threshold)
    at = {name: scale + own.get(name, 0) for name in layers}
    left = [n for n, of in layers.items() if worst(of, at[n]).magnitude > threshold]
    return ScaleAdvice(
        tuple(dict.fromkeys(its for _, its in everything)),
        2.0**scale,
        None if least is None else 2.0**least,
        *together(everything, scale),
        *together(everything),
        worst(everything, scale),
        worst(everything),
        own,
        tuple(left),
    )


def format_advice(
    rows: Sequence[TensorRow],
    candidates: Sequence[FloatFormat],
    margin: int,
    threshold: float,
) -> tuple[FormatAdvice, ...]:
    """The narrowest format for every kind among the rows, with a loss scale for gradients."""
    advice = []
    for kind in KINDS:
        found: list[Histogram] = [row.unscaled for row in rows if row.kind == kind]
        found = [histogram for histogram in found if histogram.numbers]
        if found:
            scaled = kind.startswith("grad_")
            best = narrowest(found, candidates, scaled=scaled, margin=margin, threshold=threshold)
            fmt, scale, lost = best or (None, 0, NOTHING)
            advice.append(FormatAdvice(kind, fmt, 2.0**scale, lost))
    return tuple(advice)

"""The format that each tensor is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from lpkernels.arithmetic import TORCH, Quantizer, Recipe, as_quantizer
from lpkernels.formats import FloatFormat, Format
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.observing import Run

#: Formats by kind; one format for all kinds; or "recipe", for the formats of each layer's recipe.
AskedFormats = Format | Quantizer | str | Mapping[str, Any]

FORWARD = ("input", "weight", "bias", "output")
BACKWARD = ("grad_output", "grad_input", "grad_weight")
KINDS = FORWARD + BACKWARD
#: The kinds that a format can be asked for; biases are counted only where a recipe rounds them.
ASKED = tuple(kind for kind in KINDS if kind != "bias")
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
    Formats(asked)


class Formats:
    """Which format each tensor has, as `diagnose` is asked.

    by_kind: the formats by kind; tensors without one are not counted. None: those of the recipes.

    Raises: TypeError, ValueError: an unknown kind, or a format without exponents.
    """

    def __init__(self, asked: AskedFormats) -> None:
        self.by_kind: dict[str, FloatFormat] | None = None
        if isinstance(asked, Mapping):
            unknown = [kind for kind in asked if kind not in ASKED]
            if unknown or not asked:
                raise ValueError(
                    f"diagnose: fmt: expected formats by {', '.join(ASKED)}; got "
                    f"{', '.join(map(str, unknown)) or 'an empty mapping'}"
                )
            given = {kind: fmt for kind, fmt in asked.items() if fmt is not None}
            self.by_kind = {k: float_format(f"diagnose: fmt: {k}", f) for k, f in given.items()}
        elif asked != RECIPE:
            self.by_kind = dict.fromkeys(ASKED, float_format("diagnose: fmt", asked))


def recipe_of(run: Run) -> Recipe:
    """The recipe of what `run` computes; torch's own outside of converted modules."""
    inner: Run | None = run
    while inner is not None and not isinstance(inner.module, Emulated):
        inner = inner.outer
    return TORCH if inner is None else cast(Emulated, inner.module).recipe

"""The format that each tensor is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import FloatFormat, Format
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.observing import Run

#: Formats by kind; one format for all kinds; or "recipe", for the formats of each layer's recipe.
AskedFormats = Format | Quantizer | str | Mapping[str, Any]

FORWARD = ("input", "weight", "output")
BACKWARD = ("grad_output", "grad_input", "grad_weight")
KINDS = FORWARD + BACKWARD
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

    Raises: TypeError, ValueError: an unknown kind, or a format without exponents.
    """

    def __init__(self, asked: AskedFormats) -> None:
        self._by_kind: dict[str, FloatFormat] | None = None
        if isinstance(asked, Mapping):
            unknown = [kind for kind in asked if kind not in KINDS]
            if unknown or not asked:
                raise ValueError(
                    f"diagnose: fmt: expected formats by {', '.join(KINDS)}; got "
                    f"{', '.join(map(str, unknown)) or 'an empty mapping'}"
                )
            given = {kind: fmt for kind, fmt in asked.items() if fmt is not None}
            self._by_kind = {k: float_format(f"diagnose: fmt: {k}", f) for k, f in given.items()}
        elif asked != RECIPE:
            self._by_kind = dict.fromkeys(KINDS, float_format("diagnose: fmt", asked))

    def of(self, run: Run) -> Mapping[str, Format]:
        """The formats by kind of what `run` computes; tensors without one are not counted."""
        if self._by_kind is not None:
            return self._by_kind
        inner: Run | None = run
        while inner is not None and not isinstance(inner.module, Emulated):
            inner = inner.outer
        if inner is None:
            return {}
        assert isinstance(inner.module, Emulated)
        recipe = inner.module.recipe
        given = {kind: getattr(recipe, kind) for kind in KINDS}
        return {kind: quantizer.fmt for kind, quantizer in given.items() if quantizer is not None}

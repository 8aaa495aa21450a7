"""Which tensors are counted, and the format that each is compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from lpkernels.arithmetic import TORCH, Quantizer, Recipe, as_quantizer
from lpkernels.formats import FloatFormat, Format
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.observing import Run

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
            raise ValueError(
                f"diagnose: fmt: expected formats by {', '.join(ASKED)}; got "
                f"{', '.join(map(str, unknown)) or 'an empty mapping'}"
            )
        given = {kind: fmt for kind, fmt in asked.items() if fmt is not None}
        return {kind: float_format(f"diagnose: fmt: {kind}", fmt) for kind, fmt in given.items()}
    if asked == RECIPE:
        return None
    return dict.fromkeys(ASKED, float_format("diagnose: fmt", asked))


def recipe_of(run: Run) -> Recipe:
    """The recipe of what `run` computes; torch's own outside of converted modules."""
    inner: Run | None = run
    while inner is not None and not isinstance(inner.module, Emulated):
        inner = inner.outer
    return TORCH if inner is None else cast(Emulated, inner.module).recipe


_LEFT = frozenset("input input1 input2 data mat1 batch1 query key value hx".split())
_RIGHT = frozenset(
    "weight other mat2 batch2 vec w_ih w_hh in_proj_weight out_proj_weight q_proj_weight "
    "k_proj_weight v_proj_weight".split()
)
# In these functions "input" is the addend of their product.
_ADDING = ("addmm", "baddbmm", "addbmm", "addmv")
_NUMBER = re.compile(r"\.?\d+$")


@lru_cache(maxsize=4096)
def operands(operation: str, given: Sequence[tuple[str, int]]) -> tuple[tuple[str, str, str], ...]:
    """(argument's name, "input" or "weight", the name as a row shows it) of each tensor that is
    multiplied.

    given: names and numbers of dimensions of the floating-point arguments.
    """
    kinds = {name: _kind_of(operation, name, dimensions) for name, dimensions in given}
    found = []
    for kind in ("input", "weight"):
        names = [name for name in kinds if kinds[name] == kind]
        found += [(name, kind, name if len(names) > 1 else "") for name in names]
    return tuple(found)


def _kind_of(operation: str, name: str, dimensions: int) -> str:
    """ "input" or "weight"; "" for biases, masks and everything that no product multiplies."""
    if name == "input" and operation in _ADDING:
        return ""
    bare = _NUMBER.sub("", name)
    if bare == "params":
        # A recurrent layer has its biases among its weights.
        return "weight" if dimensions > 1 else ""
    if bare in _RIGHT:
        return "weight"
    # torch gives some arguments no name, but a number.
    return "input" if bare in _LEFT or not bare else ""

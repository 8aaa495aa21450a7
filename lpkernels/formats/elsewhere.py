"""Errors about names: the names that are near, and those that torch, ml_dtypes, papers and the OCP
have for formats, roundings and fields."""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

#: Who lists all names, where an error has no better answer.
LISTING = "the documentation lists all"
# An error shows at most this many of the names that there are.
_SHOWN = 5

#: By kind: a function that answers, for an object or a name, what it is and where it belongs, or
#: "" where it is not of the kind. The layers above the formats add their kinds.
KINDS: dict[str, Callable[[Any], str]] = {}

# Where several names of ours are given, the user may mean any of them.
_NAMES = {
    "float": "fp32",
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "fp8": "fp8_e4m3 fp8_e5m2 mxfp8 fp8_tensor fp8_row fp8_1x128",
    "float8": "fp8_e4m3 fp8_e5m2",
    "fp6": "fp6_e3m2 fp6_e2m3",
    "float6": "fp6_e3m2 fp6_e2m3",
    "fp4": "fp4_e2m1 mxfp4 nvfp4",
    "float4": "fp4_e2m1",
    "float8_e5m2": "fp8_e5m2",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3": "e4m3",
    "float8_e3m4": "e3m4",
    "float8_e5m2fnuz": "e5m2fnuz",
    "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e4m3b11fnuz": "e4m3b11fnuz",
    "float6_e3m2fn": "fp6_e3m2",
    "float6_e2m3fn": "fp6_e2m3",
    "float4_e2m1fn": "fp4_e2m1",
    "float4_e2m1fn_x2": "fp4_e2m1",
    "mxfp6": "mxfp6_e3m2 mxfp6_e2m3",
    "mxfp4_e2m1": "mxfp4",
    "int8": "int8_row int8_tensor affine8_sym fixed8_f0",
    "int4": "int4_g32 int4_g128 affine4_sym fixed4_f0",
}
#: torch's dtypes that have exactly the values of a format, with the format's name.
DTYPES = {
    f"torch.{dtype}": _NAMES[dtype]
    for dtype in (
        "float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz",
        "float8_e4m3fnuz", "float4_e2m1fn_x2",
    )
}  # fmt: skip
# The names of roundings, of orders of sums, and of a recipe's fields; no two kinds share one.
_WORDS = {
    "sr": "stochastic",
    "rne": "nearest_even",
    "rna": "nearest_away",
    "rtz": "toward_zero",
    "kahan": "compensated",
    "neumaier": "compensated",
    "tree": "pairwise",
    "recursive": "sequential",
    "activation": "input",
    "activations": "input",
    "acc": "fprop dgrad wgrad",
    "accumulator": "fprop dgrad wgrad",
    "forward": "fprop",
    "backward": "dgrad wgrad",
    "grads": "grad_output",
}
_INTEGER = re.compile(r"(u?)int([1-9]\d?)")


class Dtype(Protocol):
    """A torch.dtype, for type checkers: no torch is imported here."""

    @property
    def is_floating_point(self) -> bool: ...
    @property
    def is_complex(self) -> bool: ...


def unless_dtype(value: Any) -> Any:
    """For a dtype of torch or ml_dtypes the name of the format with its values; anything else as
    it is.

    Raises:  TypeError: a torch.dtype whose values are no format's.
    """
    kind = type(value)
    # A class of ml_dtypes, or NumPy's dtype of it.
    scalar = value if kind is type else getattr(value, "type", None)
    if isinstance(scalar, type) and scalar.__module__ == "ml_dtypes":
        return _NAMES.get(scalar.__name__, value)
    if kind.__name__ != "dtype" or kind.__module__ != "torch":
        return value
    name = str(value)
    if name in DTYPES:
        return DTYPES[name]
    raise TypeError(
        f"{name} is no format here{name_here(name) or '.'} The dtypes whose values are a format's "
        f"are {nearest(name, DTYPES, 'docs/formats.md lists all')}"
    )


def name_here(name: str) -> str:
    """The end of the error about an unknown format: the name to write here; "" if none is known."""
    lower = name.lower().removeprefix("torch.")
    if lower in _NAMES:
        return _here(_NAMES[lower])
    if "rceil" in lower:
        # torchao's name of the rule.
        return _here(lower.replace("rceil", "up"))
    if match := _INTEGER.fullmatch(lower):
        unsigned, bits = match[1], int(match[2])
        # A FixedFormat has at most 24 bits, an AffineFormat 16.
        if bits > 24:
            return f"; whole numbers have at most 24 bits here: '{unsigned}fixed24_f0'."
        scaled = f", and codes with a scale 'affine{bits}'" if bits <= 16 else ""
        return f"; whole numbers are '{unsigned}fixed{bits}_f0' here{scaled}."
    return ""


def word_here(word: object, choices: Iterable[str]) -> str:
    """As `name_here`, for a word that is none of the choices."""
    names = _WORDS.get(str(word).lower(), "")
    return _here(names) if set(names.split()) <= set(choices) else ""


def _here(names: str) -> str:
    return f"; it is {' or '.join(map(repr, names.split()))} here." if names else ""


def nearest(
    name: object,
    names: Iterable[str],
    listing: str = LISTING,
    *,
    shown: Callable[[str], str] = str,
) -> str:
    """The names that an error shows for one that is not there, with commas between.

    They are all that there are, in their order, up to five; else the five nearest ones, the nearest
    first, with the number of the others and how to list all.

    Args:
        name: what came.
        names: what there is.
        listing: who lists all, as "lp.recipes() lists all".
        shown: the form in which a name is shown.
    """
    choices = list(dict.fromkeys(names))
    if len(choices) <= _SHOWN:
        return ", ".join(map(shown, choices))
    by_lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=_SHOWN, cutoff=0.0)
    more = len(choices) - len(near)
    return f"{', '.join(shown(by_lower[lower]) for lower in near)} and {more} more ({listing})"


def of_another_kind(value: Any, *expected: str) -> str:
    """The end of the error about a value that is of none of the `expected` kinds: what it is, and
    where it belongs; "" if that is not known."""
    answers = (says(value) for kind, says in KINDS.items() if kind not in expected)
    what = next(filter(None, answers), "")
    return f"; it is {what}" if what else ""

"""The forms in which Quantizer, Accumulator and Recipe are written down: texts and plain values.

The text of a Quantizer and of an Accumulator is a name, then options after colons. The text of a
Recipe is a call, ``Recipe(input='e5m2', fprop='e6m9_chunk64')``.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from lpkernels.formats.checks import did_you_mean
from lpkernels.formats.elsewhere import field_here
from lpkernels.rng import RNGS

_NUMBERS = ("bits", "block", "aligned_bits", "interleaved")
# Numbers that may be negative.
_SIGNED = ("least_exponent",)

# field='text' within a call, and the comma after it.
_FIELD = re.compile(r"""\s*(\w+)\s*=\s*(['"])([^'"]*)\2\s*(?:,\s*|$)""")

T = TypeVar("T", bound="PlainValues")


class PlainValues:
    """A frozen description with a plain value for each of its fields."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as texts, numbers, lists of texts and None, as JSON holds them."""
        return {name: _plain(getattr(self, name)) for name in field_names(type(self))}

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """The description of `to_dict`; a field that is left out has its default.

        Raises:  TypeError: no mapping.  ValueError: an unknown field; or as the constructor.
        """
        label = f"{cls.__name__}.from_dict"
        if not isinstance(values, Mapping):
            raise TypeError(
                f"{label}: expected a mapping of fields as to_dict() gives it, got "
                f"{type(values).__name__} {values!r}"
            )
        for name in values:
            check_field(label, name, field_names(cls))
        return cls(**values)


def field_names(described: type) -> list[str]:
    """The names of a dataclass's fields, in order."""
    return [field.name for field in fields(described)]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, int) else str(value)


def check_field(
    label: str, name: str, known: list[str], error: type[Exception] = ValueError
) -> None:
    """Raises: error: `name` is not among the fields that are known."""
    if name not in known:
        near = field_here(name) or did_you_mean(name, known)
        raise error(f"{label}: has no field {name!r}{near} Its fields are {', '.join(known)}")


def checked_text(label: str, text: object, form: str) -> str:
    """Raises: TypeError: no str."""
    if not isinstance(text, str):
        raise TypeError(
            f"{label}: expected a str of the form {form}, got {type(text).__name__} {text!r}"
        )
    return text


def call_text(name: str, values: Mapping[str, object]) -> str:
    """``name(key='value', ...)``; `parse_call` reads it."""
    return f"{name}({', '.join(f'{key}={str(value)!r}' for key, value in values.items())})"


def parse_call(name: str, text: str, keys: list[str], example: str) -> dict[str, str]:
    """The texts of ``name(key='value', ...)`` by key, each at most once, in either quotes.

    Raises:  ValueError: another form; the message gives the example.
    """
    call = re.fullmatch(rf"\s*{name}\((.*)\)\s*", text, re.DOTALL)
    if call is None:
        raise ValueError(f"{name}.parse: cannot read {text!r}; expected {example}")
    values: dict[str, str] = {}
    rest = call[1].strip()
    while rest:
        field = _FIELD.match(rest)
        if field is None:
            raise ValueError(f"{name}.parse: cannot read {rest!r} in {text!r}; expected {example}")
        key, _, value = field.groups()
        check_field(f"{name}.parse", key, keys)
        if key in values:
            raise ValueError(f"{name}.parse: {text!r} gives its {key} twice; write it once")
        values[key] = value
        rest = rest[field.end() :]
    return values


def parse_options(text: str, parts: list[str], keys: tuple[str, ...]) -> dict[str, str]:
    """``[rounding]``, ``[rng]`` and ``key=value`` parts of a text form, each at most once."""
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            key, value = ("rng" if part in RNGS else "rounding"), part
        elif key not in keys or not value or not _reads(key, value):
            raise ValueError(
                f"cannot read {part!r} in {text!r}; expected a rounding, 'philox' or "
                f"{', '.join(f'{key}=<value>' for key in keys)}"
            )
        if key in options:
            raise ValueError(f"{text!r} gives its {key} twice; write it once")
        options[key] = value
    return options


def _reads(key: str, value: str) -> bool:
    if key in _SIGNED:
        return value.removeprefix("-").isdecimal()
    return key not in _NUMBERS or value.isdecimal()

"""The forms in which frozen descriptions are written down: texts and plain values.

Most texts are a head and options, ``e6m9_chunk64:toward_zero:bits=4`` or ``cpt:3-8/8,cycles=8``: an
option is a field of the class as ``name=value``, or a value that needs no name. The text of a
Recipe is a call, ``Recipe(input='e5m2', fprop='e6m9_chunk64')``.
"""

import ast
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from lpkernels.formats.elsewhere import nearest, word_here

T = TypeVar("T", bound="PlainValues")


class PlainValues:
    """A frozen description with a plain value for each of its fields."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as texts, numbers, lists of texts and None, as JSON holds them."""
        return {name: _plain(getattr(self, name)) for name in field_names(type(self))}

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """The description of `to_dict`; a field that is left out has its default.

        Raises:  TypeError: no mapping.  ValueError: a field that there is not.  And the errors of
            the constructor.
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
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, int | float) else str(value)


def check_field(
    label: str, name: str, fields: list[str], error: type[Exception] = ValueError
) -> None:
    """Raises: error: `name` is not among the fields that are known."""
    if name not in fields:
        kind = label.partition(".")[0]
        near = nearest(name, fields, f"help(lpkernels.{kind}) lists all")
        advice = word_here(name, fields) or f"; expected one of {near}"
        raise error(f"{label}: has no field {name!r}{advice}")


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
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != name or call.args:
            raise ValueError(f"no call of {name} with named arguments")
        values = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        if len(values) < len(call.keywords):
            raise ValueError("a field is given twice")
        if wrong := [key for key, value in values.items() if not isinstance(value, str)]:
            raise ValueError(f"{wrong[0]} is no text in quotes")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(
            f"{name}.parse: cannot read {text!r} ({error}); expected {example}"
        ) from None
    for key in values:
        check_field(f"{name}.parse", key, keys)
    return values


@dataclass(frozen=True)
class Option:
    """How a text gives one field: as ``name=value``, or by the value alone.

    default: the text leaves the field out there; a function takes the described object.
    alone: whether a word without ``=`` is a value of this field; shown: how errors list such words.
    """

    name: str
    default: Any
    read: Callable[[str], Any] = str
    write: Callable[[Any], str] = str
    alone: Callable[[str], bool] | None = None
    shown: str = ""


def whole(text: str) -> int:
    """A whole number.  Raises ValueError otherwise."""
    if not text.removeprefix("-").isdecimal():
        raise ValueError("expected a whole number")
    return int(text)


def number(text: str) -> float:
    """A finite number.  Raises ValueError otherwise."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


# How the values of a field are read, by the type of its default.
_READERS: Mapping[type, Callable[[str], Any]] = {int: whole, float: number}


def options_of(
    described: Callable[..., Any], **special: Mapping[str, Any] | None
) -> dict[str, Option]:
    """The options of a class or function, by field: its arguments that have defaults.

    Args: special: of these fields, what their Option has of its own; None: the field is none.
    """
    options = {}
    for name, argument in inspect.signature(described).parameters.items():
        settings = special.get(name, {})
        if argument.default is not argument.empty and settings is not None:
            read = _READERS.get(type(argument.default), str)
            plain = {"name": name, "default": argument.default, "read": read}
            options[name] = Option(**{**plain, **settings})
    return options


def read_options(text: str, parts: Iterable[str], options: Mapping[str, Option]) -> dict[str, Any]:
    """The values of a text's parts by field, each at most once.

    Raises: ValueError: a part that is no option, a value that cannot be read, a field twice.
    """
    values: dict[str, Any] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        field = _field(name, value if equals else None, options)
        if field is None:
            words = [option.shown for option in options.values() if option.alone]
            pairs = [f"{o.name}=<value>" for o in options.values() if not o.alone]
            forms = [", ".join(words), nearest(name, pairs)]
            expected = " or ".join(filter(None, forms))
            raise ValueError(f"cannot read {part!r} in {text!r}; expected {expected}")
        if field in values:
            raise ValueError(f"{text!r} gives its {options[field].name} twice; write it once")
        try:
            values[field] = options[field].read(value if equals else part)
        except ValueError as error:
            raise ValueError(f"cannot read {part!r} in {text!r}: {error}") from error
    return values


def _field(name: str, value: str | None, options: Mapping[str, Option]) -> str | None:
    """The field of ``name=value``, or of the word ``name``, where there is one."""
    for field, option in options.items():
        if option.alone:
            fits = value is None and option.alone(name)
        else:
            fits = bool(value) and option.name == name
        if fits:
            return field
    return None


def written_options(described: object, options: Mapping[str, Option]) -> list[str]:
    """The parts of the text, in the order of the options; a field at its default has none."""
    parts = []
    for field, option in options.items():
        value, default = getattr(described, field), option.default
        if value != (default(described) if callable(default) else default):
            text = option.write(value)
            parts.append(text if option.alone else f"{option.name}={text}")
    return parts

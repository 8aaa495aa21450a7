"""Configurations made of frozen dataclasses whose fields carry their own documentation and checks.

One text describes a field wherever it shows: as the help of its option, and in errors.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, get_type_hints

import lpkernels
from lpkernels.formats.elsewhere import nearest

__all__ = ["setting"]

_TEXT, _LEAST, _CHECK, _OPTION = "text", "least", "check", "option"


def setting(
    default: Any,
    text: str,
    *,
    least: float | None = None,
    check: Callable[[Any], object] | None = None,
    option: bool | str = True,
) -> Any:
    """A field of a configuration, whose section checks it when it is made.

    Args:
        default: its default; the type of the annotation.
        text: its meaning, one or two sentences; the help of its option.
        least: the smallest value allowed.
        check: raises ValueError or TypeError for a value that is not allowed; not called for "" and
            None.
        option: whether the command line has an option of this name; another name for it, where
            torchrun would take this one for its own.
    """
    metadata = {_TEXT: text, _LEAST: least, _CHECK: check, _OPTION: option}
    return dataclasses.field(default=default, metadata=metadata)


def one_of(*names: str) -> Callable[[str], None]:
    """A check that the value is one of `names`."""

    def check(value: str) -> None:
        if value not in names:
            listed = nearest(value, names, "the help of the option lists all")
            raise ValueError(f"expected one of {listed}, got {value!r}")

    return check


def at_most(most: int) -> Callable[[int], None]:
    """A check that the value is not above `most`."""

    def check(value: int) -> None:
        if value > most:
            raise ValueError(f"expected at most {most}, got {value}")

    return check


def positive(value: float) -> None:
    """A check that the value is a positive finite number."""
    if not 0 < value < math.inf:
        raise ValueError(f"expected a positive number, got {value}")


@dataclass(frozen=True)
class Section:
    """A part of a configuration: its fields are settings, checked when it is made.

    Whole numbers given for a float become floats and lists become tuples, so that equal
    configurations have equal texts.

    Raises:
        TypeError: a value of another type.
        ValueError: a value that its field refuses.
    """

    #: The title of the options of this section.
    TITLE: ClassVar[str] = ""

    def __post_init__(self) -> None:
        hints = _hints(type(self))  # type: ignore[arg-type]
        for field in dataclasses.fields(self):
            if _TEXT in field.metadata:
                value = _typed(self._label(field), getattr(self, field.name), hints[field.name])
                object.__setattr__(self, field.name, value)
                self._check(field, value)

    def _label(self, field: "dataclasses.Field[Any]") -> str:
        return f"{type(self).__name__}: {field.name}"

    def _check(self, field: "dataclasses.Field[Any]", value: Any) -> None:
        least, check = field.metadata[_LEAST], field.metadata[_CHECK]
        if least is not None and value is not None and not least <= value < math.inf:
            # A record of a run cannot hold infinity.
            what = f"at least {least}{' and finite' if value == math.inf else ''}"
            raise ValueError(f"{self._label(field)} must be {what}, got {value}")
        if check is not None and value is not None and value != "":
            try:
                check(value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{self._label(field)}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, as JSON and checkpoints hold them."""
        return {field.name: plain(getattr(self, field.name)) for field in settings(type(self))}


@cache
def _hints(section: type) -> dict[str, Any]:
    """The annotations, found once: a sweep makes thousands of sections."""
    return get_type_hints(section)


def settings(section: type[Section]) -> list["dataclasses.Field[Any]"]:
    """The fields of `section` that are settings, in order."""
    return [field for field in dataclasses.fields(section) if _TEXT in field.metadata]


# For each field its name, and the name of the section that has it.
_OWNERS: dict[str, str] = {}


def claim(name: str, section: type[Section]) -> None:
    """Notes the names of the fields of the section called `name`; nothing is noted on an error.

    Raises: ValueError: another section has a field of the same name.
    """
    names = [field.name for field in settings(section)]
    for field in names:
        if _OWNERS.get(field, name) != name:
            raise ValueError(
                f"{section.__name__}.{field}: section {_OWNERS[field] or 'run'!r} has a field of "
                "that name, and every field of a run needs a name of its own"
            )
    _OWNERS.update(dict.fromkeys(names, name))


def text_of(field: "dataclasses.Field[Any]") -> str:
    """The documentation of a setting."""
    return str(field.metadata[_TEXT])


def least_of(field: "dataclasses.Field[Any]") -> float | None:
    """The smallest value of a setting, if there is one."""
    return field.metadata[_LEAST]


def check_of(field: "dataclasses.Field[Any]") -> Callable[[Any], object] | None:
    """The check of a setting's values, if there is one."""
    return field.metadata[_CHECK]


def is_option(field: "dataclasses.Field[Any]") -> bool:
    """Whether the command line has an option for a setting."""
    return bool(field.metadata[_OPTION])


def name_of(field: "dataclasses.Field[Any]") -> str:
    """The other name of a setting's option; "" where there is none."""
    option = field.metadata[_OPTION]
    return option if isinstance(option, str) else ""


def plain(value: Any) -> Any:
    """Tuples as lists, all else as it is."""
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def unknown(where: str, names: list[str], known: list[str], version: str = "") -> ValueError:
    """The error for names that `where` does not have; `version`: of the lpkernels that wrote it."""
    if version:
        hint = f"; written by lpkernels {version}, this is {lpkernels.__version__}"
    else:
        hint = f"; expected one of {nearest(names[0], known, '`lpkernels train --help` lists all')}"
    return ValueError(f"{where}: unknown field {', '.join(names)}{hint}")


def section_from(section: type[Section], values: Mapping[str, Any], version: str = "") -> Any:
    """The section of plain values; a field that it does not have is a ValueError."""
    known = [field.name for field in settings(section)]
    others = sorted(set(values) - set(known))
    if others:
        raise unknown(section.__name__, others, known, version)
    return section(**values)


def _typed(label: str, value: Any, hint: Any) -> Any:
    """`value` as the type that the annotation `hint` asks for."""
    allowed = getattr(hint, "__args__", (hint,)) if type(None) in _members(hint) else (hint,)
    if value is None and type(None) in _members(hint):
        return None
    kinds = [kind for kind in allowed if kind is not type(None)]
    kind = getattr(kinds[0], "__origin__", kinds[0])
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is tuple and isinstance(value, list | tuple):
        return _tuples(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{label}: expected {kind.__name__}, got {type(value).__name__} {value!r}")
    return value


def _members(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__args__", ())


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value

"""Options made from the settings of a configuration: a new section brings its own options."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, get_type_hints

import typer

from lpkernels.cli._options import valid
from lpkernels.experiments.settings import (
    Section,
    check_of,
    is_option,
    least_of,
    name_of,
    settings,
    text_of,
)

Command = Callable[..., None]


def with_settings(sections: Mapping[str, type[Section]]) -> Callable[[Command], Command]:
    """Gives a command an option for every setting of `sections`, in a group for each section.

    The command takes them together as its argument `values`, a dict by the settings' names.
    """

    def decorate(command: Command) -> Command:
        options = [option for section in sections.values() for option in options_of(section)]
        own = list(inspect.signature(command, eval_str=True).parameters.values())
        own = [parameter for parameter in own if parameter.name != "values"]
        names = [option.name for option in options]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            values = {name: given.pop(name) for name in names}
            command(**given, values=values)

        parameters = [*own, *options]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return decorate


def options_of(section: type[Section]) -> list[inspect.Parameter]:
    """The options of a section's settings, as parameters of a command."""
    hints = get_type_hints(section)
    found = []
    for field in settings(section):
        if not is_option(field):
            continue
        check, least = check_of(field), least_of(field)
        whole = least is not None and float(least).is_integer()
        name = name_of(field)
        option = typer.Option(
            *((name, f"--{field.name.replace('_', '-')}") if name else ()),
            callback=None if check is None else valid(check),
            help=text_of(field),
            min=int(least) if whole and least is not None else least,
            rich_help_panel=section.TITLE or None,
        )
        found.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=Annotated[hints[field.name], option],
            )
        )
    return found


def wrong_option(error: Exception, names: Iterable[str]) -> typer.BadParameter:
    """Turns a configuration's error, which begins with a field's name, into the command line's."""
    field = re.match(r"(?:[A-Z]\w*: )?(\w+):? ", str(error))
    if field is None or field[1] not in set(names):
        return typer.BadParameter(str(error))
    return typer.BadParameter(str(error), param_hint=f"--{field[1].replace('_', '-')}")

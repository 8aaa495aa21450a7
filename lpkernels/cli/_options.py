"""The common part of the commands: the console, options, and the message of a stopped run."""

import errno
import functools
import importlib
import inspect
import operator
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_origin

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lpkernels.experiments.processes.torchrun import launched
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.formats.elsewhere import nearest

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

# The control characters that a terminal would obey: all but the ends of lines and tabs.
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160))}
del _CONTROLS[ord("\n")], _CONTROLS[ord("\t")]


class PlainConsole(Console):
    """A console on which brackets, colons and control characters in names are text and no orders:
    names come from files that somebody else may have written."""

    def render_str(self, text: str, **options: Any) -> Text:
        plain = {"markup": False, "emoji": False}
        return super().render_str(text.translate(_CONTROLS), **{**options, **plain})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(segment.text.translate(_CONTROLS), segment.style)


console = PlainConsole()
# More columns than any table has.
_UNBOUNDED = 100_000


def say(text: object) -> None:
    """Prints a text as it is, whatever the width of the terminal."""
    console.print(str(text), soft_wrap=True, highlight=False)


def show_table(table: Table) -> None:
    """Prints a table as wide as the console, or at its own width where the console would have to
    break words: such rows go on in the next line of a terminal, and stay whole in a file."""
    width = console.measure(table, options=console.options.update(max_width=_UNBOUNDED))
    if width.minimum <= console.width:
        console.print(table)
    else:
        PlainConsole(width=width.maximum).print(table, crop=False)


def valid(check: str | Callable[[Any], object]) -> Callable[[Any], Any]:
    """The callback of an option or argument: its value must pass `check`, else the error names it.

    It runs before options that are missing are named: a file that is not there is named first.

    Args:
        check: a function, or its name as "module:function" below lpkernels. The module is then
            imported when a value is checked, so that a command's help needs none of it.
    """

    def callback(value: Any) -> Any:
        if value is not None and value != "":
            try:
                function = imported(check) if isinstance(check, str) else check
                function(value)
            except (OSError, TypeError, ValueError) as error:
                raise typer.BadParameter(str(error)) from error
        return value

    return callback


def imported(name: str) -> Any:
    """What "module:name" below lpkernels is."""
    module, _, attribute = name.partition(":")
    return operator.attrgetter(attribute)(importlib.import_module(f"lpkernels.{module}"))


def one_of(*names: str) -> Callable[[str], None]:
    """A check that the value is one of `names`."""

    def check(value: str) -> None:
        if value not in names:
            listed = nearest(value, names, "the help of the option lists all")
            raise ValueError(f"expected one of {listed}, got {value!r}")

    return check


def bytes_from(text: str) -> int:
    """The number of bytes of a text such as "64KiB", "1.5 MB" or "65536".

    Raises: ValueError: no such text, or not above 0.
    """
    try:
        size = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        size = ByteSize(0)
    if not size:
        raise ValueError(f"expected a size such as 64KiB or 1.5MB, above 0, got {text!r}")
    return size


@contextmanager
def named_options(names: Iterable[str] = (), option: str = "") -> Iterator[None]:
    """An error in the input becomes a message that names its option: `option`, or the one of
    `names` with which the error begins, as those of settings do."""
    try:
        yield
    except (
        FileExistsError, FileNotFoundError, NotImplementedError, TypeError, ValueError,
    ) as error:  # fmt: skip
        field = re.match(r"(?:[A-Z]\w*: )?(\w+):? ", str(error))
        if not option and field is not None and field[1] in set(names):
            option = f"--{field[1].replace('_', '-')}"
        raise typer.BadParameter(str(error), param_hint=option or None) from error


def with_settings(
    sections: Mapping[str, Mapping[str, "FieldInfo"]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for every field of settings, in a group for each section.

    The command takes their values together as its argument `values`, a dict by the fields' names.

    Args:
        sections: the fields of the sections by their names; "" is the run itself.
    """
    from lpkernels.experiments.settings import option_of

    options = [
        _parameter(name, field, section, option_of(name, field))
        for section, fields in sections.items()
        for name, field in fields.items()
        if option_of(name, field)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        declared = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [
            *(parameter for parameter in declared if parameter.name != "values"),
            *options,
        ]

        @functools.wraps(command)
        def called(**arguments: Any) -> None:
            values = {option.name: arguments.pop(option.name) for option in options}
            command(**arguments, values=values)

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return decorate


def _parameter(name: str, field: "FieldInfo", section: str, option_name: str) -> inspect.Parameter:
    """A field of settings as a parameter of a command, whose option is `given`."""
    kind = str if get_origin(field.annotation) is Literal else field.annotation
    least = [bound.ge for bound in field.metadata if hasattr(bound, "ge")]
    usual_name = f"--{name.replace('_', '-')}"
    option = typer.Option(
        *((option_name, usual_name) if option_name != usual_name else ()),
        help=field.description,
        min=least[0] if least else None,
        rich_help_panel=(section or "run").replace("_", " ").capitalize(),
    )
    annotation = Annotated[kind, option]  # type: ignore[valid-type]
    where = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, where, default=field.default, annotation=annotation)


Out = Annotated[Path, typer.Option(file_okay=False, help="Folder for records and checkpoints.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of weights, order and stochastic rounding.")]


def show_picture(
    draw: Callable[[], Any], path: Path, *, option: str = "--out", title: str = ""
) -> None:
    """Writes the figure that `draw` makes into a file, which `option` names."""
    from lpkernels.report.figures import save_figure

    with named_options():
        figure = draw()
    with named_options(option=option), system_errors("no picture was written"):
        say(f"picture in {save_figure(figure, path, title)}")


def check_one_process(command: str) -> None:
    """Refuses a command under several processes, each of which would write the same files."""
    count = launched() or 1
    if count > 1:
        raise typer.BadParameter(
            f"{command} runs in one process, but torchrun started {count}; of the commands that "
            "train, only `lpkernels train` shares its work"
        )


# Advice on an error of the system, by its number.
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    **dict.fromkeys(
        (errno.EROFS, errno.EACCES, errno.EPERM), "choose a folder that can be written"
    ),
    errno.ENOTDIR: "choose a folder that is not below a file",
}


@contextmanager
def system_errors(again: str) -> Iterator[None]:
    """An error of the system ends the command with one sentence; `again` says how to go on."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        advice = f"; {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""
        say(f"{what}{advice}; {again}")
        raise typer.Exit(1) from error


def this_command() -> str:
    """The command line that is at work."""
    return " ".join(["lpkernels", *map(shlex.quote, sys.argv[1:])])


def stopped(stop: Interrupted, command: str = "") -> NoReturn:
    """Says how a stopped run goes on, and ends the command; "": by this very command."""
    say(f"{stop}\nresume with: {command or this_command()}")
    # 128 + SIGINT, as shells report it
    raise typer.Exit(130) from stop

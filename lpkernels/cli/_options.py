"""What the commands share: the console, options, and what a stopped run says."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from lpkernels.experiments.processes.torchrun import launched
from lpkernels.experiments.training.interrupts import Interrupted

console = Console()
# More columns than any table has.
_UNBOUNDED = 100_000


def show_table(table: Table) -> None:
    """Prints a table as wide as the console, or at its own width where the console would have to
    break words: such rows go on in the next line of a terminal, and stay whole in a file."""
    width = console.measure(table, options=console.options.update(max_width=_UNBOUNDED))
    if width.minimum <= console.width:
        console.print(table)
    else:
        Console(width=width.maximum).print(table, crop=False)


def valid(check: Callable[[Any], object]) -> Callable[[Any], Any]:
    """The callback of an option or argument: its value must pass `check`, else the error names it.

    It runs before options that are missing are named: a file that is not there is named first.
    """

    def callback(value: Any) -> Any:
        if value is not None and value != "":
            try:
                check(value)
            except (OSError, TypeError, ValueError) as error:
                raise typer.BadParameter(str(error)) from error
        return value

    return callback


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the command line gives the option; else it has its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


Out = Annotated[Path, typer.Option(help="Folder for records and checkpoints.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of weights, order and stochastic rounding.")]


def check_one_process(command: str) -> None:
    """Refuses a command under several processes, each of which would write the same files."""
    count = launched() or 1
    if count > 1:
        raise typer.BadParameter(
            f"{command} runs in one process, but torchrun started {count}; of the commands that "
            "train, only `lpkernels train` shares its work"
        )


def stopped(stop: Interrupted, command: str) -> NoReturn:
    console.print(f"{stop}\nresume with: {command}", soft_wrap=True, highlight=False)
    # 128 + SIGINT, as shells report it
    raise typer.Exit(130) from stop

"""What the commands share: the console, options, and what a stopped run says."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from lpkernels.experiments.interrupts import Interrupted

console = Console()


def valid(check: Callable[[Any], object]) -> Callable[[Any], Any]:
    """An option's callback: its value must pass `check`, else the error names the option."""

    def callback(value: Any) -> Any:
        if value is not None and value != "":
            try:
                check(value)
            except (TypeError, ValueError) as error:
                raise typer.BadParameter(str(error)) from error
        return value

    return callback


Out = Annotated[Path, typer.Option(help="Folder for records and checkpoints.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of weights, order and stochastic rounding.")]


def stopped(stop: Interrupted, command: str) -> NoReturn:
    console.print(f"{stop}\nresume with: {command}", soft_wrap=True, highlight=False)
    # 128 + SIGINT, as shells report it
    raise typer.Exit(130) from stop

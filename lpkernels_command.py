"""The `lpkernels` command.

It stands outside the package because importing any module of lpkernels imports torch, which takes
seconds: the list of commands and the versions need neither, and a command imports its own module
alone, from lpkernels/cli.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import importlib.util
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

_INSTALL = 'pip install "lpkernels[lab]"'
#: The Typer application of each command in lpkernels/cli, and its line in the list of commands.
COMMANDS = {
    "demo": (
        "demo.app",
        "Train one network on real digits in fp32, in FP8, and in FP8 with too narrow an "
        "accumulator.",
    ),
    "formats": (
        "numbers.formats_app",
        "The named formats, the aliases of block formats and the names of tables, or one format in "
        "detail.",
    ),
    "recipes": (
        "numbers.recipes_app",
        "The named recipes, or one with its policy, its source and its departures from the source.",
    ),
    "quantize": ("numbers.quantize_app", "Send values through a format: code, result and error."),
    "train": ("train.app", "Train one network and keep its records and checkpoints."),
    "report": ("report.app", "Show the table and the curves of finished or stopped runs."),
    "bench": (
        "bench.app",
        "Time one emulated matrix product beside torch's in float32, and say which kernels ran.",
    ),
    "doctor": (
        "doctor.app",
        "Show what this installation can do, and the reason for everything it lacks.",
    ),
    "accumulate": (
        "accumulate.app",
        "The accumulator each product of a network needs, forward and backward; proof by "
        "simulation.",
    ),
    "schedule": (
        "schedule.app",
        "Draw a schedule of precisions: the bits of the steps, how many steps have them, mean "
        "and cost.",
    ),
    "assign": (
        "assign.app",
        "Assign low and high precision to every tensor of a network's training, for a budget.",
    ),
    "sweep": ("sweep.app", "Many training runs as one experiment: run, status, table, plot."),
    "frontier": (
        "frontier.app",
        "Which precision is worth its memory, from a few measurements: run, status, table, "
        "predict, choose, plot.",
    ),
    "units": (
        "units.app",
        "Show all tensor cores, or one in detail with the known and unknown parts of its "
        "arithmetic.",
    ),
}


def main() -> None:
    """The entry point. `doctor` and `--version` need only numpy and torch, so that they can tell
    what an installation lacks. All other commands need the [lab] extra; without it they end with a
    message and no traceback."""
    if sys.argv[1:] == ["--version"]:
        print(versions())
        return
    if sys.argv[1:] == ["doctor"]:
        from lpkernels.report import doctor

        print(doctor.report())
        return
    # While a command is imported, collections would search torch's objects in vain, which takes a
    # fifth of the start.
    gc.disable()
    try:
        application()()
    except ImportError as error:
        hint = "" if "pip install" in str(error) else f"; is the [lab] extra installed? {_INSTALL}"
        sys.exit(f"lpkernels: {error}{hint}")
    finally:
        gc.enable()


def versions() -> str:
    """The version of lpkernels and torch's, a line each, without importing either."""
    build = runpy.run_path(str(_file("lpkernels", "_build.py")))
    try:
        torch = runpy.run_path(str(_file("torch", "version.py")))["__version__"]
    except FileNotFoundError:
        torch = "not installed"
    return f"lpkernels {build['version']()}\ntorch {torch}"


def _file(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(package)
    return Path(spec.origin).with_name(name)


def application() -> typer.Typer:
    """The command as a Typer application.

    Raises:
        SystemExit: typer or rich is not installed; the message says how to install them.
    """
    try:
        import rich  # noqa: F401
        import typer
        from typer.core import TyperCommand, TyperGroup
    except ImportError as missing:
        raise SystemExit(
            f"lpkernels: the command needs {missing.name}: {_INSTALL}; "
            "`lpkernels doctor` and `lpkernels --version` run without it"
        ) from missing

    class Commands(TyperGroup):
        """Imports the module of a command where that command is called."""

        def __init__(self, **settings: Any) -> None:
            lines = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}
            super().__init__(**{**settings, "commands": lines})
            self._lists = False

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if self._lists or cmd_name not in COMMANDS:
                return super().get_command(ctx, cmd_name)
            module, _, attribute = COMMANDS[cmd_name][0].partition(".")
            app = getattr(importlib.import_module(f"lpkernels.cli.{module}"), attribute)
            if not gc.isenabled():
                # What is imported lives as long as the process.
                gc.freeze()
                gc.enable()
            command = typer.main.get_command(app)
            command.name = cmd_name
            return command

        def format_help(self, ctx: Any, formatter: Any) -> None:
            self._lists = True
            super().format_help(ctx, formatter)

    app = typer.Typer(
        name="lpkernels",
        cls=Commands,
        help="Emulated low-precision arithmetic for training, exact to the bit.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
        rich_markup_mode="markdown",
    )

    def show_version(shown: bool) -> None:
        if shown:
            typer.echo(versions())
            raise typer.Exit

    @app.callback()
    def _before_commands(
        version: bool = typer.Option(
            False,
            "--version",
            callback=show_version,
            is_eager=True,
            help="Show the versions of lpkernels and torch.",
        ),
    ) -> None:
        pass

    return app


if __name__ == "__main__":
    main()

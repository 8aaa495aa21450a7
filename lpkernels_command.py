"""The `lpkernels` command.

It stands outside the package because importing any module of lpkernels imports torch, which takes
seconds: the list of commands and the versions need neither, and a command imports its own module
alone, from lpkernels/cli.
"""

from __future__ import annotations

import ast
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
#: The module in lpkernels/cli of each command. The module's function of the command's name has the
#: line for the list of commands, the first paragraph of its docstring; it is the command, unless
#: the module has a Typer application `app`.
COMMANDS = {
    "demo": "demo", "formats": "names", "recipes": "names", "units": "names",
    "quantize": "quantize", "train": "train", "report": "report", "bench": "bench",
    "doctor": "names", "accumulate": "accumulate", "schedule": "schedule", "assign": "assign",
    "sweep": "sweep", "frontier": "frontier", "vectors": "names",
}  # fmt: skip


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
    return Path(spec.origin).parent / name


def line_of(command: str) -> str:
    """The line of a command in the list, without importing its module."""
    source = _file("lpkernels", f"cli/{COMMANDS[command]}.py").read_text(encoding="utf-8")
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    (docstring,) = (ast.get_docstring(node) for node in functions if node.name == command)
    return " ".join((docstring or "").partition("\n\n")[0].split())


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
            commands = {name: TyperCommand(name) for name in COMMANDS}
            super().__init__(**{**settings, "commands": commands})
            self._lists = False

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if self._lists or cmd_name not in COMMANDS:
                return super().get_command(ctx, cmd_name)
            module = importlib.import_module(f"lpkernels.cli.{COMMANDS[cmd_name]}")
            app = getattr(module, "app", None)
            if app is None:
                app = typer.Typer(
                    add_completion=False,
                    pretty_exceptions_show_locals=False,
                    rich_markup_mode="markdown",
                )
                settings = getattr(module, "SETTINGS", {})
                app.command(**settings)(getattr(module, cmd_name))
            if not gc.isenabled():
                # What is imported lives as long as the process.
                gc.freeze()
                gc.enable()
            command = typer.main.get_command(app)
            command.name = cmd_name
            return command

        def format_help(self, ctx: Any, formatter: Any) -> None:
            self._lists = True
            for name, command in self.commands.items():
                command.help = line_of(name)
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

"""Running `lpkernels` commands in tests."""

from collections.abc import Iterable
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lpkernels.cli import app
from lpkernels.cli._options import console


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the console wide: it was made when its module was imported, perhaps in a narrow
    terminal."""
    monkeypatch.setattr(console, "_width", 200)
    monkeypatch.setattr(console, "_height", 50)


def command(name: str) -> Any:
    """The command of that name as click's object."""
    group: Any = typer.main.get_command(app)
    return group.get_command(typer.Context(group), name)


def call(*arguments: object) -> Any:
    """Runs `lpkernels arguments`, its output wide enough that no line wraps."""
    return invoked(app, arguments)


def invoked(command: typer.Typer, arguments: Iterable[object]) -> Any:
    environment = {"COLUMNS": "200", "TERMINAL_WIDTH": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(command, [str(a) for a in arguments], env=environment)


def done(*arguments: object) -> str:
    """The output of `lpkernels arguments`, which must succeed."""
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def sentence(result: Any, code: int) -> str:
    """The message of a command that ended with this code: one paragraph, no traceback."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output and not isinstance(result.exception, OSError)
    return " ".join(result.output.replace("│", " ").split())


def assert_refused(arguments: Iterable[object], *words: str) -> None:
    """Asserts that a command refuses its options with this message, in any case of letters."""
    said = sentence(call(*arguments), 2)
    assert all(word.lower() in said.lower() for word in words), said


def as_rank_0(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    """Makes this process believe that torchrun started it as the first of so many."""
    told = {"RANK": "0", "WORLD_SIZE": processes, "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))

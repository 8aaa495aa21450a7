"""Running `lpkernels` commands in tests."""

from collections.abc import Sequence
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


def call(*arguments: object) -> Any:
    """Runs `lpkernels arguments`, its output wide enough that no line wraps."""
    return invoked(app, arguments)


def invoked(command: typer.Typer, arguments: Sequence[object]) -> Any:
    environment = {"COLUMNS": "200", "TERMINAL_WIDTH": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(command, [str(a) for a in arguments], env=environment)

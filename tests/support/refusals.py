"""Tests that calls are refused: by which error, and with what message."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[[], None]


def refused(rows: Iterable[tuple[Any, ...]], error: type[Exception] | None = None) -> Test:
    """A test of rows (call, error, message), or of rows (call, message) that share an error.

    Every call, which takes no arguments, raises the error with a message that matches.
    """

    full = [row if error is None else (row[0], error, row[1]) for row in rows]

    @pytest.mark.parametrize("call, error, message", full)
    def test(call: Callable[[], Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            call()

    return test


def rejects(
    function: Callable[[Any], Any],
    rows: Iterable[tuple[Any, str]],
    error: type[Exception] | tuple[type[Exception], ...] = ValueError,
) -> Test:
    """A test of rows (argument, message): the function refuses the argument with the message."""

    @pytest.mark.parametrize("argument, message", rows)
    def test(argument: Any, message: str) -> None:
        with pytest.raises(error, match=message):
            function(argument)

    return test

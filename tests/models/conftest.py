"""What tests of whole models share: no network, and every model in turn."""

import socket
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that asks for a file from elsewhere fails at once."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a test of a model opened a network connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)

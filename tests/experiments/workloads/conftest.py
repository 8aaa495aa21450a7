"""Fixtures of the tests of data sets."""

import socket

import pytest


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("a request was made")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)

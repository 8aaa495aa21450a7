"""Ctrl-C as a request, answered between two steps; a second one interrupts at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A run was stopped by ctrl-C and its state was saved; the message says where."""


class InterruptRequest:
    """Context in which `requested` turns true on the first ctrl-C (SIGINT).

    Python delivers signals to the main thread only; in another thread ctrl-C keeps its usual
    meaning.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> "InterruptRequest":
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Inside the block SIGTERM, which Slurm and Kubernetes send, does what ctrl-C does there.

    For the main thread alone, which gets the signals. Processes that are started inside the block
    have the system's default again.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):
            # A shell may have made its background processes ignore ctrl-C.
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""Folders that several processes fill, once for all tests and all of pytest's processes."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

_PATIENCE_S = 500


class Made(NamedTuple):
    """What several processes left in a folder, and what each of them saw."""

    folder: Path
    ranks: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> "Made":
        paths = sorted(folder.glob("rank*.pt"))
        return cls(folder, [torch.load(path, weights_only=True) for path in paths])


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Made:
    """What `make` leaves in a folder; another of pytest's processes may be filling it or have
    filled it."""
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, done = root / name, root / f"{name}.done"
    try:
        folder.mkdir()
    except FileExistsError:
        deadline = time.monotonic() + _PATIENCE_S
        while not done.exists():
            assert time.monotonic() < deadline, f"{folder} is still being made"
            time.sleep(0.1)
        assert not done.read_text(), done.read_text()
        return Made.read(folder)
    failure = "interrupted"
    try:
        make(folder)
        failure = ""
    except AssertionError as error:
        failure = str(error)
        raise
    finally:
        unfinished = done.with_suffix(".tmp")
        unfinished.write_text(failure)
        unfinished.replace(done)
    return Made.read(folder)

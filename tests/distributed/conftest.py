"""The runs of two processes, made once for all tests and all of pytest's processes."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.launch import launch
from tests.distributed.runs import ALIGNED, start_and_stop

_PATIENCE_S = 300


def _made_once(root: Path, name: str, make: Callable[[Path], None]) -> Path:
    """root/name, which `make` fills; another process may be at it or have done it."""
    folder, done = root / name, root / f"{name}.done"
    try:
        folder.mkdir()
    except FileExistsError:
        deadline = time.monotonic() + _PATIENCE_S
        while not done.exists():
            assert time.monotonic() < deadline, f"{folder} is still being made"
            time.sleep(0.1)
        assert not done.read_text(), done.read_text()
        return folder
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
    return folder


def _make(folder: Path) -> None:
    start_and_stop(ALIGNED, folder / "single")
    launch("-m", "tests.distributed.worker", folder)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders, filled by two launches of the same worker."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    return _made_once(root, "two-processes", _make), _made_once(root, "once-more", _make)

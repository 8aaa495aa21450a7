"""The runs of two processes, made once for all tests and all of pytest's processes."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed import masters as alone
from tests.distributed.launch import launch
from tests.distributed.runs import ALIGNED, start_and_stop

_PATIENCE_S = 300


def _made_once(root: Path, name: str, make: Callable[[Path], None]) -> Path:
    """root/name, which `make` fills; another process may be filling it or have filled it."""
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


def _root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all of pytest's processes share."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@pytest.fixture(scope="session", params=[2, 4], ids=["two", "four"])
def masters(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder filled by two or four processes that step on masters.

    This takes 15 to 30 seconds: each of two to four processes imports torch, on two cores, and two
    of them twice, since one dies and the other must end.
    """

    def make(folder: Path) -> None:
        alone.main(folder)
        if request.param == 2:
            launch("-m", "tests.distributed.masters", folder, "dies", status=1)
        launch("-m", "tests.distributed.masters", folder, processes=request.param)

    return _made_once(_root(tmp_path_factory), f"masters-{request.param}", make)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders, filled by two launches of the same worker.

    This takes half a minute, most of which four processes spend importing torch.
    """
    root = _root(tmp_path_factory)
    return _made_once(root, "two-processes", _make), _made_once(root, "once-more", _make)

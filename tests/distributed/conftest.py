"""The runs of several processes."""

import sys
from pathlib import Path

import pytest

from tests.distributed import masters as by_masters
from tests.distributed.launch import finished
from tests.distributed.runs import ALIGNED, Made, made_once, start_and_stop

_WORKER = [sys.executable, "-m", "tests.distributed.worker"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The folder of two processes, which are started twice.

    The first pair makes one run and dies, and the second makes that run again and all others.
    """

    def make(folder: Path) -> None:
        (folder / "masters").mkdir()
        start_and_stop(ALIGNED, folder / "single")
        by_masters.step_alone(folder / "masters")
        by_masters.train_alone(folder / "masters")
        finished([*_WORKER, str(folder), "2", "dies"])

    return made_once(tmp_path_factory, "two-processes", make)


@pytest.fixture(
    scope="session", params=[2, pytest.param(4, marks=pytest.mark.slow)], ids=["two", "four"]
)
def masters(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The folder of two processes, or of four, that step on masters."""
    if request.param == 2:
        return request.getfixturevalue("made")

    def make(folder: Path) -> None:
        (folder / "masters").mkdir()
        by_masters.step_alone(folder / "masters")
        finished([*_WORKER, str(folder), str(request.param)])

    return made_once(tmp_path_factory, "four-processes", make)

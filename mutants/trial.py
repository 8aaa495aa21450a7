"""Tests of one mutant, in a process of its own that never sees the original file.

The process is forked from one that has imported torch and pytest, which take longest, but nothing
of lpkernels. The changed source lies in memory alone: an import hook gives it for the file
(`mutants.source`), there and in the processes that the tests start.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import resource
import select
import signal
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import torch
import torch._dynamo

from mutants.source import replace

__all__ = ["Outcome", "apart", "run"]

# What the tests import first; it is imported here, so that a fork has it.
_IMPORTED = (hypothesis, torch._dynamo)
# A mutant may ask for any amount of memory; tests take less than a third of this.
_MEMORY = 12 * 2**30
_PASSED, _FAILED, _INTERRUPTED, _NONE = 0, 1, 2, 5


class Outcome(NamedTuple):
    """killed: whether something noticed. by: the first test that failed, "import" where the source
    cannot even be imported, "crash" or "time limit"; empty where nothing noticed. seconds: of
    processor time."""

    killed: bool
    by: str
    seconds: float


def run(
    stages: Sequence[Sequence[str]],
    limit: float,
    path: Path | None = None,
    source: str | None = "",
) -> Outcome:
    """The first failure of the tests while `source` stands for the file `path`, below the current
    directory; without a path, the first failure with the sources as they are. Without a source
    `path` is a compiled module, which stands for lpkernels._C.

    stages: lists of tests; a stage is collected when the stages before it have passed.
        In all but the last every test may be marked as slow, which leaves none.
    limit: seconds of a processor, so that other work does no harm; tests that only wait end after
        ten times as long.

    Raises:  RuntimeError: pytest could not run the tests at all.
    """
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reads)
            _as_child(stages, limit, path, source, writes)
        finally:
            # The child ends here, whatever happened: only the parent goes on.
            os._exit(0)
    os.close(writes)
    try:
        ready, _, _ = select.select([reads], [], [], 10 * limit)
        answer = os.read(reads, 2**16) if ready else b""
    finally:
        os.close(reads)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    if not answer:
        late = not ready or os.WTERMSIG(status) == signal.SIGXCPU
        return Outcome(True, "time limit" if late else "crash", seconds)
    code, by = json.loads(answer)
    if code not in (_PASSED, _FAILED, _INTERRUPTED):
        raise RuntimeError(f"pytest ends with {code} for {stages}")
    return Outcome(code != _PASSED, by, seconds)


def apart(work: Callable[[], None]) -> None:
    """Does the work in a fork, so that what it imports is not in this process.

    Raises:  RuntimeError: the work raised an error, which the fork has shown.
    """
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the fork's work has failed")


def _as_child(
    stages: Sequence[Sequence[str]],
    limit: float,
    path: Path | None,
    source: str | None,
    writes: int,
) -> None:
    """Runs the tests and writes their outcome."""
    os.setpgid(0, 0)
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit) + 5))
    first = _FirstFailure()
    code = _PASSED
    if path and not _imported(path, source):
        code, first.by = _FAILED, "import"
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    for tests in stages:
        if code in (_PASSED, _NONE):
            code = int(pytest.main([*options, *tests], plugins=[first]))
    # A test that is asked for by its name is not found in a file that fails to be imported.
    code = _FAILED if first.by else code
    os.write(writes, json.dumps([code, first.by]).encode())


def _imported(path: Path, source: str | None) -> bool:
    name = ".".join(path.with_suffix("").parts) if source is not None else "lpkernels._C"
    name = name.removesuffix(".__init__")
    replace(name, str(path.resolve()), source)
    try:
        importlib.import_module(name)
    except Exception:
        return False
    return True


class _FirstFailure:
    """A plugin that keeps the name of the first test or file that fails."""

    by = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.by = self.by or report.nodeid

    pytest_collectreport = pytest_runtest_logreport

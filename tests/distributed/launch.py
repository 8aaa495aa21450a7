"""Two processes, or more, as torchrun starts them or forked from one that has imported torch."""

import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lpkernels.experiments import records
from tests.experiments.killing import children

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """The environment of the processes: one thread each, and the package of this checkout."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    wide = {"COLUMNS": "200", "NO_COLOR": "1"}
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), **wide}


@contextmanager
def started(command: list[str], folder: Path | None = None) -> "Iterator[subprocess.Popen[str]]":
    """A launcher, which has ended behind the block, and its processes with it."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment(), **pipes) as process:
        try:
            yield process
        finally:
            # Processes whose launcher alone is killed would go on.
            for pid in (*children(process.pid), process.pid) if process.poll() is None else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def ranks_of(launcher: int) -> list[int]:
    """The processes of a launcher by their ranks."""
    found = {}
    for pid in children(launcher):
        values = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        found.update({value: pid for value in values if value.startswith(b"RANK=")})
    return [found[rank] for rank in sorted(found)]


def epochs(folder: Path) -> int:
    """The epochs on record of the run in a folder; 0 where there is none yet."""
    path = folder / records.RECORDS
    return len(records.read_run(folder).epochs) if path.is_file() and path.stat().st_size else 0


def finished(command: list[str]) -> str:
    """Runs a command to its end, which must be a success; returns what it printed."""
    with started(command) as process:
        printed, _ = process.communicate(timeout=400)
    assert process.returncode == 0, printed
    return printed


def forked(work: Callable[[], None], count: int) -> list[int]:
    """The statuses of `count` forks of this process that did `work`, in the order of their ends.
    They have torchrun's variables; when one fails, the others get SIGTERM, as from torchrun."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    told = {"WORLD_SIZE": count, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    alive: set[int] = set()
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            for name, value in {**told, "RANK": rank, "LOCAL_RANK": rank}.items():
                os.environ[name] = str(value)
            _end(work)
        alive.add(pid)
    statuses = []
    while alive:
        pid, status = os.wait()
        alive.discard(pid)
        statuses.append(os.waitstatus_to_exitcode(status))
        for other in alive if statuses[-1] else ():
            os.kill(other, signal.SIGTERM)
    return statuses


def _end(work: Callable[[], None]) -> None:
    """Does the work and ends the process."""
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)

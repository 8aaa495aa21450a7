"""Two processes, or more, of one script or module, as torchrun starts them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.experiments.sweeps.killing import children

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 2


def environment() -> dict[str, str]:
    """The environment of the processes: one thread each, and the package of this checkout."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    wide = {"COLUMNS": "200", "NO_COLOR": "1"}
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), **wide}


def torchrun(*arguments: object, processes: int = PROCESSES) -> list[str]:
    """The command that starts the processes."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*run, "--nproc-per-node", str(processes), *map(str, arguments)]


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


def launch(*arguments: object, status: int = 0, processes: int = PROCESSES) -> str:
    """Runs the processes to the end, which must be with `status`; returns what they printed."""
    with started(torchrun(*arguments, processes=processes)) as process:
        printed, _ = process.communicate(timeout=400)
    assert process.returncode == status, printed
    return printed

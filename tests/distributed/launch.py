"""Two processes, or more, of one script or module, as torchrun starts them."""

import os
import subprocess
import sys
from pathlib import Path

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


def launch(*arguments: object, status: int = 0, processes: int = PROCESSES) -> str:
    """Runs the processes to the end, which must be with `status`; returns what they printed."""
    command = torchrun(*arguments, processes=processes)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr

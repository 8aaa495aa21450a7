"""`python -m attacks.cluster ray|dask`: a cluster of two workers, which outlives the commands that
use it. It prints its address, and ends with its input."""

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

# Ray waits half a minute for its own processes, which is too short on a busy machine.
_STARTS = 5
_VARIABLES = {"ray": "RAY_ADDRESS", "dask": "DASK_SCHEDULER_ADDRESS"}


@contextlib.contextmanager
def cluster(engine: str) -> Iterator[dict[str, str]]:
    """A cluster in a process of its own; the environment of commands that use it."""
    command = [sys.executable, "-m", "attacks.cluster", engine]
    # Ray admits those who know its token; this cluster has one of its own.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    own = token if engine == "ray" else {}
    environment = {**os.environ, **own}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdin and process.stdout
        address = process.stdout.readline().strip()
        assert address, f"no cluster of {engine}"
        try:
            yield {_VARIABLES[engine]: address, **own}
        finally:
            process.stdin.close()


def main(engine: str) -> None:
    if engine == "ray":
        import ray

        for left in reversed(range(_STARTS)):
            try:
                found: Any = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
                break
            except Exception:
                ray.shutdown()
                if not left:
                    raise
        print(found.address_info["gcs_address"], flush=True)
        sys.stdin.read()
        ray.shutdown()
        return
    import distributed

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as local:
        print(local.scheduler_address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])

"""`python -m attacks.cluster ray|dask`: a cluster of two workers, which outlives the commands that
use it. It prints its address, and ends with its input."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

_VARIABLES = {"ray": "RAY_ADDRESS", "dask": "DASK_SCHEDULER_ADDRESS"}


@contextlib.contextmanager
def cluster(engine: str) -> Iterator[dict[str, str]]:
    """A cluster in a process of its own; the environment of commands that use it."""
    command = [sys.executable, "-m", "attacks.cluster", engine]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin and process.stdout
        address = process.stdout.readline().strip()
        assert address, f"no cluster of {engine}"
        try:
            yield {_VARIABLES[engine]: address}
        finally:
            process.stdin.close()


def main(engine: str) -> None:
    if engine == "ray":
        import ray

        found: Any = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        print(found["gcs_address"], flush=True)
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

"""A sweep of toy runs as a process of its own, which tests may kill.

`python -m tests.experiments.sweeps.toy_command FOLDER SEEDS EPOCHS SECONDS JOBS [again]`
"""

import sys

from lpkernels.experiments.sweeps.sweep import run_sweep
from tests.experiments.sweeps import toy


def main(folder: str, seeds: str, epochs: str, seconds: str, jobs: str, retry: str = "") -> None:
    run_sweep(
        toy.spec("a", "b", seeds=int(seeds), epochs=int(epochs)),
        folder,
        jobs=int(jobs),
        train=toy.slow(float(seconds)),
        retry_failed=bool(retry),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A sweep of toy runs as a process of its own, which tests may kill.

`python -m tests.experiments.sweeps.toy_command FOLDER SEEDS EPOCHS JOBS [again | BOOK]`
"""

import sys
from functools import partial
from pathlib import Path

from lpkernels.experiments.sweeps.sweep import run_sweep
from tests.experiments.sweeps import toy


def main(folder: str, seeds: str, epochs: str, jobs: str, option: str = "") -> None:
    book = option and option != "again"
    run_sweep(
        toy.spec("a", "b", seeds=int(seeds), epochs=int(epochs)),
        folder,
        jobs=int(jobs),
        train=partial(toy.noted, book=Path(option)) if book else toy.slow(0.02),
        retry_failed=option == "again",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

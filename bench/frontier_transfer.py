"""``python -m bench.frontier_transfer``: whether the frontier of one network serves another.

Two error matrices have the same configurations: one of many tasks with one network, one of a few of
these tasks with another. The errors of each of the latter tasks are predicted in several ways: by
the same task's row with the first network, which measures nothing of the second; by a few
measurements and embeddings, which come from the first matrix or from the other tasks of the second;
and by both matrices' column means. Rows of the task itself are never learned from, except where
they are what is transferred; other rows may be of the same data, with other labels or fewer
examples. Each prediction is held against the truth as ``python -m bench.frontier_study`` does it.
Results are printed, and written as records.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from bench.frontier_study import table
from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import Record, write_records
from lpkernels.experiments.sweeps.frontiers.specification import read_frontier_spec
from lpkernels.techniques.pareto import (
    ErrorMatrix,
    averages,
    compare,
    embed,
    noise_floor,
    predict,
    select,
)

HERE = Path(__file__).resolve().parent
STUDY = HERE / "studies" / "frontier-transfer.toml"
FROM = HERE / "results" / "frontier-errors.json"
TO = HERE / "results" / "frontier-transfer-errors.json"
RESULTS = HERE / "results" / "frontier-transfer.jsonl"

#: One prediction of a task's errors: the method, how many measurements, which, and the errors.
Said = tuple[str, int, np.ndarray, np.ndarray]


def said(
    one: ErrorMatrix, other: ErrorMatrix, task: str, *, counts: Sequence[int], rank: int
) -> Iterator[Said]:
    """The errors of a task of `other`, predicted in all ways; `one` is of the network that is
    known.

    Raises: ValueError: `one` has no such task.
    """
    if task not in one.tasks:
        raise ValueError(f"transfer: the known network has no task {task!r} to transfer from")
    truth = other.mean[other.tasks.index(task)]
    none = np.array([], dtype=np.int64)
    yield "the same task's row", 0, none, one.mean[one.tasks.index(task)]
    for name, matrix in (("known network", one), ("its own network", other)):
        rest = np.delete(matrix.mean, matrix.tasks.index(task), axis=0)
        yield f"column mean, {name}", 0, none, rest.mean(axis=0)
        y = embed(rest, min(rank, len(rest)))
        for count in counts:
            part = y[:count]
            chosen = select(part, n=count)
            yield f"D-optimal, {name}", count, chosen, predict(part, chosen, truth[chosen])


def study(
    one: ErrorMatrix,
    other: ErrorMatrix,
    memory: np.ndarray,
    *,
    counts: Sequence[int],
    rank: int,
) -> list[Record]:
    """The rows of `averages`; memory: (tasks of other, configurations)."""
    floor = noise_floor(other.errors)
    records = []
    for number, task in enumerate(other.tasks):
        truth, noise = other.mean[number], float(floor[number])
        for method, count, chosen, predicted in said(one, other, task, counts=counts, rank=rank):
            record: dict[str, Any] = {"task": number, "method": method, "count": count, "draw": 0}
            record |= compare(truth, predicted, memory[number], chosen)
            records.append(record | {"noise": None if np.isnan(noise) else noise})
    return averages(records)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.frontier_transfer")
    parser.add_argument("--known", type=Path, default=FROM, help="errors with the known network")
    parser.add_argument("--matrix", type=Path, default=TO, help="errors with the other network")
    parser.add_argument("--study", type=Path, default=STUDY, help="of the latter, for its memory")
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="+", default=[3, 5, 8])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    spec = read_frontier_spec(options.study)
    one = ErrorMatrix.load(options.known, spec.space)
    other = ErrorMatrix.load(options.matrix, spec.space)
    memory = np.stack([spec.memory(task) for task in other.tasks])
    rows = study(one, other, memory, counts=options.counts, rank=options.rank)
    print(table(rows, width=28))
    header = {
        **schemas.header("frontier transfer"), "study": spec.name,
        "tasks": list(other.tasks), "rank": options.rank, "environment": environment("cpu"),
        "when": datetime.now(timezone.utc).isoformat(),
    }  # fmt: skip
    write_records(options.out, [header, *({"type": "average", **row} for row in rows)])


if __name__ == "__main__":
    main()

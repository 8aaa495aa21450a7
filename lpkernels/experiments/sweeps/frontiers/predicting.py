"""The frontiers of the tasks of a folder, from what is measured there."""

from __future__ import annotations

from pathlib import Path

from lpkernels.experiments.records import Record, read_records
from lpkernels.experiments.sweeps.frontiers.choosing import Frontier, Known, frontier_of
from lpkernels.experiments.sweeps.frontiers.store import Measured, check_space
from lpkernels.techniques.pareto import ErrorMatrix, choose

#: The records of `bench.frontier_study`.
CHOICES = "frontier choices"


def frontiers(
    found: Measured, *, task: str = "", known: ErrorMatrix | None = None, rank: int = 3
) -> dict[str, Frontier]:
    """What is known of each task that has measurements, by its name.

    Args:
        task: only this one; "": all.
        known: errors of other tasks, by which the rest is predicted; None: by the task's own grid.
        rank: of the embeddings, with `known`.
    Raises: ValueError: no such task, nothing or too little measured, known errors of other
        configurations, a rank above the data.
    """
    spec, matrix = found.spec, found.matrix
    if known is not None:
        check_space(known, spec)
    wanted = [task] if task else [name for name in spec.tasks if found.asked[name]]
    if not wanted:
        raise ValueError("nothing is measured yet; `lpkernels frontier run` measures")
    result = {}
    for name in wanted:
        memory = spec.memory(name)
        errors = matrix.mean[matrix.tasks.index(name)].reshape(spec.space.shape)
        others = None if known is None else Known.of(known, name, rank)
        try:
            result[name] = frontier_of(memory, errors, known=others)
        except ValueError as error:
            raise ValueError(f"task {name}: {error}") from error
    return result


def best(frontier: Frontier, cap: float) -> int:
    """The configuration of least error, measured or predicted, with at most `cap` bytes.

    Raises: ValueError: a cap below the cheapest configuration.
    """
    cheapest = frontier.memory.min()
    if cap < cheapest:
        raise ValueError(
            f"cap: {cap:.0f} bytes are below the cheapest configuration's {cheapest:.0f}"
        )
    return choose(frontier.memory, frontier.predicted, cap)


def read_choices(path: str | Path) -> list[Record]:
    """What ways of choosing are worth on a matrix, as `bench.frontier_study` recorded it: its rows.

    Raises: FileNotFoundError: no such file.  ValueError: other records.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"expected records of bench.frontier_study at {str(path)!r}")
    found = read_records(path)
    if not found or found[0].get("kind") != CHOICES:
        raise ValueError(f"{path}: expected records of bench.frontier_study")
    return [record for record in found if record["type"] == "average"]

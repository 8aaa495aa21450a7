"""``python -m bench.frontier_study``: what each way of choosing measurements is worth.

On an error matrix that is known (``lpkernels frontier table --export``), each task in turn is new:
3 to 15 of its configurations are measured, and the rest is predicted from the other tasks. These
are compared: D-optimal choices, random ones and the cheapest; the mean of the other tasks, which
measures nothing; a cold start, which knows no other task; and, where they are installed, TPE and
NSGA-II of Optuna and qLogNEHVI of BoTorch, which predict nothing, so that what they measured
counts. The tables have means over tasks with standard errors, beside the noise of the seeds, and
how many measurements a cold start makes until no band reaches the frontier any more. Results are
printed, and written as records that ``lpkernels frontier plot --what choices`` draws.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from bench.frontier_optimizers import Search, searches
from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import Record, write_records
from lpkernels.experiments.sweeps.frontiers.predicting import CHOICES
from lpkernels.experiments.sweeps.frontiers.specification import read_frontier_spec
from lpkernels.techniques import pareto
from lpkernels.techniques.pareto import ErrorMatrix, averages, compare

HERE = Path(__file__).resolve().parent
STUDY = HERE / "studies" / "frontier-tasks.toml"
MATRIX = HERE / "results" / "frontier-errors.json"
RESULTS = HERE / "results" / "frontier-choices.jsonl"
METHODS = ("greedy", "random", "cheapest", "column_mean")
#: The figures that the tables show, by their names there.
SHOWN = {"rmse": "rmse", "hyperdiff": "hyperdiff", "hypervolume": "volume", "regret": "regret"}


def cold_records(
    matrix: ErrorMatrix, memory: np.ndarray, counts: Sequence[int], seed: int
) -> list[Record]:
    """Records like those of `leave_one_out`, of a cold start on each task, for counts that cover
    its grid."""
    shape = matrix.space.shape
    cover = max(shape[0], int(np.prod(shape[1:])))
    records = []
    for task, truth in enumerate(matrix.mean):
        for count in (n for n in counts if n >= cover):
            found = pareto.cold_start(
                shape, memory[task], lambda i, row=truth: row[i], n=count, seed=seed
            )
            figures = compare(truth, found.predicted, memory[task], found.measured)
            records.append(_record(task, "cold_start", count, found.measured, figures))
    return records


def ended_records(matrix: ErrorMatrix, memory: np.ndarray, seed: int) -> list[Record]:
    """A cold start on each task for as long as a configuration's band reaches the frontier.

    Nothing limits the number of measurements: the ones that it leaves out are what the bands save.
    """
    shape = matrix.space.shape
    records = []
    for task, truth in enumerate(matrix.mean):
        found = pareto.cold_start(
            shape, memory[task], lambda i, row=truth: row[i], n=len(truth), seed=seed
        )
        figures = compare(truth, found.predicted, memory[task], found.measured)
        record = {"type": "ended", "task": matrix.tasks[task], "ended": found.ended}
        records.append(record | {"measured": len(found.measured), **figures})
    return records


def searched_records(
    matrix: ErrorMatrix,
    memory: np.ndarray,
    counts: Sequence[int],
    name: str,
    search: Search,
    draws: int,
) -> list[Record]:
    """Records of an optimizer: the frontier is that of what it measured. It predicts nothing, so
    there is no rmse."""
    records = []
    for task, truth in enumerate(matrix.mean):
        for draw in range(draws):
            order = search(matrix.space, memory[task], lambda i, r=truth: r[i], max(counts), draw)
            for count in counts:
                chosen = np.array(order[:count])
                only = np.full(len(truth), np.nan)
                only[chosen] = truth[chosen]
                with warnings.catch_warnings():
                    # What was not measured counts as missing, as it should.
                    warnings.simplefilter("ignore")
                    figures = compare(truth, only, memory[task], chosen) | {"rmse": None}
                records.append(_record(task, name, count, chosen, figures) | {"draw": draw})
    return records


def _record(
    task: int, method: str, count: int, measured: np.ndarray, figures: dict[str, Any]
) -> Record:
    chosen = [int(i) for i in measured]
    return {"task": task, "method": method, "count": count, "draw": 0, "measured": chosen,
            **figures, "noise": None}  # fmt: skip


def study(
    matrix: ErrorMatrix,
    memory: np.ndarray,
    *,
    counts: Sequence[int],
    rank: int,
    observed: float = 1.0,
    draws: int = 20,
    seed: int = 0,
    others: dict[str, Search] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Record]:
    """The rows of `averages`, for all ways of choosing.

    memory: (tasks, configurations).
    others: optimizers by name; each is given every task `draws // 4` times, at least once.
    """
    options: dict[str, Any] = {"counts": counts, "rank": rank, "observed": observed}
    records = pareto.leave_one_out(
        matrix.errors, memory, methods=METHODS, draws=draws, seed=seed, **options
    )
    say("leave one out")
    if not np.isnan(matrix.mean).any():
        records += cold_records(matrix, memory, counts, seed)
        say("cold start")
        for name, search in (others or {}).items():
            times = max(1, draws // 4)
            records += searched_records(matrix, memory, counts, name, search, times)
            say(name)
    return averages(records)


def table(rows: Sequence[Record], width: int = 12) -> str:
    """A line for each method and count; `width` is that of the methods."""
    head = f"{'method':{width}} {'n':>3} " + " ".join(f"{name:>17}" for name in SHOWN.values())
    lines = [head]
    for row in rows:
        cells = []
        for figure in SHOWN:
            mean, error = row[figure], row[f"{figure}_error"]
            cells.append("" if mean is None else f"{mean:.4f} +- {error or 0:.4f}")
        lines.append(
            f"{row['method']:{width}} {row['count']:3} " + " ".join(f"{c:>17}" for c in cells)
        )
    noise = next((row["noise"] for row in rows if row["noise"] is not None), None)
    return "\n".join(lines) + ("" if noise is None else f"\nnoise of the seeds: {noise:.4f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.frontier_study")
    parser.add_argument("--matrix", type=Path, default=MATRIX)
    parser.add_argument("--study", type=Path, default=STUDY, help="of the tasks: for their memory")
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--observed", type=float, default=1.0)
    parser.add_argument("--counts", type=int, nargs="+", default=[3, 4, 5, 6, 8, 11, 12, 13, 15])
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", nargs="*", default=[], help="optimizers to leave out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    spec = read_frontier_spec(options.study)
    matrix = ErrorMatrix.load(options.matrix, spec.space)
    memory = np.stack([spec.memory(task) for task in matrix.tasks])
    others, lacking = searches()
    for name, why in lacking.items():
        print(f"without {name}: {why}")
    rows = study(
        matrix, memory, counts=options.counts, rank=options.rank, observed=options.observed,
        draws=options.draws, seed=options.seed,
        others={name: search for name, search in others.items() if name not in options.without},
        say=lambda text: print(f"done: {text}", flush=True),
    )  # fmt: skip
    print(table(rows))
    ended = ended_records(matrix, memory, options.seed) if not np.isnan(matrix.mean).any() else []
    for name in ("measured", "hypervolume") if ended else ():
        values = np.array([record[name] for record in ended])
        print(f"cold start to its end: {name} {values.mean():.3f}, {values.min()}..{values.max()}")
    header = {
        **schemas.header(CHOICES), "study": spec.name, "tasks": list(matrix.tasks),
        "rank": options.rank, "observed": options.observed, "draws": options.draws,
        "seed": options.seed, "without": lacking, "environment": environment("cpu"),
        "when": datetime.now(timezone.utc).isoformat(),
    }  # fmt: skip
    write_records(options.out, [header, *({"type": "average", **row} for row in rows), *ended])


if __name__ == "__main__":
    main()

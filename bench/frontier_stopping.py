"""``python -m bench.frontier_stopping``: what it saves to stop runs whose band can no longer reach
the frontier.

The error after each epoch is known of every task and configuration (``frontier-curves.json``, the
mean over seeds, taken from the folder of ``lpkernels frontier run`` by ``--results``). Each task is
trained again from these curves in four ways. The runs are all configurations, the cheapest first,
or those that a cold start chooses until no band reaches the frontier; and each run goes to the last
epoch, or until `pareto.EarlyStop` ends it. Two things are counted: epochs, in units of a whole run,
and what is lost, as the area and the best error of the runs that finished, beside those of all
configurations. Results are printed, and written as records.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import Record, find_runs, write_records
from lpkernels.experiments.sweeps.frontiers.specification import FrontierSpec, read_frontier_spec
from lpkernels.techniques import pareto

HERE = Path(__file__).resolve().parent
STUDY = HERE / "studies" / "frontier-tasks.toml"
CURVES = HERE / "results" / "frontier-curves.json"
_CURVES = "frontier curves"
RESULTS = HERE / "results" / "frontier-stopping.jsonl"
FIGURES = ("epochs", "finished", "area", "regret")
#: Errors of all configurations of a task after each epoch: (configurations, epochs).
Curves = dict[str, np.ndarray]


def read_results(spec: FrontierSpec, folder: Path) -> Curves:
    """The mean over seeds of the runs of a folder.

    Raises: ValueError: a run is missing.
    """
    found: dict[str, list[list[float]]] = defaultdict(list)
    for run in find_runs(folder):
        found[run.name].append([1 - value for value in run.curve("test_accuracy")])
    curves = {}
    for task in spec.tasks:
        arms = [f"{task}: {spec.space.name(i)}" for i in range(len(spec.space))]
        missing = [arm for arm in arms if len(found[arm]) < len(spec.seeds)]
        if missing:
            raise ValueError(f"{folder}: expected {len(spec.seeds)} runs of {missing[0]!r}")
        curves[task] = np.array([np.mean(found[arm], axis=0) for arm in arms])
    return curves


def write_curves(path: Path, curves: Curves) -> None:
    rounded = {task: np.round(errors, 4).tolist() for task, errors in curves.items()}
    found = {"kind": _CURVES, "schema": schemas.schema(_CURVES), "errors": rounded}
    path.write_text(json.dumps(found) + "\n")


def read_curves(path: Path) -> Curves:
    found = schemas.current(json.loads(path.read_text(encoding="utf-8")), _CURVES, path)
    return {task: np.array(errors) for task, errors in found["errors"].items()}


def trained(
    errors: np.ndarray,
    memory: np.ndarray,
    train: Callable[[Callable[[int], float]], object],
    stop: pareto.EarlyStop,
) -> dict[str, float]:
    """The figures of a task whose runs `train` measures in its own order."""
    epochs, finished = 0, []

    def measure(index: int) -> float:
        nonlocal epochs
        run = stop.start(index)
        for error in errors[index]:
            epochs += 1
            if not run.report(error):
                break
        if run.ended == "finished":
            finished.append(index)
        return run.error

    train(measure)
    truth, only = errors[:, -1], np.full(len(errors), np.nan)
    only[finished] = truth[finished]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what did not finish counts as missing, as it should
        lost = pareto.compare(truth, only, memory, np.array(finished))
    return {
        "epochs": epochs / errors.shape[1],
        "finished": len(finished),
        "area": lost["hypervolume"],
        "regret": lost["regret"],
    }


def task_records(
    task: str, errors: np.ndarray, memory: np.ndarray, shape: Sequence[int], level: float
) -> list[Record]:
    """The records of one task, in the four ways."""

    def cheapest_first(measure: Callable[[int], float]) -> object:
        return [measure(int(index)) for index in np.argsort(memory, kind="stable")]

    def cold(measure: Callable[[int], float]) -> object:
        return pareto.cold_start(shape, memory, measure, n=len(memory))

    records = []
    for way, train in (("all", cheapest_first), ("cold start", cold)):
        for stopped in (False, True):
            reports = errors.shape[1]
            # So many runs must finish before one is stopped; with more than there are, none is.
            least = 5 if stopped else len(errors) + 1
            stop = pareto.EarlyStop(memory, reports=reports, level=level, least=least)
            figures = trained(errors, memory, train, stop)
            records.append({"task": task, "way": way, "stopped": stopped, **figures})
    return records


def averages(records: Sequence[Record]) -> list[Record]:
    """For each way, the means over tasks and their standard errors."""
    rows = []
    for way, stopped in dict.fromkeys((r["way"], r["stopped"]) for r in records):
        group = [r for r in records if (r["way"], r["stopped"]) == (way, stopped)]
        row: Record = {"way": way, "stopped": stopped, "tasks": len(group)}
        for figure in FIGURES:
            values = np.array([r[figure] for r in group], dtype=np.float64)
            row[figure] = float(values.mean())
            row[f"{figure}_error"] = float(values.std(ddof=1) / np.sqrt(len(values)))
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.frontier_stopping")
    parser.add_argument("--results", type=Path, help="folder of runs; writes --curves first")
    parser.add_argument("--curves", type=Path, default=CURVES, help="errors after each epoch")
    parser.add_argument("--study", type=Path, default=STUDY, help="of the curves, for its memory")
    parser.add_argument("--level", type=float, default=0.9, help="of the bands")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    spec = read_frontier_spec(options.study)
    if options.results is not None:
        write_curves(options.curves, read_results(spec, options.results))
    curves = read_curves(options.curves)
    records = []
    for task, errors in curves.items():
        memory = spec.memory(task)
        records += task_records(task, errors, memory, spec.space.shape, options.level)
    rows = averages(records)
    for row in rows:
        figures = "  ".join(f"{f} {row[f]:8.4f} ± {row[f'{f}_error']:.4f}" for f in FIGURES)
        print(f"{row['way']:10} {'stopped' if row['stopped'] else 'whole':8} {figures}")
    header = {
        **schemas.header("frontier stopping"), "study": spec.name, "level": options.level,
        "tasks": list(curves), "environment": environment("cpu"),
        "when": datetime.now(timezone.utc).isoformat(),
    }  # fmt: skip
    write_records(options.out, [header, *({"type": "average", **row} for row in rows)])


if __name__ == "__main__":
    main()

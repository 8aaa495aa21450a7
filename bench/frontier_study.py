"""``python -m bench.frontier_study``: what each way of choosing measurements is worth.

On an error matrix (``lpkernels frontier table --export``), each task in turn is new: 3 to 15 of its
configurations are measured, by D-optimal or random choice, and the rest is predicted from the other
tasks. Beside them stands the mean of the other tasks, which measures nothing. Results are printed
and written as records.

    python -m bench.frontier_study --pictures results/frontier

draws the matrix, its singular values and the records of the repository.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pandas

from lpkernels import schemas
from lpkernels.cli._options import show_table
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import Record, read_records, write_records
from lpkernels.experiments.sweeps.frontiers import task_memory
from lpkernels.experiments.sweeps.specification import read_spec
from lpkernels.report.figures import finish, panels, save_figure
from lpkernels.report.tables import make_table
from lpkernels.techniques import pareto
from lpkernels.techniques.pareto import ErrorMatrix

HERE = Path(__file__).resolve().parent
STUDY = HERE / "studies" / "frontier-tasks.toml"
MATRIX = HERE / "results" / "frontier-errors.csv"
RECORDS = HERE / "results" / "frontier-choices.jsonl"
METHODS = ("greedy", "random", "column_mean")
LABELS = {
    "greedy": "D-optimal", "column_mean": "mean of the other tasks", "cold_start": "cold start",
}  # fmt: skip
#: The kind of the records.
CHOICES = "frontier choices"
FIGURES = ("rmse", "hyperdiff", "convergence", "hypervolume", "regret")


def study(
    matrix: ErrorMatrix,
    memory: np.ndarray,
    *,
    counts: Sequence[int],
    rank: int,
    observed: float = 1.0,
    draws: int = 20,
    seed: int = 0,
) -> list[Record]:
    """A row for each way of choosing and number of measurements: the number of tasks, and the mean
    over tasks and the standard error of each figure. memory: (tasks, configurations)."""
    records = pareto.leave_one_out(
        matrix.errors, memory, methods=METHODS, counts=counts, rank=rank, observed=observed,
        draws=draws, seed=seed,
    )  # fmt: skip
    figures = pandas.DataFrame(records).astype(dict.fromkeys((*FIGURES, "noise"), float))
    # Draws of one task are averaged first.
    tasks = figures.groupby(["method", "count", "task"], sort=False)[[*FIGURES, "noise"]].mean()
    groups = tasks.groupby(["method", "count"], sort=False)
    table = groups.mean().join(groups.sem().add_suffix("_error")).assign(tasks=groups.size())
    rows = table.reset_index().to_dict("records")
    return [{key: None if x != x else x for key, x in row.items()} for row in rows]


def draw(folder: Path) -> None:
    """The pictures of the records of the repository, the one of docs/frontier.md among them."""
    matrix = ErrorMatrix.load(MATRIX)
    (axes,) = panels(1, (6.0, 5.6))
    image = axes.imshow(matrix.mean, aspect="auto", vmin=0, interpolation="nearest")
    names = [name.replace("_sat", "") for name in matrix.names]
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=5)
    axes.set_yticks(range(len(matrix.tasks)), matrix.tasks, fontsize=5)
    axes.figure.colorbar(image, label="error")
    save_figure(axes.figure, folder / "frontier-matrix.png")
    (axes,), values = panels(1, (5.4, 3.6)), np.linalg.svd(matrix.mean, compute_uv=False)
    axes.plot(range(1, len(values) + 1), values / values[0], "o-", ms=3, lw=1)
    finish(axes, xlabel="number", ylabel="singular value over the first", yscale="log")
    save_figure(axes.figure, folder / "frontier-singular-values.png")
    records = [r for r in read_records(RECORDS) if r["type"] == "average" and r["rmse"] is not None]
    (axes,) = panels(1, (5.4, 3.8))
    for method in dict.fromkeys(record["method"] for record in records):
        own = [record for record in records if record["method"] == method]
        means, spread = ([record[x] or 0.0 for record in own] for x in ("rmse", "rmse_error"))
        style = {"lw": 1.2, "marker": "o", "ms": 3, "label": LABELS.get(method, method)}
        axes.errorbar([record["count"] for record in own], means, spread, **style)
    noise = float(np.mean([record["noise"] for record in records if record.get("noise")]))
    axes.axhline(noise, color="0.5", ls=":", label="noise of the seeds")
    finish(axes, fontsize="x-small", xlabel="measurements", ylabel="rmse", yscale="log")
    save_figure(axes.figure, folder / "frontier-choices.png")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.frontier_study")
    parser.add_argument("--matrix", type=Path, default=MATRIX)
    parser.add_argument("--study", type=Path, default=STUDY, help="of the tasks: for their memory")
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--observed", type=float, default=1.0)
    parser.add_argument("--counts", type=int, nargs="+", default=[3, 4, 5, 6, 8, 11, 12, 13, 15])
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pictures", type=Path, help="draw what is recorded into this folder")
    options = parser.parse_args(arguments)
    if options.pictures:
        return draw(options.pictures)
    spec = read_spec(options.study)
    matrix = ErrorMatrix.load(options.matrix).for_space(str(options.matrix), spec.space)
    memory = np.stack([task_memory(spec, task) for task in matrix.tasks])
    rows = study(
        matrix, memory, counts=options.counts, rank=options.rank,
        observed=options.observed, draws=options.draws, seed=options.seed,
    )  # fmt: skip
    cells = [
        (r["method"], str(r["count"]), *("" if r[x] is None else f"{r[x]:.4f}" for x in FIGURES))
        for r in rows
    ]
    show_table(make_table(("way", "measured", *FIGURES), cells, words=("way",)))
    if rows[0]["noise"] is not None:
        print(f"noise of the seeds: {rows[0]['noise']:.4f}")
    header = {
        **schemas.header(CHOICES), "study": spec.name, "tasks": list(matrix.tasks),
        "rank": options.rank, "observed": options.observed, "draws": options.draws,
        "seed": options.seed, "environment": environment("cpu"),
        "when": datetime.now(timezone.utc).isoformat(),
    }  # fmt: skip
    if options.out:
        write_records(options.out, [header, *({"type": "average", **row} for row in rows)])


if __name__ == "__main__":
    main()

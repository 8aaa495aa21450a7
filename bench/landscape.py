"""``python -m bench.landscape``: do schedules of precision end in wider valleys?

It trains arms of bench/sweeps/mnist1d-schedules.toml as the sweep does, and looks at the loss
around the weights they end on, in float64 and torch's own arithmetic, over 1,000 training examples.
It measures the largest eigenvalue of the Hessian, and the loss along filter-normalised directions;
for the first seed on a plane too. Records are appended to bench/results/landscape.jsonl; a run that
the file holds is not repeated. ``--show`` prints differences to the first arm, seed by seed, and
draws the pictures.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.recording import keep
from lpkernels import schemas
from lpkernels.experiments.measuring.landscape import (
    LossSlice,
    LossSurface,
    loss_slice,
    loss_surface,
    sharpness,
)
from lpkernels.experiments.records import read_records
from lpkernels.experiments.sweeps.specification import Cell, read_spec
from lpkernels.experiments.sweeps.statistics import t_interval
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads.workload import Workload
from lpkernels.report.landscapes import plot_slices, plot_surfaces

HERE = Path(__file__).resolve().parent
SPEC = HERE / "sweeps" / "mnist1d-schedules.toml"
RESULTS = HERE / "results" / "landscape.jsonl"
ARMS = ("static 8", "static 5", "static 4", "cpt 3-8", "shuffled 3-8", "rise 3-8", "fp32")
EXAMPLES = 1000
DIRECTIONS = 3
RADIUS = 1.0
# The figures of a run and its valley. rise: the loss half a norm away over the loss at the centre.
FIGURES = ("eigenvalue", "rise", "train_loss", "test_accuracy")


def loss_of(workload: Workload) -> Callable[[nn.Module, Any], Tensor]:
    """The mean loss of a batch."""
    (turn,) = workload.turns
    return lambda model, batch: turn.loss(model, batch).losses.mean()


def measured(cell: Cell, *, surface: bool) -> dict[str, Any]:
    """Trains the cell, and measures the valley that it ends in."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(cell.config, folder)
        trainer.fit()
        tested = trainer.evaluate()
        model, workload = trainer.model, trainer.workload
        batches = [workload.train.plan(0, 0).batch(0, EXAMPLES)]
        loss = loss_of(workload)
        slices = [
            loss_slice(model, loss, batches, radius=RADIUS, points=21, seed=seed)
            for seed in range(DIRECTIONS)
        ]
        found = sharpness(model, loss, batches)
        run: dict[str, Any] = {
            "eigenvalue": found.eigenvalue,
            "iterations": found.iterations,
            "converged": found.converged,
            "train_loss": float(slices[0].losses[len(slices[0].at) // 2]),
            "test_accuracy": tested["test_accuracy"],
            "slices": [[round(float(x), 6) for x in each.losses] for each in slices],
        }
        if surface:
            plane = loss_surface(model, loss, batches, radius=RADIUS, points=15)
            run["surface"] = [[round(float(x), 5) for x in row] for row in plane.losses]
    return run


def held(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The runs that a file holds."""
    found = read_records(path) if path.exists() else []
    return {(r["arm"], r["seed"]): r for r in found}


def figures(run: dict[str, Any]) -> dict[str, float]:
    """The figures of a run, by the names of FIGURES."""
    middle = len(run["slices"][0]) // 2
    half = middle // 2
    rises = [(losses[half] + losses[-1 - half]) / 2 - losses[middle] for losses in run["slices"]]
    return {
        **{name: run[name] for name in FIGURES if name != "rise"},
        "rise": float(np.mean(rises)),
    }


def show(path: Path, print_: Callable[[str], None] = print) -> None:
    """Means, and differences to the first arm, seed by seed."""
    runs = {key: figures(run) for key, run in held(path).items()}
    for arm in ARMS:
        seeds = sorted(s for a, s in runs if a == arm and (ARMS[0], s) in runs)
        for name in FIGURES if seeds else ():
            own = [runs[arm, s][name] for s in seeds]
            gaps = [x - runs[ARMS[0], s][name] for x, s in zip(own, seeds, strict=True)]
            interval = t_interval(gaps, 0.95) if arm != ARMS[0] and len(gaps) > 1 else None
            of = f"[{interval.low:+.4f}, {interval.high:+.4f}]" if interval else ""
            print_(
                f"{arm:14} {name:14} {statistics.fmean(own):9.4f}  "
                f"{statistics.fmean(gaps):+.4f} {of} ({len(seeds)})"
            )


def draw(path: Path, pictures: Path) -> None:
    """Slices of every seed, and the planes of the first."""
    runs = held(path)
    at = np.linspace(-RADIUS, RADIUS, 21)
    slices: dict[str, list[LossSlice]] = {}
    planes = {}
    for (arm, _), run in runs.items():
        slices.setdefault(arm, []).extend(LossSlice(at, np.array(x)) for x in run["slices"])
        if "surface" in run:
            losses = np.array(run["surface"])
            planes[arm] = LossSurface(np.linspace(-RADIUS, RADIUS, len(losses)), losses)
    shown = [arm for arm in ("static 8", "static 5", "cpt 3-8", "fp32") if arm in slices]
    plot_slices({arm: slices[arm] for arm in shown}, pictures / "landscape-slices.png")
    plot_surfaces({arm: planes[arm] for arm in shown}, pictures / "landscape-planes.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[1])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--show", action="store_true", help="Only what the file holds.")
    parser.add_argument("--pictures", type=Path, default=HERE.parent / "docs" / "pictures")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cells = {(cell.arm, cell.config.seed): cell for cell in read_spec(SPEC).cells()}
    for seed in () if asked.show else range(asked.seeds):
        for arm in ARMS:
            if (arm, seed) in held(asked.out):
                continue
            run = {**schemas.line("landscape"), "arm": arm, "seed": seed}
            run |= measured(cells[arm, seed], surface=seed == 0)
            keep(asked.out, run)
    show(asked.out)
    if held(asked.out):
        draw(asked.out, asked.pictures)


if __name__ == "__main__":
    main()

"""``python -m bench.studies.landscape``: do schedules of precision end in flatter minima?

It trains arms of bench/sweeps/mnist1d-schedules.toml as the sweep does, and looks at the loss
around the weights they end on, over 1,000 training examples, in float64 and torch's own arithmetic:
in emulated arithmetic the loss is a staircase, and its second derivatives say nothing about the
valley. It measures the largest eigenvalue of the Hessian, and the loss along filter-normalised
directions (Li et al. 2018, arXiv 1712.09913, section 4). It is a sweep, whose folder `--out` may be
continued, and whose results are written to bench/results/landscape.jsonl.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lpkernels.experiments.records import RECORDS, read_records, write_records
from lpkernels.experiments.sweeps.results import write_results
from lpkernels.experiments.sweeps.specification import read_spec
from lpkernels.experiments.sweeps.sweep import run_sweep
from lpkernels.experiments.sweeps.training import Progress
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.nn import revert

HERE = Path(__file__).resolve().parents[1]
SPEC = HERE / "sweeps" / "mnist1d-schedules.toml"
RESULTS = HERE / "results" / "landscape.jsonl"
ARMS = ("static 8", "static 5", "static 4", "cpt 3-8", "shuffled 3-8", "rise 3-8", "fp32")
EXAMPLES = 1000
DIRECTIONS = 3
POINTS = 21

Loss = Callable[[nn.Module], Tensor]


def exact_copy(model: nn.Module) -> nn.Module:
    """The model in float64 and torch's own arithmetic, in evaluation mode; the model stays."""
    twin = revert(copy.deepcopy(model)).double().eval()
    twin.zero_grad(set_to_none=True)
    return twin.requires_grad_(True)


def filter_normalised(weights: Sequence[Tensor], seed: int) -> list[Tensor]:
    """A Gaussian direction in which each filter has the norm of its weights; biases and the weights
    of norms, which have one dimension, do not move."""
    generator = torch.Generator().manual_seed(seed)
    direction = []
    for weight in weights:
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        if weight.dim() < 2:
            direction.append(torch.zeros_like(weight))
            continue
        rows = drawn.flatten(1)
        scale = weight.flatten(1).norm(dim=1) / rows.norm(dim=1)
        direction.append((rows * scale[:, None]).view_as(weight))
    return direction


@torch.no_grad()
def loss_slice(model: nn.Module, loss: Loss, seed: int) -> list[float]:
    """The loss at POINTS places from -1 to 1 times a direction; the weights are put back."""
    parameters = list(model.parameters())
    base = [p.clone() for p in parameters]
    direction = filter_normalised(base, seed)
    losses = []
    for at in torch.linspace(-1, 1, POINTS, dtype=torch.float64).tolist():
        for parameter, weight, move in zip(parameters, base, direction, strict=True):
            parameter.copy_(weight + at * move)
        losses.append(float(loss(model)))
    for parameter, weight in zip(parameters, base, strict=True):
        parameter.copy_(weight)
    return losses


def top_eigenvalue(
    model: nn.Module, loss: Loss, *, iterations: int = 200, tolerance: float = 1e-4
) -> tuple[float, int, bool]:
    """The largest eigenvalue of the loss's Hessian by power iteration, the number of iterations,
    and whether the last one moved it by less than the tolerance.

    Where the eigenvalue of largest magnitude is negative, the Hessian is shifted by it.
    """
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss(model), parameters, create_graph=True, materialize_grads=True)
    gradient = torch.cat([g.flatten() for g in found])

    def dominant(shift: float) -> tuple[float, int, bool]:
        generator = torch.Generator().manual_seed(0)
        draws = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        vector, estimate = torch.cat([d.flatten() for d in draws]), 0.0
        for iteration in range(1, iterations + 1):
            vector = vector / vector.norm()
            products = torch.autograd.grad(
                gradient, parameters, vector, retain_graph=True, materialize_grads=True
            )
            product = torch.cat([p.flatten() for p in products]) - shift * vector
            before, estimate = estimate, float(vector @ product)
            if iteration > 1 and abs(estimate - before) <= tolerance * abs(estimate):
                return estimate, iteration, True
            vector = product
        return estimate, iterations, False

    value, steps, converged = dominant(0.0)
    if value >= 0:
        return value, steps, converged
    above, more, also = dominant(value)
    return above + value, steps + more, converged and also


def valley(trainer: Trainer) -> dict[str, Any]:
    """The loss around the weights that a run ended on."""
    batch = trainer.workload.train.plan(0, 0)(0, EXAMPLES)
    exact = tuple(t.double() if t.is_floating_point() else t for t in batch)
    model = exact_copy(trainer.model)

    def loss(model: nn.Module) -> Tensor:
        return trainer.workload.loss(model, exact).losses.mean()

    slices = [loss_slice(model, loss, seed) for seed in range(DIRECTIONS)]
    eigenvalue, iterations, converged = top_eigenvalue(model, loss)
    return {
        "eigenvalue": eigenvalue, "iterations": iterations, "converged": converged,
        "train_loss": slices[0][POINTS // 2],
        "slices": [[round(x, 6) for x in losses] for losses in slices],
    }  # fmt: skip


def train(config: RunConfig, folder: Path, progress: Progress) -> None:
    """Trains a cell, and adds the valley to the figures of its last epoch."""
    torch.set_num_threads(1)
    trainer = Trainer(config, folder, overwrite=True)
    trainer.fit(on_progress=progress)
    *lines, last = read_records(folder / RECORDS)
    write_records(folder / RECORDS, [*lines, last | valley(trainer)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[1])
    parser.add_argument("--out", type=Path, default=Path("results/landscape"))
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    schedules = read_spec(SPEC)
    spec = schedules.replace(arms={arm: schedules.arms[arm] for arm in ARMS}, seeds=10)
    write_results(run_sweep(spec, asked.out, jobs=asked.jobs, train=train), RESULTS)


if __name__ == "__main__":
    main()

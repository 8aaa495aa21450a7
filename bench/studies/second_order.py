"""``python -m bench.studies.second_order``: training that differentiates twice, by recipe.

A Wasserstein GAN learns digits, whose critic has a penalty of its gradients (Gulrajani et al. 2017,
arXiv 1704.00028), and a network learns the heat equation from the equation itself. It is a sweep of
two programs, whose folder may be continued, and whose results are written to
bench/results/second-order.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.experiments import records
from lpkernels.experiments.sweeps.results import write_results
from lpkernels.experiments.sweeps.specification import SweepSpec
from lpkernels.experiments.sweeps.sweep import run_sweep
from lpkernels.experiments.sweeps.training import Progress
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.workloads.workload import Metric

RESULTS = Path(__file__).resolve().parents[1] / "results" / "second-order.jsonl"
WIDE = {"fprop": "fp32", "dgrad": "fp32", "wgrad": "fp32"}
RECIPES = {
    "fp32": lp.recipe("fp32"),
    "fp8": lp.Recipe(input="e4m3fn", weight="e4m3fn", grad_output="e5m2", **WIDE),
    "narrow sums": lp.Recipe(**dict.fromkeys(WIDE, "e6m9_chunk64")),
    "both": lp.recipe("fp8_wang2018"),
}


def perceptron(*sizes: int) -> nn.Sequential:
    """Layers of these sizes with softplus, which has all derivatives, between them."""
    layers: list[nn.Module] = []
    for i, o in pairwise(sizes):
        layers += [nn.Linear(i, o), nn.Softplus()]
    return nn.Sequential(*layers[:-1])


def penalty(model: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, float]:
    """The penalty of gradients whose norm is not 1, and their mean norm."""
    (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    norms = g.flatten(1).norm(dim=1)
    return (norms - 1).square().mean(), norms.mean().item()


def critic(recipe: lp.Recipe, seed: int = 0, steps: int = 150) -> dict[str, float]:
    """The norm of the critic's gradients, first and in the last 20 steps; how far the mean of the
    generator's digits is from that of the data, before training and after."""
    from sklearn.datasets import load_digits

    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    torch.manual_seed(seed)
    judge, generator = (lp.convert(perceptron(*s), recipe) for s in ((64, 64, 64, 1), (16, 64, 64)))
    optimizers = [torch.optim.Adam(m.parameters(), 4e-3, (0.5, 0.9)) for m in (judge, generator)]
    norms: list[float] = []

    def distance() -> float:
        return (images.mean(0) - generator(torch.randn(512, 16)).mean(0)).norm().item()

    before = distance()
    for step in range(steps):
        real = images[torch.randint(len(images), (64,))]
        fake = generator(torch.randn(64, 16))
        if step % 3 == 2:
            loss, optimizer = -judge(fake).mean(), optimizers[1]
        else:
            share = torch.rand(64, 1)
            between = (share * real + (1 - share) * fake.detach()).requires_grad_()
            term, norm = penalty(judge, between)
            loss, optimizer = judge(fake.detach()).mean() - judge(real).mean(), optimizers[0]
            loss = loss + 10 * term
            norms.append(norm)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    last = sum(norms[-20:]) / 20
    return {"first": norms[0], "norm": last, "before": before, "distance": distance()}


def heat(recipe: lp.Recipe, seed: int = 0, steps: int = 400) -> dict[str, float]:
    """The error before training and after. u_t = u_xx is a system of first order, q = u_x and
    u_t = q_x; u(x, 0) = sin(pi x) and u = 0 at both ends give u = exp(-pi^2 t) sin(pi x)."""
    torch.manual_seed(seed)
    model = lp.convert(perceptron(2, 48, 48, 2), recipe, exclude=["0", "4"])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def exact(points: Tensor) -> Tensor:
        x, t = points.unbind(1)
        return torch.exp(-(torch.pi**2) * t) * torch.sin(torch.pi * x)

    def sampled(count: int) -> Tensor:
        return torch.rand(count, 2) * torch.tensor([1.0, 0.2])

    def error() -> float:
        points = sampled(512)
        return (model(points)[:, 0] - exact(points)).square().mean().sqrt().item()

    before = error()
    for _ in range(steps):
        points = sampled(128).requires_grad_()
        u, q = model(points).unbind(1)
        (of_u,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (of_q,) = torch.autograd.grad(q.sum(), points, create_graph=True)
        loss = (of_u[:, 0] - q).square().mean() + (of_u[:, 1] - of_q[:, 0]).square().mean()
        border = sampled(96)
        border[:32, 1], border[32:64, 0], border[64:, 0] = 0.0, 0.0, 1.0
        loss = loss + 20 * (model(border)[:, 0] - exact(border)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"before": before, "rms_error": error()}


#: The tasks, each with the figure that counts.
TASKS: dict[str, tuple[Callable[[lp.Recipe, int], dict[str, float]], str]] = {
    "critic": (critic, "distance"),
    "heat": (heat, "rms_error"),
}


def specification() -> SweepSpec:
    arms = {arm: {"recipe": str(recipe)} for arm, recipe in RECIPES.items()}
    axes = {"data": list(TASKS)}
    return SweepSpec(name="Second derivatives", base={"epochs": 1}, arms=arms, axes=axes, seeds=5)


def train(config: RunConfig, folder: Path, progress: Progress) -> None:
    """Runs the task that the cell names as its data, and writes its figures as one epoch."""
    torch.set_num_threads(1)
    task = config.workload.data
    program, field = TASKS[task]
    figures = program(lp.recipe(config.arithmetic.recipe), config.seed)
    header = records.header(config, "", Metric(field, field, higher=False, percent=False))
    epoch = {"type": "epoch", "epoch": 1, "task": task, **figures}
    records.write_records(folder / records.RECORDS, [header, epoch])


if __name__ == "__main__":
    results = run_sweep(specification(), "results/second-order", jobs=1, train=train)
    write_results(results, RESULTS)

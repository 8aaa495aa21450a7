"""``python -m bench.precision_range``: what do the bounds of a range test cost?

Three networks train by Adam under the policy cpt_fu2021: a mixture of experts that classifies
MNIST-1D, a U-Net that labels the pixels of noisy mosaics of scikit-learn's digits, and an
autoencoder of these digits. For each seed a precision range test looks at the first 200 steps at 2
to 8 bits, and gives bounds with shares of 0.8 and 0.9 (from more steps where it cannot tell), and
by the rule of Fu et al. 2021. Then the network trains in 8 bits throughout, and in 8 cycles between
the bounds of each. All trainings of a seed have the same first weights and the same
batches. Records are appended to bench/results/precision-range.jsonl; a training that the file has
is not repeated.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lpkernels as lp
from bench.recording import held, keep
from lpkernels import schemas
from lpkernels.experiments.training.optimizers import cosine_lr
from lpkernels.experiments.workloads.tables import signals
from lpkernels.techniques.cpt import PrecisionScheduler, precision_range_test
from lpkernels.techniques.cpt.range_test import Level, PrecisionRange

RESULTS = Path(__file__).resolve().parent / "results" / "precision-range.jsonl"
KEYS = ("task", "arm", "seed")
TOP = 8
CYCLES = 8
STATIC = f"static {TOP}"
SHARES = {"share 0.8": 0.8, "share 0.9": 0.9}
RULES = (*SHARES, "fu2021")
FIGURES = ("error", "test_loss", "cost", "seconds")
Batch = tuple[Tensor, Tensor]


class Experts(nn.Module):
    """The two likeliest of four experts, weighted, for each example."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, rank = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, weights[rows, rank, None] * expert(x[rows]))
        return out


class Mixture(nn.Module):
    """A layer of experts beside the identity."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(40, width), nn.Linear(width, 10)
        self.experts, self.norm = Experts(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.norm(x + self.experts(x)))


def convolved(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()
    )


class UNet(nn.Module):
    """Labels of the pixels: ten digits and the background."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([convolved(1, width), convolved(width, 2 * width)])
        self.middle = convolved(2 * width, 4 * width)
        self.wider = nn.ModuleList(
            nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in (2 * width, width)
        )
        self.up = nn.ModuleList(convolved(2 * n, n) for n in (2 * width, width))
        self.head = nn.Conv2d(width, 11, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            kept.append(layer(x))
            x = nn.functional.max_pool2d(kept[-1], 2)
        x = self.middle(x)
        for wider, layer in zip(self.wider, self.up, strict=True):
            x = layer(torch.cat([wider(x), kept.pop()], 1))
        return self.head(x)


def autoencoder() -> nn.Module:
    """Eight numbers between an encoder and a decoder."""
    return nn.Sequential(
        *(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)),
        *(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64)),
    )


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Images between 0 and 1, and labels, in an order of no pattern."""
    from sklearn.datasets import load_digits as read

    data = read()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(data.images).float() / 16
    return images[order], torch.from_numpy(data.target).long()[order]


def mosaics(images: Tensor, labels: Tensor, seed: int, count: int) -> Batch:
    """Four digits and noise; the label of a dark pixel is its digit's, of others 10."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(images), (count, 2, 2), generator=generator)
    whole = images[chosen].transpose(2, 3).reshape(count, 1, 16, 16)
    each = labels[chosen][:, :, None, :, None].expand(-1, -1, 8, -1, 8).reshape(count, 16, 16)
    noise = 0.3 * torch.randn(whole.shape, generator=generator)
    return whole + noise, torch.where(whole[:, 0] > 0.3, each, 10)


Loss = Callable[[Tensor, Tensor], Tensor]
# Of the digits, the others are for the test.
TRAINING = 1400


def labelled_wrongly(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(1) != labels).float().mean()


def unexplained(outputs: Tensor, images: Tensor) -> Tensor:
    """The share of the variance that the outputs miss."""
    return (outputs - images).square().mean() / images.var()


def of_signals(seed: int, steps: int) -> tuple[list[Batch], Batch]:
    (x, y), (x_test, y_test) = signals()
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(x), generator=generator) for _ in range(math.ceil(steps / 40))]
    rows = torch.cat(orders)[: 100 * steps].reshape(steps, 100)
    return [(x[i, 0], y[i]) for i in rows], (x_test[:, 0], y_test)


def of_mosaics(seed: int, steps: int) -> tuple[list[Batch], Batch]:
    images, labels = digits()
    x, y = mosaics(images[:TRAINING], labels[:TRAINING], seed, 16 * steps)
    test = mosaics(images[TRAINING:], labels[TRAINING:], 2**20, 256)
    return list(zip(x.split(16), y.split(16), strict=True)), test


def of_digits(seed: int, steps: int) -> tuple[list[Batch], Batch]:
    images = digits()[0].flatten(1)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(TRAINING, (steps, 100), generator=generator)
    return [(images[i], images[i]) for i in rows], (images[TRAINING:], images[TRAINING:])


@dataclass(frozen=True)
class Task:
    """A network, its data, and the figure of its test: the less the better."""

    network: Callable[[], nn.Module]
    data: Callable[[int, int], tuple[list[Batch], Batch]]
    loss: Loss
    error: Loss
    steps: int
    lr: float


TASKS = {
    "mixture of experts": Task(Mixture, of_signals, cross_entropy, labelled_wrongly, 800, 0.003),
    "U-Net": Task(UNet, of_mosaics, cross_entropy, labelled_wrongly, 600, 0.005),
    "autoencoder": Task(autoencoder, of_digits, unexplained, unexplained, 1000, 0.003),
}


class Training:
    """A network and its optimizer, and a step of theirs."""

    def __init__(self, task: Task, seed: int) -> None:
        torch.manual_seed(seed)
        self.task = task
        self.model = lp.convert(task.network(), lp.policy("cpt_fu2021"))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=task.lr)
        self.batches, self.test = task.data(seed, task.steps)

    def step(self, batch: Batch) -> float:
        """exp(-loss) of the batch."""
        x, y = batch
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return math.exp(-loss.item())


def tested(task: Task, seed: int, factor: int) -> PrecisionRange:
    """The range test at the first steps of a training, with windows and steps of `factor` times
    their defaults."""
    training = Training(task, seed)
    return precision_range_test(
        training.step,
        lambda bits: lp.set_precision(training.model, bits, TOP),
        restore=[training.model, training.optimizer],
        batches=training.batches,
        window=50 * factor,
        steps_per_level=200 * factor,
    )


def judged(result: PrecisionRange, share: float) -> PrecisionRange:
    """The bounds by another share from the same accuracies."""
    accuracies = (accuracy for level in result.trace for accuracy in level.accuracy)
    return precision_range_test(
        lambda: next(accuracies),
        lambda bits: None,
        restore=[],
        window=result.window,
        steps_per_level=len(result.trace[0].accuracy),
        share=share,
    )


def bounds_of_fu2021(trace: Sequence[Level], threshold: float = 0.01) -> tuple[int, int] | None:
    """The bounds by the rule of Fu et al. 2021. The lowest is the first candidate whose accuracy
    rises from the first window to the last. The highest is our addition: the first one above it
    that is as good as the next."""
    rising = [i for i, level in enumerate(trace) if level.last - level.first > threshold]
    if not rising:
        return None
    above = trace[rising[0] + 1 :]
    enough = (a.bits for a, b in pairwise(above) if abs(a.last - b.last) <= threshold)
    return trace[rising[0]].bits, next(enough, trace[-1].bits)


def trained(task: Task, seed: int, bits: tuple[int, int]) -> dict[str, Any]:
    """One run in cycles between the bits: the test at the highest candidate of the range test, and
    the multiplied bits relative to float32."""
    begin = time.process_time()
    training = Training(task, seed)
    scheduler = PrecisionScheduler(
        training.model, task.steps, bits=bits, cycles=CYCLES, grad_bits=TOP
    )
    for step, batch in enumerate(training.batches):
        training.optimizer.param_groups[0]["lr"] = cosine_lr(task.lr, step, task.steps)
        training.step(batch)
        scheduler.step()
    training.model.eval()
    x, y = training.test
    with scheduler.at(), torch.no_grad():
        outputs = training.model(x)
    return {
        "error": task.error(outputs, y).item(),
        "test_loss": task.loss(outputs, y).item(),
        "cost": scheduler.expected_cost(),
        "seconds": round(time.process_time() - begin, 1),
    }


def bounds(name: str, seed: int) -> dict[str, dict[str, Any]]:
    """The bits of each rule, and the shares by which the range test chose; where it cannot tell it
    gets twice the steps, and then four times."""
    tests = [tested(TASKS[name], seed, 1)]
    said: dict[str, dict[str, Any]] = {"fu2021": {"bits": bounds_of_fu2021(tests[0].trace)}}
    for arm, share in SHARES.items():
        reasons = []
        for number, factor in enumerate((1, 2, 4)):
            if number == len(tests):
                tests.append(tested(TASKS[name], seed, factor))
            result = judged(tests[number], share)
            reasons.append(result.reason)
            if result.bits is not None:
                break
        said[arm] = {
            "bits": result.bits,
            "reasons": reasons,
            "steps_per_level": len(result.trace[0].accuracy),
            "shares": [level.share for level in result.trace],
            "spreads": [level.spread for level in result.trace],
        }
    return said


def run(path: Path, name: str, seed: int) -> None:
    """The trainings that the file lacks; equal bits train once."""
    runs = held(path, *KEYS)
    missing = [arm for arm in (STATIC, *RULES) if (name, arm, seed) not in runs]
    by_rule = bounds(name, seed) if set(missing) & set(RULES) else {}
    own = [r for (task, _, s), r in runs.items() if (task, s) == (name, seed) and r["bits"]]
    trainings = {tuple(r["bits"]): {f: r[f] for f in FIGURES} for r in own}
    for arm in missing:
        said = by_rule.get(arm) or {"bits": (TOP, TOP)}
        record = {**schemas.line("precision range"), "task": name, "arm": arm, "seed": seed, **said}
        if (bits := said["bits"]) is not None:
            if bits not in trainings:
                trainings[bits] = trained(TASKS[name], seed, bits)
            record |= trainings[bits]
        keep(path, record)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[1])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(asked.seeds):
        for name in asked.tasks:
            run(asked.out, name, seed)


if __name__ == "__main__":
    main()

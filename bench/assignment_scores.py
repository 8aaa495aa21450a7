"""``python -m bench.assignment_scores``: which form of a sensitivity ranks groups best.

The first-order change c of the loss by each element's rounding error is summed over a group in
three forms: as squares (what `score` does), as |c|, and with its sign. Each form is compared, by
Spearman's rank correlation over the groups, with how much the demotion of that group alone really
changes the loss: that of weights and results at once, that of gradients one step of plain descent
later. The real change is the mean of |change| over batches that were not scored. The networks are
untrained or trained for some steps, on classes that are centres with noise. Results are printed,
and appended to bench/results/assignment_scores.jsonl.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record
from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.nn.observing.tracing import left_as_found
from lpkernels.techniques.assignment import Assignment, Formats, Group, assign, group, trace
from lpkernels.techniques.assignment.scoring.scoring import changes

RESULTS = Path(__file__).resolve().parent / "results" / "assignment_scores.jsonl"
CLASSES = 10
LR, SCALE = 0.05, 4096.0
FORMS: dict[str, Callable[[Tensor], float]] = {
    "squares": lambda c: float(c.square().sum()),
    "magnitudes": lambda c: float(c.abs().sum()),
    "signed": lambda c: float(c.sum()),
}
Batch = tuple[Tensor, Tensor]


def formats(backward: bool) -> Formats:
    """The paper's low formats for one half of the tensors. All other tensors are float32, so that
    the loss that is compared is not rounded itself."""
    low = "fp_5_2_0_backward:nearest_away" if backward else "fp_4_3_4:nearest_away"
    half = ("fp32", low)
    if backward:
        return Formats(weight="fp32", activation="fp32", grad_activation=half, grad_weight="fp32")
    return Formats(weight=half, activation=half, grad_activation="fp32", grad_weight="fp32")


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...], int]]:
    """By name: a network, the shape of an example, and how many examples a batch has."""
    torch.manual_seed(1)
    found: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {}
    for name, shape, width, size in (
        ("mlp5", (20,), 32, 16), ("cnn3", (1, 16, 16), 4, 16), ("resnet8", (1, 16, 16), 4, 16),
        ("resnet18", (3, 32, 32), 4, 8),
    ):  # fmt: skip
        task = Task("vectors" if len(shape) == 1 else "images", shape, CLASSES)
        found[name] = (build_model(name, task, width=width), shape, size)
    return found


def batch_of(shape: Sequence[int], size: int, seed: int) -> Batch:
    """A batch of noise around the centre of each class."""
    centres = torch.randn(CLASSES, *shape, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (size,), generator=generator)
    return 0.5 * centres[labels] + torch.randn(size, *shape, generator=generator), labels


def train(model: nn.Module, shape: Sequence[int], steps: int) -> None:
    """Trains the model in plain float32."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    for step in range(steps):
        inputs, labels = batch_of(shape, 32, 1000 + step)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def loss_under(model: nn.Module, made: Assignment, batch: Batch, later: bool) -> float:
    """The loss under the assignment; later: the loss in float32 after a step under it."""
    with (
        left_as_found(model, [batch[0]]),
        assign(model, cross_entropy, made, promote=None, pack=False, counts=False) as assigned,
    ):
        value = assigned(*batch)
        if not later:
            return float(value.detach())
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(value * SCALE, parameters)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.data.sub_(gradient, alpha=LR / SCALE)
        return float(cross_entropy(model(batch[0]), batch[1]).detach())


def real_changes(
    model: nn.Module, groups: tuple[Group, ...], chosen: Formats, batches: list[Batch], later: bool
) -> list[float]:
    """The real change of the loss for each group, as the mean over the batches."""
    high = Assignment(groups, frozenset(), (), chosen)
    before = [loss_under(model, high, batch, later) for batch in batches]
    found = []
    for each in groups:
        # The value of the loss is what is compared, and it costs nothing.
        low = frozenset(t.key for t in each.tensors if t.key != "loss.nll_loss.Y")
        made = Assignment(groups, low, (), chosen)
        after = [loss_under(model, made, batch, later) for batch in batches]
        off = [abs(a - b) for a, b in zip(after, before, strict=True)]
        found.append(sum(off) / len(off))
    return found


def ranks_alike(a: list[float], b: list[float]) -> float:
    """Spearman's correlation."""
    x, y = (torch.tensor(v, dtype=torch.float64).argsort().argsort().double() for v in (a, b))
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


def compare(
    model: nn.Module, shape: tuple[int, ...], size: int, backward: bool, batches: int
) -> dict[str, float]:
    """The correlation of each form."""
    scored = batch_of(shape, size, 5)
    groups = group(trace(model, cross_entropy, scored))
    chosen = formats(backward)
    found = dict(changes(model, cross_entropy, scored, groups, chosen, lr=LR, loss_scale=SCALE))
    others = [batch_of(shape, size, 50 + number) for number in range(batches)]
    real = real_changes(model, groups, chosen, others, backward)
    guesses = {
        name: [
            abs(sum(form(found[t.key]) for t in each.tensors if t.key in found)) for each in groups
        ]
        for name, form in FORMS.items()
    }
    return {name: ranks_alike(guess, real) for name, guess in guesses.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.assignment_scores")
    parser.add_argument("--batches", type=int, default=6, help="that were not scored")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 40], help="of training before")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for steps in options.steps:
        for name, (model, shape, size) in networks().items():
            train(model, shape, steps)
            for what in ("values", "gradients"):
                found = compare(model, shape, size, what == "gradients", options.batches)
                told = ", ".join(f"{form} {value:+.2f}" for form, value in found.items())
                print(f"{name:9} {steps:3} steps, {what:9}: {told}", flush=True)
                record = {
                    **schemas.line("assignment_scores"), "network": name, "steps": steps,
                    "of": what, "batches": options.batches, **found, **environment("cpu"),
                    "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                }  # fmt: skip
                append_record(options.out, record)


if __name__ == "__main__":
    main()

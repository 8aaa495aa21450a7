"""``python -m bench.optimizer_states``: what narrow optimizer states cost, beside other packages'.

AdamW trains three workloads, in a plain loop. Its two moments are kept in float32; by
`MasterWeights` in 16, 8 and 4 bits; and by torchao and bitsandbytes in 8 and 4 bits, where these
are installed: the benchmark alone uses them (``pip install torchao bitsandbytes``). Tensors below
4,096 elements keep float32 moments everywhere, as both packages have it. Nothing else is rounded.
All optimizers see the same first weights and the same batches. Bytes are those of the tensors that
are kept for parameters of at least 4,096 elements. A run that RESULTS holds is not repeated.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench.recording import held, keep
from lpkernels import schemas
from lpkernels.cli._options import show_table
from lpkernels.experiments.records import Run, table_of
from lpkernels.experiments.sweeps.statistics import summarise
from lpkernels.experiments.training.optimizers import cosine_lr
from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.workload import Workload
from lpkernels.report.sweeps import sweep_table
from lpkernels.techniques.loss_scaling import MasterWeights

RESULTS = Path(__file__).resolve().parent / "results" / "optimizer-states.jsonl"
KEYS = ("task", "arm", "seed")
# What torchao and bitsandbytes leave in float32.
SMALLEST = 4096


@dataclass(frozen=True)
class Task:
    """What is trained: a workload, for how long, how fast."""

    workload: WorkloadConfig
    epochs: int
    batch: int
    lr: float


TASKS = {
    "mnist1d cnn3": Task(WorkloadConfig(data="mnist1d", model="cnn3", width=64), 24, 64, 0.005),
    "text lstm1": Task(WorkloadConfig(data="text", model="lstm1"), 3, 64, 0.01),
    "text gpt2": Task(WorkloadConfig(data="text", model="gpt2"), 2, 32, 0.003),
}


@dataclass(frozen=True)
class Arm:
    """How the moments are kept: the package, and what it is asked for."""

    package: str = "torch"
    wanted: Any = field(default="fp32", hash=False)


def _both(first: str, second: str) -> Arm:
    return Arm("lpkernels", {"exp_avg": first, "exp_avg_sq": second})


ARMS = {
    "fp32": Arm(),
    "bf16": _both("bf16", "bf16"),
    "bf16, stochastic": _both("bf16:stochastic", "bf16:stochastic"),
    "fp16": _both("fp16", "fp16"),
    "e4m3 in blocks": _both("block32_e4m3", "block32_e4m3"),
    "e4m3 and e5m2 in blocks": _both("block32_e4m3", "block32_e5m2"),
    "e4m3 and e5m2 in blocks, stochastic": _both(
        "block32_e4m3:stochastic", "block32_e5m2:stochastic"
    ),
    "e4m3 in blocks and e6m1, stochastic": _both("block32_e4m3:stochastic", "e6m1_b50:stochastic"),
    "e2m1 in blocks": _both("block32_e2m1", "block32_e2m1"),
    "e2m1 and e5m2 in blocks": _both("block32_e2m1", "block32_e5m2"),
    # A second moment that is rounded up is 0 only where gradients were 0.
    "e2m1 in blocks, the second up": _both("block32_e2m1", "block32_e2m1:toward_positive"),
    "torchao 8 bits": Arm("torchao", "AdamW8bit"),
    "torchao fp8": Arm("torchao", "AdamWFp8"),
    "torchao 4 bits": Arm("torchao", "AdamW4bit"),
    "bitsandbytes 8 bits": Arm("bitsandbytes", "AdamW8bit"),
}


def made(arm: Arm, model: nn.Module, lr: float) -> Optimizer:
    """The optimizer of an arm."""
    if arm.package == "torchao":
        import torchao.optim

        return getattr(torchao.optim, arm.wanted)(model.parameters(), lr=lr)
    if arm.package == "bitsandbytes":
        import bitsandbytes

        return getattr(bitsandbytes.optim, arm.wanted)(model.parameters(), lr=lr)
    if arm.package == "torch":
        return torch.optim.AdamW(model.parameters(), lr=lr)
    # A group for each parameter, in order: a parameter's number is in the keys of its draws.
    groups = [
        {"params": [p], "state": arm.wanted if p.numel() >= SMALLEST else "fp32"}
        for p in model.parameters()
    ]
    return MasterWeights(torch.optim.AdamW(groups, lr=lr), weight="fp32")


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Sets the rate; torchao's optimizers keep it in a tensor, which is written in place."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def tensors(value: Any) -> Iterator[Tensor]:
    """The plain tensors that a state is made of."""
    if not isinstance(value, Tensor):
        return
    if hasattr(value, "__tensor_flatten__"):
        for name in value.__tensor_flatten__()[0]:
            yield from tensors(getattr(value, name))
    else:
        yield value


def bytes_a_value(optimizer: Optimizer, model: nn.Module) -> float:
    """Bytes of the large parameters' moments, over the number of values that they stand for.

    Tensors that all parameters share (bitsandbytes' tables of 256 values) are left out.
    """
    kept = values = 0
    for p in model.parameters():
        if p.numel() < SMALLEST:
            continue
        values += 2 * p.numel()
        for name, value in optimizer.state[p].items():
            if name in ("step", "counts") or name.startswith("qmap"):
                continue
            kept += sum(t.numel() * t.element_size() for t in tensors(value))
    return kept / values


def score(model: nn.Module, workload: Workload) -> dict[str, float]:
    """The figures of the test set."""
    model.eval()
    sums: dict[str, float] = {}
    count = 0
    with torch.no_grad():
        for batch in workload.test:
            count += len(batch[0])
            for name, value in workload.measure(model, batch).items():
                sums[name] = sums.get(name, 0.0) + float(value)
    return workload.score(sums, count)


def trained(task: Task, arm: Arm, seed: int) -> dict[str, Any]:
    """One run: the figure it ends on, and the bytes of its states."""
    torch.manual_seed(seed)
    workload = find(task.workload)
    model = workload.model()
    optimizer = made(arm, model, task.lr)
    steps = math.ceil(len(workload.train) / task.batch)
    for epoch in range(task.epochs):
        plan = workload.train.plan(seed, epoch)
        for step in range(steps):
            at = epoch * steps + step
            set_lr(optimizer, cosine_lr(task.lr, at, task.epochs * steps))
            model.train()
            optimizer.zero_grad()
            workload.loss(model, plan(step, task.batch)).losses.mean().backward()
            optimizer.step()
    figures = score(model, workload)
    return {
        "metric": workload.metric.field,
        "figure": figures[workload.metric.field],
        "test_loss": figures["test_loss"],
        "bytes_a_value": bytes_a_value(optimizer, model),
    }


def show(path: Path) -> None:
    """Means, and differences to float32 states, paired by seed."""
    for task, config in TASKS.items():
        own = [r for (name, *_), r in held(path, *KEYS).items() if name == task]
        if own:
            table = table_of(Run(r["arm"], {}, r["seed"], "finished", [r]) for r in own)
            summary = summarise(table, "figure", reference="fp32")
            show_table(sweep_table(summary, find(config.workload).metric, title=task))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[1])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="Only print what the file holds.")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    for name in () if asked.show else asked.tasks:
        for seed in range(asked.seeds):
            for title, arm in ARMS.items():
                if (name, title, seed) in held(asked.out, *KEYS):
                    continue
                run = {**schemas.line("optimizer states"), "task": name, "arm": title, "seed": seed}
                run |= trained(TASKS[name], arm, seed)
                keep(asked.out, run)
    show(asked.out)


if __name__ == "__main__":
    main()

"""``python -m bench.assignments``: what a training step under an assignment costs.

The step trains ResNet-18 of width 16 on images of 32 x 32, forward and backward, with torch's
sums and with the sums of an accumulator. Beside it runs the same step with plain quantised layers:
each convolution and linear layer rounds its input, its weight and its output's gradient to the
formats that the assignment has for these, with the same accumulators; nothing between the layers is
rounded, and nothing is counted. All steps take turns. Times are the process's own, the best of each
step. Results are printed, and appended to bench/results/assignments.jsonl.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lpkernels as lp
from bench.recording import keep
from bench.timing import interleave
from lpkernels import schemas
from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.techniques.assignment import Assignment, Op, assign, demote, group, trace

RESULTS = Path(__file__).resolve().parent / "results" / "assignments.jsonl"
ACCUMULATORS = {"native": {}, "e6m9": dict.fromkeys(("fprop", "dgrad", "wgrad"), "e6m9")}
RATIOS = (0.0, 0.6, 1.0)


def plain(model: nn.Module, batch: tuple) -> Callable[[], None]:
    """A step of the model as it is."""

    def step() -> None:
        model.zero_grad()
        cross_entropy(model(batch[0]), batch[1]).backward()

    return step


def under(model: nn.Module, made: Assignment, batch: tuple, **options: object) -> Callable:
    """A step of the model under the assignment."""
    assigned = assign(model, cross_entropy, made, **options)

    def step() -> None:
        model.zero_grad()
        assigned(*batch).backward()
        assigned.step()

    return step


def quantised(model: nn.Module, ops: tuple[Op, ...], made: Assignment, sums: dict) -> nn.Module:
    """The model with layers that round their operands as the assignment does."""
    recipes = {}
    for op in ops:
        if op.is_gemm:
            recipes[op.name] = lp.Recipe(
                input=made.format_of(f"{op.inputs[0]}.Y"),
                weight=made.format_of(f"{op.name}.weight.P"),
                grad_output=made.format_of(f"{op.name}.GY"),
                **sums,
            )
    return lp.convert(copy.deepcopy(model), recipes)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.assignments")
    parser.add_argument("--seconds", type=float, default=20, help="of each comparison")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for sums in ACCUMULATORS:
        for ratio in RATIOS:
            compare(sums, ratio, options)


def compare(sums: str, ratio: float, options: argparse.Namespace) -> None:
    """Measures and prints one line of the report."""
    torch.manual_seed(0)
    model = build_model("resnet18", Task("images", (3, 32, 32), 10), width=16)
    batch = (torch.randn(options.batch, 3, 32, 32), torch.arange(options.batch) % 10)
    ops = trace(model, cross_entropy, batch)
    made = demote(group(ops), ratio)
    layers = quantised(model, ops, made, ACCUMULATORS[sums])
    if ACCUMULATORS[sums]:
        recipe = lp.Recipe(**ACCUMULATORS[sums])
        lp.convert(model, {op.name: recipe for op in ops if op.is_gemm})
    runs = {
        "quantised": plain(layers, batch),
        "assigned": under(model, made, batch),
        "uncounted": under(model, made, batch, promote=None),
        "whole": under(model, made, batch, pack=False),
    }
    found = interleave(runs, options.seconds, clock=time.process_time)
    best = {name: timing.best for name, timing in found.items()}
    over = best["assigned"] / best["quantised"]
    counting = best["assigned"] / best["uncounted"] - 1
    print(
        f"resnet18 {sums:6} ratio {ratio:.1f} quantised layers {1e3 * best['quantised']:7.1f} ms, "
        f"under the assignment {over:.3f} times that (not packed "
        f"{best['whole'] / best['quantised']:.3f}); counting {counting:+.1%}"
    )
    record = {
        **schemas.line("assignment step"), "model": "resnet18", "width": 16, "batch": options.batch,
        "sums": sums, "ratio": made.ratio, "threads": options.threads,
        "clock": "process_time", **{f"{name}_s": value for name, value in best.items()},
        "over": over, "counting": counting, "samples": found["assigned"].samples,
    }  # fmt: skip
    keep(options.out, record)


if __name__ == "__main__":
    main()

"""``python -m bench.steps``: what small layers and small models cost beside torch's in float32.

Each case runs in turns with the same in torch, on one thread; the best of each counts, in seconds
of the processor, which other programs lengthen least. Ratios are printed, and appended to
bench/results/steps.jsonl.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import lpkernels as lp
from bench.recording import keep
from bench.timing import OtherWork, interleave
from lpkernels import schemas
from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.experiments.workloads.models.transformer import GPT

RESULTS = Path(__file__).resolve().parent / "results" / "steps.jsonl"
Call = Callable[[], object]
#: Width of the GPT: batch, length.
BATCHES = {32: (4, 32), 64: (8, 32), 128: (8, 64), 256: (8, 64)}
RECIPES = ("fp8_wang2018", "mxfp8", "nvfp4", "deepseek_v3")


def step_of(model: nn.Module, batch: Tensor) -> Call:
    """A forward and a backward pass."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        result = model(batch)
        (result[0] if isinstance(result, tuple) else result).sum().backward()

    return step


def pair(model: nn.Module, method: str, batch: Tensor) -> tuple[Call, Call]:
    """The step of a model under a method, and torch's own."""
    return step_of(lp.convert(copy.deepcopy(model), method), batch), step_of(model, batch)


def cases() -> dict[str, tuple[Call, Call]]:
    """By name, our call and torch's."""
    torch.manual_seed(0)
    a, b, x = torch.randn(4, 4), torch.randn(4, 4), torch.randn(8)
    small = torch.randn(4, 4, requires_grad=True)

    def torchs() -> Tensor:
        return torch.mm(a, b)

    named: dict[str, tuple[Call, Call]] = {
        "matmul 4x4x4": (lambda: lp.matmul(a, b, "e6m9"), torchs),
        "quantize 8 values": (lambda: lp.quantize(x, "e5m2"), torchs),
        "Linear 4x4": pair(nn.Linear(4, 4), "fp8_wang2018", small),
        "LSTM 8 x 16 steps": pair(nn.LSTM(8, 8), "fp8_wang2018", torch.randn(16, 4, 8)),
        "ResNet-20 fp8_wang2018": pair(
            build_model("resnet20", Task("images", (3, 32, 32), 10)),
            "fp8_wang2018",
            torch.randn(8, 3, 32, 32),
        ),
    }
    for width, shape in BATCHES.items():
        model = GPT(tokens=64, width=width, depth=4, context=64)
        tokens = torch.randint(64, shape)
        for recipe in RECIPES:
            named[f"GPT {width} {recipe}"] = pair(model, recipe, tokens)
    return named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases with this text in their name")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case")
    parser.add_argument("--keep", action="store_true", help="append a record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, (ours, torchs) in cases().items():
        if options.only not in name:
            continue
        work, runs = OtherWork(), {"ours": ours, "torch": torchs}
        times = interleave(runs, options.seconds, clock=time.process_time)
        microseconds = {name: times[name].best * 1e6 for name in runs}
        ratio = round(microseconds["ours"] / microseconds["torch"], 2)
        print(f"{name:28} {ratio:6.2f}  {microseconds['ours']:9.1f} us", flush=True)
        if options.keep:
            figures = {"ratio": ratio, "us": round(microseconds["ours"], 1)}
            record = {**schemas.line("step"), "case": name, **figures}
            keep(RESULTS, {**record, "busy": work.processors()})


if __name__ == "__main__":
    main()

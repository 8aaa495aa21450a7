"""``python -m bench.memory``: what the layers of a ResNet-18 keep for backward, and a step's peak.

Three models with the same weights take one training step on the same images: torch's own, one that
is converted with activations kept as they are, and one converted with activations packed. Two
figures are printed, and appended to bench/results/activation-memory.jsonl. One is the bytes of
distinct storages that the linear and convolution layers keep between forward and backward, without
weights. The other is the peak of what torch's allocator has given to the step, forward and
backward, beyond the weights, buffers and gradients that are there before. Each model runs in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import lpkernels as lp
from bench.recording import keep
from lpkernels import schemas
from lpkernels.experiments.workloads.bundled import network

RESULTS = Path(__file__).resolve().parent / "results" / "activation-memory.jsonl"
MODES = ("torch", "as they are", "packed")
MODEL = "resnet18-imagenet"


def recipe(fmt: str, accumulator: str) -> lp.Recipe:
    """Activations and weights in one format, every product in one accumulator."""
    return lp.Recipe(input=fmt, weight=fmt, fprop=accumulator, dgrad=accumulator, wgrad=accumulator)


class KeptByLayers:
    """Counts distinct storages that linear and convolution layers save, but for parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.bytes: dict[int, int] = {}
        # A storage stays alive while it is counted, because its address is its name.
        self._held: list[Tensor] = []
        self._parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._contexts: list[AbstractContextManager[None]] = []
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.register_forward_pre_hook(self._enter)
                module.register_forward_hook(self._leave)

    def _enter(self, module: nn.Module, args: Any) -> None:
        context = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda t: t)
        context.__enter__()
        self._contexts.append(context)

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        self._contexts.pop().__exit__(None, None, None)

    def _keep(self, t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in self._parameters:
            self.bytes[storage.data_ptr()] = storage.nbytes()
            self._held.append(t)
        return t


class Step:
    """One training step of a bundled model in one of the three modes."""

    def __init__(self, mode: str, batch: int, fmt: str, accumulator: str, model: str) -> None:
        self.work, self.mode = network(model, batch=batch), mode
        if mode != "torch":
            lp.convert(self.work.model, recipe(fmt, accumulator))

    def forward(self) -> Tensor:
        packs = lp.functional.packed_activations(self.mode == "packed")
        with nullcontext() if self.mode == "torch" else packs:
            return self.work.loss(self.work.model(self.work.sample))

    def kept(self) -> int:
        """The bytes that the layers keep."""
        watched = KeptByLayers(self.work.model)
        self.forward()
        return sum(watched.bytes.values())

    def peak(self) -> int:
        """The peak of a step that starts with all gradients in memory."""
        self.forward().backward()
        return _peak(lambda: self.forward().backward())


def _peak(step: Callable[[], None]) -> int:
    """The largest sum of the bytes that torch's allocator has handed out, and not got back, in
    step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    assert record.profiler is not None
    events = record.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    return max(accumulate(size for _, size in sorted(changes)), default=0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--format", action="append", help="default: e5m2 and fp4_e2m1")
    parser.add_argument("--accumulator", default="e6m9")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", choices=MODES, help="measure this one here and print it as JSON")
    options = parser.parse_args(arguments)
    formats = options.format or ["e5m2", "fp4_e2m1"]
    if options.one:
        step = Step(options.one, options.batch, formats[0], options.accumulator, MODEL)
        print(json.dumps({"peak": step.peak(), "kept": step.kept()}))
        return
    for fmt in formats:
        bits = lp.parse_format(fmt).bits
        print(
            f"{MODEL}, batch {options.batch}, {fmt}, {bits / 32} of 32 bits, {options.accumulator}"
        )
        torchs = 0
        for mode in MODES:
            call = [sys.executable, "-m", "bench.memory", "--one", mode]
            call += ["--batch", str(options.batch), "--format", fmt]
            call += ["--accumulator", options.accumulator]
            found = json.loads(subprocess.check_output(call, text=True))
            torchs = found["kept"] if mode == "torch" else torchs
            share = found["kept"] / torchs
            kept, peak = found["kept"] / 2**20, found["peak"] / 2**20
            print(f"  {mode:12} layers keep {kept:8.2f} MiB, {share:.4f} of torch's; ", end="")
            print(f"peak of a step {peak:8.1f} MiB")
            record = {**schemas.line("activation memory"), "model": MODEL, "batch": options.batch}
            record |= {"format": fmt, "accumulator": options.accumulator, "mode": mode, **found}
            keep(options.out, record | {"share": share})


if __name__ == "__main__":
    main()

"""``python -m bench.updates``: an optimizer's step in one pass, against a copy of as many bytes.

Each case first has to give the reference's bits on a small parameter; then it runs in turns with
torch's copy_ of as many bytes as the pass reads and writes, and torch's own fused optimizer in
float32. After the cases a model of sixty small parameters runs against torch's fused and foreach
steps. Times are processor time of all threads. Results are appended to bench/results/updates.jsonl.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

import lpkernels as lp
from bench.timing import OtherWork, Summary, interleave
from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record
from lpkernels.techniques.loss_scaling import MasterWeights

RESULTS = Path(__file__).resolve().parent / "results" / "updates.jsonl"
SEED = 20260
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": lambda p, **how: torch.optim.AdamW(p, lr=1e-3, **how),
    "SGD": lambda p, **how: torch.optim.SGD(p, lr=1e-3, momentum=0.9, **how),
}


@dataclass(frozen=True)
class Case:
    """An optimizer, the dtype of parameter and gradient, and the formats of masters."""

    optimizer: str
    dtype: torch.dtype
    formats: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        formats = " ".join(f"{name}={text}" for name, text in self.formats.items())
        return f"{self.optimizer} {str(self.dtype).removeprefix('torch.')} {formats}"


def _cases() -> tuple[Case, ...]:
    narrow = [
        {"weight": "bf16", "master": "fp32"},
        {"weight": "bf16", "master": "bf16:stochastic", "state": "bf16"},
        {"weight": "bf16", "master": "e6m9", "state": "bf16"},
        {"weight": "bf16", "master": "fp16", "state": "bf16"},
        {"weight": "bf16", "master": "e6m9:stochastic", "state": "bf16"},
        {"weight": "bf16", "master": "fp16", "state": "fp8_e5m2"},
        {"weight": "bf16", "master": "e4m3fn", "state": "fp8_e5m2"},
        {"weight": "bf16", "master": "e4m3fn:stochastic", "state": "fp8_e5m2:stochastic"},
    ]
    cases = []
    for name in OPTIMIZERS:
        cases.append(Case(name, torch.float32, {"weight": "fp32"}))
        cases += [Case(name, torch.bfloat16, formats) for formats in narrow]
    return tuple(cases)


CASES = _cases()


def prepared(case: Case, elements: int) -> tuple[nn.Parameter, MasterWeights]:
    """A parameter in the midst of training."""
    generator = torch.Generator().manual_seed(SEED)
    p = nn.Parameter(torch.randn(elements, generator=generator).to(case.dtype))
    optimizer = MasterWeights(
        OPTIMIZERS[case.optimizer]([p]), **case.formats, fused=True, generator=torch.tensor(SEED)
    )
    p.grad = torch.randn(elements, generator=generator).to(case.dtype)
    for _ in range(2):
        optimizer.step()
    return p, optimizer


def gate(case: Case) -> None:
    """Raises AssertionError if the kernels do not give the reference's bits."""
    ends: list[dict[str, Tensor]] = []
    for backend in ("cpu", "reference"):
        os.environ["LPKERNELS_BACKEND"] = backend
        try:
            p, optimizer = prepared(case, 1037)
        finally:
            del os.environ["LPKERNELS_BACKEND"]
        ends.append({"weight": p.detach(), **optimizer.state[p]})
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), f"{case.name}: {name} is not the reference's"


def moved(p: nn.Parameter, optimizer: MasterWeights) -> int:
    """Bytes that the pass must read and write."""
    kept = {k: v for k, v in optimizer.state[p].items() if k not in ("counts", "step")}
    states = sum(2 * x.numel() * x.element_size() for x in kept.values())
    return states + p.numel() * p.element_size() * (2 if "master" in kept else 3)


def compare(case: Case, options: argparse.Namespace, threads: int) -> dict[str, Any]:
    """Measures one line of the report."""
    p, optimizer = prepared(case, options.elements)
    size = moved(p, optimizer)
    source = torch.zeros(size // 8, dtype=torch.float32)
    target = torch.zeros_like(source)
    bare = nn.Parameter(torch.randn(options.elements))
    bare.grad = torch.randn(options.elements)
    torchs = OPTIMIZERS[case.optimizer]([bare], fused=True)
    runs: dict[str, Callable[[], object]] = {
        "fused": optimizer.step,
        "copy": lambda: target.copy_(source),
        "torch": torchs.step,
    }
    others = OtherWork()
    found = interleave(runs, options.seconds, clock=process_time)
    ratio = found["copy"].best / found["fused"].best
    print(
        f"{case.name:62} {threads} {size / options.elements:5.1f} B "
        f"{1e9 * found['fused'].best / options.elements:7.3f} ns  of copy_ {ratio:5.2f}  "
        f"torch {found['torch'].best / found['fused'].best:5.2f}",
        flush=True,
    )
    return {
        **schemas.line("update"), "case": case.name, "optimizer": case.optimizer,
        "dtype": str(case.dtype), "formats": case.formats, "elements": options.elements,
        "threads": threads, "clock": "processor", "bytes_per_element": size / options.elements,
        "of_copy": ratio,
        **{f"{name}_s": times(summary) for name, summary in found.items()},
        "others": others.processors(),
    }  # fmt: skip


def small(options: argparse.Namespace) -> dict[str, Any]:
    """Measures the line of a model of sixty small parameters."""

    def model(make: Callable[[list[nn.Parameter]], Any]) -> Callable[[], object]:
        held = [nn.Parameter(torch.randn(8 + 4 * (i % 15), 16)) for i in range(60)]
        for p in held:
            p.grad = torch.randn_like(p)
        return make(held).step

    adamw = OPTIMIZERS["AdamW"]
    runs = {
        "fused": model(lambda p: MasterWeights(adamw(p), weight="bf16", fused=True)),
        "drawn": model(
            lambda p: MasterWeights(adamw(p), weight="bf16", master="e6m9:stochastic", fused=True)
        ),
        "general": model(lambda p: MasterWeights(adamw(p), weight="bf16", fused=False)),
        "torch fused": model(lambda p: adamw(p, fused=True)),
        "torch foreach": model(lambda p: adamw(p, foreach=True)),
    }
    others = OtherWork()
    found = interleave(runs, options.seconds, clock=process_time)
    for name, summary in found.items():
        print(f"60 small parameters, {name:14} {1e6 * summary.best:8.0f} us")
    return {
        **schemas.line("update of small parameters"), "parameters": 60, "threads": 1,
        "clock": "processor",
        **{f"{name.replace(' ', '_')}_s": times(summary) for name, summary in found.items()},
        "others": others.processors(),
    }  # fmt: skip


def times(summary: Summary) -> dict[str, float]:
    return {"best": summary.best, "p50": summary.p50, "samples": summary.samples}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.updates")
    parser.add_argument("--seconds", type=float, default=4, help="of each comparison")
    parser.add_argument("--threads", type=lambda x: [*map(int, x.split(","))], default=[1, 2])
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    backend: Any = lp.backends.get("cpu")
    where = {**environment("cpu"), "isa": backend.isa()}

    def keep(record: dict[str, Any]) -> None:
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        append_record(options.out, {**record, "time": when, "seed": SEED, "environment": where})

    for case in (case for case in CASES if options.filter in case.name):
        gate(case)
        for threads in options.threads:
            torch.set_num_threads(threads)
            keep(compare(case, options, threads))
    torch.set_num_threads(1)
    keep(small(options))


if __name__ == "__main__":
    main()

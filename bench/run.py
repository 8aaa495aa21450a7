"""``python -m bench.run``: times the cases of registry.py, prints a table, appends records.

Each case first has to give the reference's bits on a small shape (gate.py); then it runs in turns
with its baselines (timing.py). Every line is also a JSON record in
bench/results/<processor>.jsonl, written as soon as it is measured.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any

import torch

import lpkernels as lp
from bench.gate import gate
from bench.gpu_cases import GPU_CASES
from bench.ops import SEED, Job, build
from bench.registry import CASES, Case, gate_case
from bench.timing import OtherWork, Summary, interleave
from lpkernels import schemas
from lpkernels.experiments.measuring.machine import device_name, environment
from lpkernels.experiments.records import append_record

RESULTS = Path(__file__).resolve().parent / "results"
# A line is marked if other processes kept at least this many processors busy.
SHARED = 0.1


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, or 1 if a case failed its gate."""
    options = parse(arguments)
    cases = chosen(options)
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    device = torch.device(options.device).type
    names = [options.backend] if options.backend else backends_of(device)
    path = options.out / f"{slug(device_name(device))}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    where = {**environment(device), "isa": isa(device)}
    print(f"{where['device']}, {where['isa']}, torch {where['versions']['torch']}, {path}")
    print(f"load average before: {os.getloadavg()[0]:.2f}")
    print(HEADER)
    deadline = time.monotonic() + options.limit
    failed, gated = [], set()
    before = torch.get_num_threads()
    for case, backend in product(cases, names):
        if time.monotonic() > deadline:
            print(f"{case.name}: not run, --limit {options.limit:g} s has passed")
            continue
        try:
            key = (gate_case(case).name, backend)
            if key not in gated:
                gate(case, device, backend)
                gated.add(key)
        except AssertionError as error:
            failed.append(case.name)
            print(f"{case.name}: WRONG, not timed: {error}")
            continue
        except NotImplementedError as error:
            print(f"{case.name}: skipped: {error}")
            continue
        for threads in options.threads if device == "cpu" else [before]:
            torch.set_num_threads(threads)
            record = measure(case, device, backend, threads, case.share * options.seconds)
            append_record(path, {**record, "quick": options.quick, "environment": where})
            print(line(record), flush=True)
    torch.set_num_threads(before)
    print(f'ratio: speed over the baseline\'s, best against best; "{MARK}": others used processors')
    if failed:
        print(f"wrong results: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the few cases that tell most")
    parser.add_argument("--filter", default="", help="only cases whose name matches this regex")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--backend", default="", help="only this one; default: all that can run")
    threads = [1, 2] if (os.cpu_count() or 1) > 1 else [1]
    parser.add_argument("--threads", type=_counts, default=threads, help="such as 1,2")
    parser.add_argument("--seconds", type=float, default=2.5, help="time for each line")
    parser.add_argument("--limit", type=float, default=540, help="start no case after so long")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    return parser.parse_args(arguments)


def _counts(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def chosen(options: argparse.Namespace) -> list[Case]:
    every = CASES if torch.device(options.device).type == "cpu" else GPU_CASES
    cases = [case for case in every if case.quick or not options.quick]
    return [case for case in cases if re.search(options.filter, case.name)]


def measure(case: Case, device: str, backend: str, threads: int, budget: float) -> dict[str, Any]:
    """One record, without the facts about where it was measured."""
    job = build(case, device, backend)
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    others = OtherWork()
    load = os.getloadavg()[0]
    with torch.no_grad() if case.op != "train_step" else torch.enable_grad():
        runs = {"lpkernels": job.run, **job.baselines}
        times = interleave(runs, budget, synchronize=wait)
    own = times.pop("lpkernels")
    return {
        **schemas.line("bench"),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "case": case.name,
        "op": case.op,
        "shape": list(case.shape),
        "spec": case.spec,
        "operands": case.operands,
        "backend": backend,
        "threads": threads,
        "seed": SEED,
        "load": round(load, 2),
        "others": others.processors(),
        "unit": job.unit,
        **figures(job, own),
        "baselines": {
            name: {
                **figures(job, other, name),
                "ratio": job.rate(own.best) / job.rate(other.best, name),
                "ratio_p50": job.rate(own.p50) / job.rate(other.p50, name),
            }
            for name, other in times.items()
        },
    }


def figures(job: Job, times: Summary, baseline: str = "") -> dict[str, Any]:
    return {
        "seconds": {"best": times.best, "p20": times.p20, "p50": times.p50, "p80": times.p80},
        "samples": times.samples,
        "calls_per_sample": times.calls_per_sample,
        "rate": job.rate(times.best, baseline),
    }


MARK = "*"
_COMPARED = ("torch", "gemm", "avx512", "quantize", "hopper_fp8")
_COLUMNS = "{:<72} {:>3} {:>10} {:>10} {:>17}" + " {:>12}" * len(_COMPARED)
HEADER = _COLUMNS.format(
    "case", "thr", "best", "median", "rate", *(f"x {name}" for name in _COMPARED)
)


def line(record: dict[str, Any]) -> str:
    """One row of the table."""
    ratios = {name: other["ratio"] for name, other in record["baselines"].items()}
    seconds = record["seconds"]
    row = _COLUMNS.format(
        record["case"] if record["backend"] == "cpu" else f"{record['backend']}: {record['case']}",
        record["threads"],
        duration(seconds["best"]),
        duration(seconds["p50"]),
        f"{record['rate']:.4g} {record['unit']}",
        *(f"{ratios[name]:.3g}" if name in ratios else "" for name in _COMPARED),
    )
    return row + (f" {MARK}" if (record["others"] or 0) > SHARED else "")


def duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def slug(name: str) -> str:
    """The name of a processor as the name of a file."""
    plain = re.sub(r"\((?:r|tm)\)", "", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def isa(device: str) -> str:
    backend: Any = lp.backends.get(device)
    return str(backend.isa()) if device == "cpu" else device


def backends_of(device: str) -> list[str]:
    """The backends of tensors on `device` that can run here, except for the reference."""
    kernels = ["cpu"] if device == "cpu" else ["cuda", "triton"]
    status = lp.backends.status()
    for name in kernels:
        if status[name] != "available":
            print(f"without the backend {name}: {status[name]}")
    return [name for name in kernels if status[name] == "available"]


if __name__ == "__main__":
    sys.exit(main())

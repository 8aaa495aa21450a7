"""``python -m bench.gpu``: what `make gpu` runs once the package is built, within some seconds.

The parts, in their order: the bits of every kernel beside the CPU's (tests marked cuda or triton),
speed (bench.run), random cases (bench.gpu_random), and memory checks by compute-sanitizer. A part
that ends early leaves its seconds to the parts after it; a part that does not end is stopped. Every
part writes its log and its records as it goes, and one line about itself to gpu.jsonl in the folder
of the results; its log names what did not fit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import lpkernels as lp
from bench.recording import keep
from bench.run import RESULTS
from lpkernels.experiments.measuring import machine

_ELEMENTS = "tests/backends/cuda/test_cuda_elements.py"
# One format under every layout, dtype and number of random bits, scales and codes: the sanitizer
# makes each launch slow.
_SMALL = "strides or dtype or draws or seed_on or every_mode or codes_of_blocks or names_the_first"
_TESTS = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "--skip-missing-oracles")


@dataclass(frozen=True)
class Part:
    """A part of the run.

    Attributes:
        name: of its log.
        share: its share of the seconds that are left, against the shares of the parts after it.
        arguments: of Python, from its seconds and the folder of the results.
        tool: a program that it needs on PATH; "": none.
        before: the words before Python.
    """

    name: str
    share: float
    arguments: Callable[[float, Path], tuple[str, ...]]
    tool: str = ""
    before: tuple[str, ...] = ()


def _sanitized(tool: str) -> Part:
    words = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "1")
    return Part(
        tool,
        1,
        lambda seconds, _: (
            *_TESTS, "-m", "cuda", "-k", _SMALL, "--within", f"{seconds}", _ELEMENTS,
        ),
        words[0],
        words,
    )  # fmt: skip


PARTS = (
    Part(
        "bits",
        8,
        lambda seconds, _: (
            *_TESTS, "-m", "(cuda or triton) and not slow", "--within", f"{seconds}", "tests",
        ),
    ),
    Part(
        "speed",
        8,
        lambda seconds, out: (
            "-m", "bench.run", "--device", "cuda", "--limit", f"{seconds}", "--seconds", "1",
            "--out", f"{out}",
        ),
    ),
    Part(
        "random",
        2,
        lambda seconds, out: (
            "-m", "bench.gpu_random", "--seconds", f"{seconds}", "--out", f"{out}",
        ),
    ),
    *map(_sanitized, ("memcheck", "racecheck", "initcheck")),
)  # fmt: skip

# A part that has its seconds as an option ends by itself; this much later it is stopped.
_GRACE = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, or 1 if a part failed."""
    options = parse(arguments)
    parts = [part for part in PARTS if not options.parts or part.name in options.parts]
    print(f"torch {torch.__version__}, {machine.cuda_status()}")
    for name in ("cuda", "triton"):
        print(f"backend {name}: {lp.backends.status()[name]}")
    if not options.dry_run and not torch.cuda.is_available():
        print("no part can run without a CUDA device; --dry-run prints the parts", file=sys.stderr)
        return 1
    end = time.monotonic() + options.seconds
    failed = []
    for i, part in enumerate(parts):
        left = max(0.0, end - time.monotonic()) if not options.dry_run else options.seconds
        seconds = round(left * part.share / sum(other.share for other in parts[i:]), 1)
        outcome = _outcome(part, seconds, options)
        print(f"== {part.name}: {outcome}", flush=True)
        if outcome.startswith("failed"):
            failed.append(part.name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in PARTS]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(names)}")
    parser.add_argument("--dry-run", action="store_true", help="print the parts and run none")
    seconds = float(os.environ.get("GPU_SECONDS", "540"))
    parser.add_argument("--seconds", type=float, default=seconds, help="of all parts together")
    out = Path(os.environ.get("OUT") or RESULTS)
    parser.add_argument("--out", type=Path, default=out, help="folder of logs and records")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.parts if name not in names]:
        parser.error(f"no part is called {unknown[0]}: the parts are {', '.join(names)}")
    return options


def _outcome(part: Part, seconds: float, options: argparse.Namespace) -> str:
    """Runs a part, and what became of it in words."""
    command = [*part.before, sys.executable, *part.arguments(seconds, options.out)]
    print(f"== {part.name}, {seconds:.0f} s: {' '.join(command)}", flush=True)
    if part.tool and not shutil.which(part.tool):
        return f"not run, {part.tool} is not on PATH"
    if options.dry_run:
        return "not run"
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    status = _run(command, seconds + _GRACE, options.out / f"gpu-{part.name}.log")
    took = round(time.monotonic() - start, 1)
    # pytest's 5: no test was left to run.
    outcome = "ended" if status in (0, 5) else "stopped" if status is None else f"failed ({status})"
    line = {"part": part.name, "outcome": outcome, "seconds": took, "of": seconds}
    keep(options.out / "gpu.jsonl", {**line, "gpu": machine.device_name("cuda")})
    return f"{outcome} after {took} s of {seconds}"


def _run(command: list[str], seconds: float, log: Path) -> int | None:
    """The exit status; None if the command, with all that it started, was stopped."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    lines = log.read_text(errors="replace").splitlines()
    print("\n".join(lines[-40:]), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())

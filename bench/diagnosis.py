"""``python -m bench.diagnosis``: what a training step costs more when every tensor is counted.

ResNet-8 on digits32, one process, the step of the trainer (`bench.training_loop`) in float32, with
FP8 operands and an emulated accumulator (fp8_wang2018), and with operands in e5m2 and one e6m9
accumulator, undiagnosed and diagnosed in fp16. The two runs take turns; the best of each counts.
Printed, and appended to bench/results/diagnosis.jsonl.
"""

from __future__ import annotations

import argparse
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from bench.timing import OtherWork, interleave
from bench.training_loop import through_the_loop
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record
from lpkernels.experiments.training.config import RunConfig

RESULTS = Path(__file__).resolve().parent / "results" / "diagnosis.jsonl"
ARITHMETIC: dict[str, dict[str, Any]] = {
    "fp32": {"recipe": "fp32"},
    "fp8_wang2018": {"recipe": "fp8_wang2018"},
    "e5m2, sums in e6m9": {"operands": "e5m2", "grads": "e5m2", "acc": "e6m9"},
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.diagnosis")
    parser.add_argument("--seconds", type=float, default=30, help="of each comparison")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", default="digits32")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for name, values in ARITHMETIC.items():
        compare(name, values, options)


def compare(name: str, values: dict[str, Any], options: argparse.Namespace) -> None:
    """One line of the report."""
    plain = RunConfig.of(data=options.data, model="resnet8", threads=options.threads, **values)
    configs = {"plain": plain, "diagnosed": plain.replace(diagnose="fp16")}
    other = OtherWork()
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            which: through_the_loop(config, Path(folder) / which)
            for which, config in configs.items()
        }
        found = interleave(runs, options.seconds)
    over = found["diagnosed"].best / found["plain"].best - 1
    middle = found["diagnosed"].p50 / found["plain"].p50 - 1
    print(
        f"resnet8 on {options.data} {name:20} {1e3 * found['plain'].best:7.2f} ms a step, "
        f"diagnosed {over:+.1%} (medians {middle:+.1%})"
    )
    record = {
        "type": "diagnosis", "model": "resnet8", "data": options.data, "arithmetic": name,
        "batch": plain.batch, "threads": options.threads, "plain_s": found["plain"].best,
        "diagnosed_s": found["diagnosed"].best, "over": over, "over_median": middle,
        "samples": found["plain"].samples, "other_processors": other.processors(),
        "when": datetime.now(timezone.utc).isoformat(),
    }  # fmt: skip
    append_record(options.out, record | {"environment": environment("cpu")})


if __name__ == "__main__":
    main()

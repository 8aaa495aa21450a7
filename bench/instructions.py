"""``python -m bench.instructions``: instructions a product, counted and not timed.

One product of 60 x K by K x 64 (csrc/bench/instructions.cpp) on one thread, for two K, of operands
of 23 and of 2 mantissa bits, which are float32 and e5m2: the difference of the counts, divided by
the products between them. qemu-aarch64 runs the program that `make arm` compiled and writes a line
for each instruction of ARM; no ARM processor has run it. valgrind counts those of x86, where it
knows AVX2 and not AVX-512. The plain float32 loop of the same compiler stands beside them:
C[i][j] += A[i][l] B[l][j] at -O3. bench/results/instructions.jsonl has one JSON record a line.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from bench.run import RESULTS
from lpkernels import _build, schemas
from lpkernels.experiments.records import append_record

_ROOT = Path(__file__).resolve().parents[1]
_K = (128, 256)
_PRODUCTS = 60 * 64 * (_K[1] - _K[0])
#: (operands, their mantissa bits)
OPERANDS = (("fp32", 23), ("e5m2", 2))
ACCUMULATORS = ("e6m9_chunk64", "e5m10", "e6m9:stochastic")
#: (architecture, LPKERNELS_ISA)
SETS = (
    ("aarch64", "neonfp16"), ("aarch64", "neon"), ("aarch64", "scalar"),
    ("x86_64", "avx2"), ("x86_64", "scalar"),
)  # fmt: skip


def main() -> int:
    programs = {
        "aarch64": _ROOT / "build" / "arm" / "lpk_instructions",
        "x86_64": _ROOT / "build" / str(sys.implementation.cache_tag) / "lpk_instructions",
    }
    for path in programs.values():
        if not path.exists():
            print(f"{path} is missing: cmake --build {path.parent} --target lpk_instructions")
            return 1
    print(f"{'processor':10}{'isa':10}{'operands':10}{'accumulator':18}instructions a product")
    cases = [
        (architecture, isa, operands, accumulator)
        for architecture, isa in SETS
        for operands in OPERANDS
        for accumulator in ACCUMULATORS
    ]
    loops = [(architecture, "loop", OPERANDS[0], "float32") for architecture in programs]
    for architecture, isa, (operands, bits), accumulator in loops + cases:
        call = [str(programs[architecture]), accumulator]
        counts = [count([*call, str(k), str(bits)], architecture, isa) for k in _K]
        a_product = round((counts[1] - counts[0]) / _PRODUCTS, 3)
        print(f"{architecture:10}{isa:10}{operands:10}{accumulator:18}{a_product:.3f}", flush=True)
        record = {
            **schemas.line("instructions"), "processor": architecture, "isa": isa,
            "operands": operands, "accumulator": accumulator,
            "instructions_per_product": a_product,
            "counted_by": "qemu-aarch64" if architecture == "aarch64" else "valgrind",
            "commit": _build.commit(),
        }  # fmt: skip
        append_record(RESULTS / "instructions.jsonl", record)
    return 0


def count(call: list[str], architecture: str, isa: str) -> int:
    """Instructions that the program executes from its first to its last."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if isa != "loop":
        environment["LPKERNELS_ISA"] = isa
    if architecture == "aarch64":
        # A line on stderr for each block of one instruction.
        options = "-L /usr/aarch64-linux-gnu -cpu max -singlestep -d exec,nochain"
        with subprocess.Popen(
            ["qemu-aarch64", *options.split(), *call],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as run:  # fmt: skip
            lines = subprocess.run(
                ["grep", "-c", "^Trace"], stdin=run.stderr, capture_output=True, check=True
            )
        if run.returncode != 0:
            raise RuntimeError(f"{' '.join(call)} failed under qemu-aarch64")
        return int(lines.stdout)
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *call]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(re.findall(r"Collected : (\d+)", done.stderr)[0])


if __name__ == "__main__":
    sys.exit(main())

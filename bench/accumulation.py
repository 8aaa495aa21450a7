"""The theory of the accumulator's width against simulated sums: the knee and the error law.

    python -m bench.accumulation --longest 20

The sums are simulated for lengths 2^6, 2^8, ... and mantissa widths with 2^m / sqrt n in 1/4 .. 32:
64 x 64 sums of products of e5m2-rounded normal values in accumulators of 8 exponent bits, by
`lp.matmul`. They are held against exact sums of the same values. Long stochastic sums are made with
24 random bits beside the 8 that are the default, and aligned truncation by single products and in
blocks of 32. Records go to bench/results/accumulation.jsonl, pictures to docs/pictures. A stopped
run goes on where it was.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import track

from lpkernels import schemas
from lpkernels.arithmetic import Accumulator
from lpkernels.experiments.measuring.accumulate import Point, simulate
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record, read_records
from lpkernels.formats import FloatFormat
from lpkernels.report.accumulators import plot_law
from lpkernels.techniques.accumulation import accumulator_of

ROOT = Path(__file__).resolve().parents[1]
ROUNDINGS = ("nearest_even", "stochastic", "aligned_truncation")
OPERAND = "e5m2"
# log2 of the length from which on 8 random bits show.
LONG = 16
# Products that a tensor core aligns at once.
BLOCK = 32


def grid(longest: int) -> list[tuple[Point, int, str]]:
    """Every (sum, mantissa bits, rounding) to simulate, short sums first."""
    found = []
    for log_n in range(6, longest + 1, 2):
        for bits in range(max(2, log_n // 2 - 2), log_n // 2 + 6):
            fmt = FloatFormat(8, bits)
            sums = {rounding: accumulator_of(fmt, rounding) for rounding in ROUNDINGS}
            label = f"aligned_truncation, blocks of {BLOCK}"
            sums[label] = accumulator_of(fmt, "aligned_truncation", block=BLOCK)
            if log_n >= LONG and bits in (log_n // 2 - 2, log_n // 2):
                label = "stochastic, 24 random bits"
                sums[label] = Accumulator(fmt, "stochastic", random_bits=24)
            for rounding, acc in sums.items():
                found.append((Point(2**log_n, str(acc), OPERAND), bits, rounding))
    return found


def main() -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longest", type=int, default=20, help="log2 of the longest sum")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/accumulation.jsonl")
    parser.add_argument("--pictures", type=Path, default=ROOT / "docs/pictures")
    options = parser.parse_args()
    found = read_records(options.out) if options.out.is_file() else []
    done = {(r["length"], r["accumulator"]) for r in found if r["type"] == "simulation"}
    left = [
        part for part in grid(options.longest) if (part[0].length, part[0].accumulator) not in done
    ]
    # The new sums run in another environment than the records that are there.
    headers = [r["environment"] for r in found if r["type"] == "header"]
    if left and (now := environment("cpu")) not in headers[-1:]:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        append_record(options.out, {**schemas.header("accumulation"), "environment": now})
    for point, bits, rounding in track(left, description="simulating"):
        record = {**simulate(point), "man_bits": bits, "rounding": rounding, **asdict(point)}
        append_record(options.out, record)
    found = [r for r in read_records(options.out) if r["type"] == "simulation"]
    for metric, name, title in (
        ("nmse", "error-law", "The error law"),
        ("vrr", "knee", "Variance kept"),
    ):
        path = options.pictures / f"{name}.png"
        plot_law(found, path, metric=metric, title=f"{title}, 4096 sums each")
    return found


if __name__ == "__main__":
    main()

"""The theory of the accumulator's width against simulated sums: the knee and the error law.

    python -m bench.accumulation --longest 20

The sums are simulated for lengths 2^6, 2^8, ... and mantissa widths with 2^m / sqrt n in 1/4 .. 32:
64 x 64 sums of products of e5m2-rounded normal values in accumulators of 8 exponent bits, by
`lp.matmul`. They are held against exact sums of the same values. Long stochastic sums are made with
24 random bits beside the 8 that are the default, and aligned truncation by single products and in
blocks of 32. Records go to bench/results/accumulation.jsonl, pictures to results/accumulation. A
stopped run goes on where it was.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track

from lpkernels import schemas
from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import Record, append_record, read_records
from lpkernels.formats import FloatFormat
from lpkernels.functional import quantize
from lpkernels.report.figures import finish, panels, save_figure
from lpkernels.techniques.accumulation import accumulator_of, measure, nmse, vrr
from lpkernels.techniques.accumulation.theory import NMSE_CONSTANTS

ROOT = Path(__file__).resolve().parents[1]
ROUNDINGS = {"nearest_even": "o", "stochastic": "^", "aligned_truncation": "s"}
FIGURES = {"vrr": "variance retention ratio", "nmse": "error^2 / variance"}
OPERAND = "e5m2"
# log2 of the length from which on 8 random bits show.
LONG = 16
# Products that a tensor core aligns at once.
BLOCK = 32
# There are 64 x 64 sums. Rows share their left operand, so errors are estimated from the spread of
# rows.
SIDE = 64


def simulate(length: int, name: str, *, side: int = SIDE) -> Record:
    """Makes side x side sums of that many products of rounded standard normal values in the
    accumulator of that name; returns their figures, the variance kept that the theory predicts (of
    one sum) and the error that the error law predicts (of the roundings that it knows)."""
    generator = torch.Generator().manual_seed(0)
    sizes = (side, length), (length, side)
    a, b = (quantize(torch.randn(size, generator=generator), OPERAND).float() for size in sizes)
    acc = accumulator(name)
    record = {"type": "simulation", "length": length, "accumulator": name, "operand": OPERAND}
    record |= measure(a, b, acc, counted=0, generator=generator).to_dict()
    if acc.chunk is None and isinstance(acc.fmt, FloatFormat):
        record["theory"] = vrr(acc.fmt.man_bits, record["product_bits"], length)[0]
    rounding = "aligned_truncation" if acc.block == 1 else acc.rounding
    if rounding in NMSE_CONSTANTS and isinstance(acc.fmt, FloatFormat):
        record["law"] = nmse(acc.fmt.man_bits, length, chunk=acc.chunk, rounding=rounding)
    return record


def grid(longest: int) -> list[tuple[int, str, int, str]]:
    """Every (length, accumulator, mantissa bits, rounding) to simulate, short sums first."""
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
                found.append((2**log_n, str(acc), bits, rounding))
    return found


def main() -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longest", type=int, default=20, help="log2 of the longest sum")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/accumulation.jsonl")
    parser.add_argument("--pictures", type=Path, default=ROOT / "results/accumulation")
    options = parser.parse_args()
    found = read_records(options.out) if options.out.is_file() else []
    done = {(r["length"], r["accumulator"]) for r in found if r["type"] == "simulation"}
    left = [part for part in grid(options.longest) if part[:2] not in done]
    # The new sums run in another environment than the records that are there.
    headers = [r["environment"] for r in found if r["type"] == "header"]
    if left and (now := environment("cpu")) not in headers[-1:]:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        append_record(options.out, {**schemas.header("accumulation"), "environment": now})
    for length, name, bits, rounding in track(left, description="simulating"):
        record = simulate(length, name) | {"man_bits": bits, "rounding": rounding}
        append_record(options.out, record)
    found = [r for r in read_records(options.out) if r["type"] == "simulation"]
    for metric, name, title in (
        ("nmse", "error-law", "The error law"),
        ("vrr", "knee", "Variance kept"),
    ):
        path = options.pictures / f"{name}.png"
        save_figure(law(found, metric), path, f"{title}, 4096 sums each")
    return found


def law(sums: Sequence[dict[str, Any]], metric: str) -> Any:
    """A figure of the variance kept ("vrr") or the error ("nmse") against x = 2^m / sqrt n.

    Simulated sums are points with two deviations, a shape for each rounding. Lines are the theory
    of the variance at several lengths, or the law of the error of each rounding.
    """
    (axes,), x = panels(1, (5.9, 3.8)), np.geomspace(0.25, 64, 50)
    nearest = [p for p in sums if p["rounding"] == "nearest_even"]
    lengths = sorted({p["length"] for p in nearest}) if metric == "vrr" else []
    for shade, length in enumerate(lengths[1::2] or lengths):
        chosen = sorted((p for p in nearest if p["length"] == length), key=lambda p: p["man_bits"])
        grey = str(0.75 - 0.75 * shade / max(1, len(lengths) // 2))
        style = {"lw": 1, "color": grey, "label": f"theory, {length} products"}
        axes.plot(normalised(chosen), [p["theory"] for p in chosen], "--", **style)
    for index, (rounding, shape) in enumerate(ROUNDINGS.items()):
        chosen = [p for p in sums if p["rounding"] == rounding and p[metric]]
        style = {"color": f"C{index}", "label": rounding}
        if chosen and metric == "nmse":
            axes.plot(x, nmse(1, 4, rounding=rounding) / x**2, color=f"C{index}", lw=1)
        errors = [2 * (p[f"{metric}_error"] or 0.0) for p in chosen]
        values = [p[metric] for p in chosen]
        axes.errorbar(normalised(chosen), values, errors, fmt=shape, ms=4, **style)
    limits = {"ylim": (0.3, 1.6)} if metric == "vrr" else {"legend": "lines: c / x^2"}
    axes.set_xscale("log", base=2)
    axes.set_yscale("linear" if metric == "vrr" else "log")
    finish(axes, xlabel="2^m / sqrt n", ylabel=FIGURES[metric], fontsize="x-small", **limits)
    return axes.figure


def normalised(sums: Sequence[dict[str, Any]]) -> list[float]:
    return [2.0 ** point["man_bits"] / point["length"] ** 0.5 for point in sums]


if __name__ == "__main__":
    main()

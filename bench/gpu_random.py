"""``python -m bench.gpu_random``: products of random accumulators, operands and shapes on a GPU
backend beside the same products on the CPU, bit by bit, until the seconds end.

Every hundred cases, and the first difference of each backend, are a line of gpu-random.jsonl.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

import lpkernels as lp
from bench.recording import keep
from bench.run import RESULTS, backends_of
from tests.cases import EVERY_ACCUMULATOR

_OPERANDS = ("e5m2", "e4m3fn", "bf16", "e6m9", "fp32")


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, or 1 if any bit differed."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_random", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="", help="only this one; default: all that can run")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    options = parser.parse_args(arguments)
    names = [options.backend] if options.backend else backends_of(options.device)
    end = time.monotonic() + options.seconds
    counts = {name: {"cases": 0, "left_out": 0, "wrong": 0} for name in names}
    seed = options.seed
    while time.monotonic() < end:
        for name, count in counts.items():
            try:
                difference = compare(seed, name, options.device)
            except NotImplementedError:
                count["left_out"] += 1
                continue
            count["cases"] += 1
            if difference:
                count["wrong"] += 1
                if count["wrong"] == 1:
                    print(f"{name}, seed {seed}: {difference}")
                    write(options, {"backend": name, "seed": seed, "difference": difference})
        seed += 1
        if seed % 100 == 0:
            write(options, {"seeds": [options.seed, seed], "counts": counts})
    write(options, {"seeds": [options.seed, seed], "counts": counts})
    print(f"seeds {options.seed} to {seed - 1}: {counts}")
    return 1 if any(count["wrong"] for count in counts.values()) else 0


def write(options: argparse.Namespace, record: dict[str, object]) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    keep(options.out / "gpu-random.jsonl", {**record, "where": options.device})


def compare(seed: int, backend: str, device: str) -> str:
    """The first different bits of one case, in words; "" where all are the CPU's."""
    generator = np.random.default_rng(seed)
    acc = EVERY_ACCUMULATOR[generator.integers(len(EVERY_ACCUMULATOR))]
    m, k, n = (int(2 ** generator.uniform(0, 7)) for _ in range(3))
    formats = generator.choice(_OPERANDS, 2)
    exponents = generator.uniform(-6, 6, 2)
    a, b = (
        lp.quantize(
            torch.from_numpy(generator.standard_normal(shape) * 2.0**exponent).float(), str(fmt)
        ).float()
        for shape, exponent, fmt in zip(((m, k), (k, n)), exponents, formats, strict=True)
    )
    torch.manual_seed(seed)
    expected = lp.matmul(a, b, acc, backend="cpu")
    torch.manual_seed(seed)
    result = lp.matmul(a.to(device), b.to(device), acc, backend=backend).cpu()
    wrong = (expected.view(torch.int32) != result.view(torch.int32)).nonzero()
    if not len(wrong):
        return ""
    row, column = wrong[0].tolist()
    values = f"{result[row, column].item()!r} for {expected[row, column].item()!r}"
    return (
        f"{acc}, {m}x{k}x{n} of {formats[0]} and {formats[1]}: {len(wrong)} of {m * n} differ, "
        f"at [{row}, {column}] {values}"
    )


if __name__ == "__main__":
    sys.exit(main())

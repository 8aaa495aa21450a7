"""What a product costs in the machine code of the Triton kernels, counted without a GPU.

python -m bench.triton_counts [--target sm_90] [--output FILE] compiles the kernels of large
products, prints a table and appends a JSON line for each to the file, by default
bench/results/triton-<target>.jsonl. It takes a minute. No kernel is run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import triton

from lpkernels import schemas
from lpkernels.arithmetic import Accumulator
from lpkernels.backends.triton._config import exact_tile
from lpkernels.backends.triton._parts import AHEAD
from lpkernels.backends.triton.certified.certificate import STRIDE
from lpkernels.backends.triton.certified.tiles import certified_kernel
from lpkernels.backends.triton.exact.sequential import exact_kernel, options_of
from tests.backends.triton.certified_cases import CERTIFIED_CASES, CertifiedCase
from tests.backends.triton.machine_code import Loop, main_loop

_RESULTS = Path(__file__).parent / "results"
# Instructions that run on half as many lanes as additions and multiplications do on sm_90.
_HALF_RATE = ("LOP3", "IADD3", "VIADD", "VIMNMX", "FMNMX", "SHF", "PRMT", "SEL", "FSEL", "FSETP")
_DOUBLE = ("DADD", "DMUL", "DFMA", "DSETP")


def _exact_loop(acc: Accumulator, target: str) -> tuple[Loop, float, list[int]]:
    """The loop of the kernel that makes any sums, with the products of a pass and the tile."""
    tile = exact_tile(4096, 4096, 1, 132)
    case = CertifiedCase("", 0, acc, 0, 0)
    options = options_of(case.roundings)
    loop = main_loop(exact_kernel, target, options=options, **case.last(tile))
    return loop, tile.bm * tile.bn / (32 * tile.warps), [tile.bm, tile.bn]


def _outer_loop(case: CertifiedCase, target: str) -> tuple[Loop, float, list[int]]:
    """The loop of the kernel that adds the sums of chunks, with the chunks of a pass and the
    tile."""
    arguments = case._replace(shared=True).last()
    options = options_of(case.roundings)
    loop = main_loop(exact_kernel, target, loads=AHEAD.value, options=options, **arguments)
    return loop, AHEAD.value, [arguments["BM"], arguments["BN"]]


def _loops(target: str) -> Iterator[tuple[str, Accumulator, list[int], Loop, float]]:
    for case in CERTIFIED_CASES:
        loop = main_loop(
            certified_kernel, target, place=case.place, options=case.options, **case.arguments()
        )
        yield case.name, case.acc, [case.tile.bm, case.tile.bn], loop, case.products
    for rounding in ("nearest_even", "stochastic"):
        acc = Accumulator("e5m10", rounding)
        loop, products, tile = _exact_loop(acc, target)
        yield f"wide, {rounding}", acc, tile, loop, products
    for name, of in (("outer", "fused, chunks"), ("outer64", "fused, chunks, outer64")):
        case = next(case for case in CERTIFIED_CASES if case.name == of)
        loop, products, tile = _outer_loop(case, target)
        yield name, case.acc, tile, loop, products


def _closed(acc: Accumulator, tile: list[int], loop: Loop, products: float) -> float | None:
    """Instructions of a thread for a sum in the loop over chunks, beside the loop over steps."""
    if acc.chunk is None or loop.outside == 0:
        return None
    threads = tile[0] * tile[1] * STRIDE.value / products
    return round(loop.outside * threads / (tile[0] * tile[1]), 3)


def _record(
    name: str, acc: Accumulator, tile: list[int], loop: Loop, products: float, target: str
) -> dict[str, Any]:
    def share(names: tuple[str, ...]) -> float:
        return round(sum(loop.counts[n] for n in names) / products, 3)

    return {
        **schemas.line("triton_counts"), "target": target, "triton": triton.__version__,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"), "kernel": name,
        "accumulator": str(acc), "tile": tile, "registers": loop.registers, "stack": loop.stack,
        "instructions": round(loop.instructions / products, 3),
        "instructions_per_sum_closed": _closed(acc, tile, loop, products),
        "half_rate": share(_HALF_RATE),
        "float64": share(_DOUBLE),
        "by_name": {n: round(c / products, 3) for n, c in loop.counts.most_common() if c},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=("sm_80", "sm_90"), default="sm_90")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    output = options.output or _RESULTS / f"triton-{options.target}.jsonl"
    print(f"{'kernel':28}{'accumulator':24}{'tile':>10}{'instructions':>14}{'half rate':>11}"
          f"{'float64':>9}{'registers':>11}")  # fmt: skip
    with output.open("a") as lines:
        for found in _loops(options.target):
            record = _record(*found, options.target)
            lines.write(json.dumps(record) + "\n")
            tile = "x".join(map(str, record["tile"]))
            print(f"{record['kernel']:28}{record['accumulator']:24}{tile:>10}"
                  f"{record['instructions']:>14.2f}{record['half_rate']:>11.2f}"
                  f"{record['float64']:>9.2f}{record['registers']:>11}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

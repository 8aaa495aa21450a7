"""``python -m bench.unit_recordings FILE``: recordings of tensor cores against their accumulators.

FILE is an npz as tests/data/matrix_units/README.md describes it. Each case is one product of a row
and a column, a @ b with initial=c, on the backend asked for; every bit counts. The command exits
with 1 where one case differs. With --wrong it says instead how many cases are fitted by
accumulators that are wrong in one respect: this is what the recordings can decide.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from lpkernels import Accumulator, FloatFormat, matmul
from tests.oracles.recordings import Group, groups

# The format of fp8 units' results.
E8M13 = FloatFormat(8, 13)


def differing(group: Group, acc: Accumulator, backend: str) -> int:
    """How many cases of a group differ in acc from what the hardware returned."""
    a, b, c = (torch.from_numpy(x.copy()) for x in (group.a, group.b, group.c))
    got = matmul(a[:, None, :], b[:, :, None], acc, initial=c[:, None, None], backend=backend)
    want = torch.from_numpy(group.d.copy()).view(torch.int32)
    return int((got.view(-1).view(torch.int32) != want).sum())


def wrong(acc: Accumulator) -> dict[str, Accumulator]:
    """Accumulators that differ from a unit in one respect."""
    bits, fmt, block = acc.aligned_bits or 0, acc.fmt, acc.block or 1
    assert isinstance(fmt, FloatFormat)
    down = acc.rounding == "toward_zero"
    made = {
        "one bit less": replace(acc, aligned_bits=bits - 1),
        "one bit more": replace(acc, aligned_bits=bits + 1),
        "aligned by products": replace(acc, operands=None, least_exponent=None, interleaved=1),
        "rounded otherwise": replace(acc, rounding="nearest_even" if down else "toward_zero"),
        "half the block": replace(acc, block=block // 2),
    }
    if acc.chunk is None:
        outer = "fp32" if down else fmt
        late = {"chunk": block, "outer": outer, "outer_rounding": "nearest_even"}
        made["c added last"] = replace(acc, **late)
    if fmt == E8M13:
        made["a place less"] = replace(acc, fmt="e8m12")
        made["a place more"] = replace(acc, fmt="e8m14")
    return made


def print_fits(path: Path, backend: str) -> None:
    for group in groups(path):
        if group.accumulator.interleaved > 1:
            continue
        fits = {
            name: 1 - differing(group, acc, backend) / len(group.d)
            for name, acc in wrong(group.accumulator).items()
        }
        print(group.name, *(f"{name} {share:.1%}" for name, share in fits.items()), sep="\n    ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--wrong", action="store_true")
    options = parser.parse_args()
    if options.wrong:
        print_fits(options.file, options.backend)
        return 0
    start, cases, wrong = time.perf_counter(), 0, 0
    for group in groups(options.file):
        found = differing(group, group.accumulator, options.backend)
        cases, wrong = cases + len(group.d), wrong + found
        print(f"{group.name:24} {group.unit:20} {found} of {len(group.d)} differ")
    seconds = time.perf_counter() - start
    print(f"{wrong} of {cases} differ, {seconds:.1f} s, backend {options.backend}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

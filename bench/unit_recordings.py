"""``python -m bench.unit_recordings FILE``: recordings of tensor cores against their accumulators.

FILE is an npz as tests/data/matrix_units/README.md describes it. Each case is one product of a row
and a column, a @ b with initial=c, on the backend asked for; every bit counts. Exits with 1 where
one differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from lpkernels import matmul
from tests.recordings import Group, groups


def differing(group: Group, backend: str) -> int:
    """How many cases of a group differ from what the hardware returned."""
    a, b, c = (torch.from_numpy(x.copy()) for x in (group.a, group.b, group.c))
    got = matmul(
        a[:, None, :], b[:, :, None], group.accumulator, initial=c[:, None, None], backend=backend
    )
    want = torch.from_numpy(group.d.copy()).view(torch.int32)
    return int((got.view(-1).view(torch.int32) != want).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--backend", default="auto")
    options = parser.parse_args()
    start, cases, wrong = time.perf_counter(), 0, 0
    for group in groups(options.file):
        found = differing(group, options.backend)
        cases, wrong = cases + len(group.d), wrong + found
        print(f"{group.name:24} {group.unit:20} {found} of {len(group.d)} differ")
    seconds = time.perf_counter() - start
    print(f"{wrong} of {cases} differ, {seconds:.1f} s, backend {options.backend}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

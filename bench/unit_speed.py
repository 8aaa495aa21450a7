"""``python -m bench.unit_speed [NAME ...]``: products as tensor cores make them, beside torch.mm.

Products are 960^3 on one thread, with operands normal(0, 1) in the unit's formats, against torch.mm
of the same float32 values: processor time, the best of each side. The fp8 units also run against
mmaemu's CPU reference (PyPI), where it is installed, on 960 x 960 x 64.
bench/results/tensor-cores.jsonl has one JSON record a line.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from datetime import datetime, timezone
from typing import Any

import torch

import lpkernels as lp
from bench.run import RESULTS
from bench.timing import interleave
from lpkernels import schemas
from lpkernels.arithmetic import UNITS, Accumulator
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record

_SIZE = 960
_COLUMNS = 64  # of mmaemu's product
_FP8 = {"h100_e4m3": ("hopper", True), "ada_e4m3": ("ada", True)}
#: One unit for every kind of kernel: lanes in float32, lanes in double, chunks, results rounded to
#: nearest.
NAMES = (
    "h100_e4m3", "ada_e4m3", "ada_e4m3_fp16", "v100_fp16", "a100_fp16", "a100_tf32", "h100_fp16",
    "h100_bf16", "h100_fp16_fp16", "h100_fp8_mma",
)  # fmt: skip


def main() -> int:
    torch.set_num_threads(1)
    where, path = environment("cpu"), RESULTS / "tensor-cores.jsonl"
    isa = lp.backends.get("cpu").isa()  # type: ignore[attr-defined]
    for name in sys.argv[1:] or NAMES:
        found = against_torch(UNITS[name].accumulator)
        if name in _FP8 and importlib.util.find_spec("mmaemu"):
            found |= against_mmaemu(UNITS[name].accumulator, *_FP8[name])
        record = {
            **schemas.line("tensor core"),
            "time": datetime.now(timezone.utc).isoformat("T", "seconds"),
            "unit": name, "size": _SIZE, "isa": isa, **found, "load": os.getloadavg()[0],
            "environment": where,
        }  # fmt: skip
        append_record(path, record)
        print(name, isa, {key: round(value, 4) for key, value in found.items()}, flush=True)
    return 0


def _pair(acc: Accumulator, rows: int, cols: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    shapes = ((rows, _SIZE), (_SIZE, cols))
    formats = acc.operands
    assert formats is not None
    pairs = zip(shapes, formats, strict=True)
    return [lp.quantize(torch.randn(shape, generator=draw), fmt) for shape, fmt in pairs]


def against_torch(acc: Accumulator) -> dict[str, Any]:
    a, b = _pair(acc, _SIZE, _SIZE)
    runs = {"ours": lambda: lp.matmul(a, b, acc), "torch": lambda: torch.mm(a, b)}
    lp.backends.take_tiers()
    times = interleave(runs, 4.0, clock=time.process_time)
    tiers = lp.backends.take_tiers()
    best = {name: _SIZE**3 / times[name].best / 1e9 for name in runs}
    return {
        "gmacs": best["ours"], "torch gmacs": best["torch"], "ratio": best["ours"] / best["torch"],
        "certified": tiers["certified"],
    }  # fmt: skip


def against_mmaemu(acc: Accumulator, profile: str, fast: bool) -> dict[str, Any]:
    mmaemu: Any = importlib.import_module("mmaemu")
    a, b = _pair(acc, _SIZE, _COLUMNS)
    left, right = a.to(torch.float8_e4m3fn), b.T.contiguous().to(torch.float8_e4m3fn)
    how = {"use_fast_accum": fast, "profile": profile, "splitk": 1}
    runs = {
        "ours": lambda: lp.matmul(a, b, acc),
        "mmaemu": lambda: mmaemu.accumulate(left, right, **how),
    }
    if not torch.equal(runs["ours"](), runs["mmaemu"]()):
        raise AssertionError(f"mmaemu has other sums of {acc}")
    times = interleave(runs, 4.0, clock=time.process_time)
    return {"faster than mmaemu": times["mmaemu"].best / times["ours"].best}


if __name__ == "__main__":
    sys.exit(main())

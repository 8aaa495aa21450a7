"""``python -m bench.cuda_counts``: instructions of a product in every certified CUDA kernel.

They are counted in the machine code for sm_90 that lpkernels._C holds; nothing runs. With tables,
both ways of each lookup are counted, but only one runs. The command prints a table and adds the
records that are not in results/cuda-sm_90-counts.jsonl yet; the last record of a kernel and layout
holds.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

from lpkernels import _build, schemas
from lpkernels.experiments.records import append_record, read_records
from tests.backends.cuda.product_loops import CEILINGS, PRODUCTS, main_loop
from tests.support import sass

_KIND = "counted, never run"
_RESULTS = Path(__file__).parent / "results" / "cuda-sm_90-counts.jsonl"


def records() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        kernels = sass.Kernels(sass.in_library("sm_90", Path(folder)))
        return [
            record(kernels, name, tables, chunks)
            for name, tables, chunks in itertools.product(CEILINGS, (False, True), (False, True))
        ]


def record(kernels: sass.Kernels, name: str, tables: bool, chunks: bool) -> dict[str, Any]:
    loop = main_loop(kernels, CEILINGS[name].tile, tables, chunks)
    return {
        "kind": _KIND, "schema": schemas.schema(_KIND), "target": "sm_90", "kernel": name,
        "tables": tables, "chunks": chunks,
        "instructions_per_product": round(len(loop.body) / PRODUCTS, 3),
        "ceiling": CEILINGS[name].most,
    }  # fmt: skip


def of(one: dict[str, Any]) -> tuple[str, ...]:
    """The key of a record: the kernel and its layout."""
    return tuple(str(one[name]) for name in ("kernel", "tables", "chunks"))


def main() -> None:
    reason = _build.why_no_cuda()
    if reason:
        raise SystemExit(f"bench.cuda_counts: {reason}")
    last = {of(one): one for one in read_records(_RESULTS)}
    for one in records():
        if last.get(of(one)) != one:
            append_record(_RESULTS, one)
        layout = ("tables" if one["tables"] else "packed", "chunks" if one["chunks"] else "")
        print(f"{one['kernel']:22} {' '.join(layout):14} {one['instructions_per_product']}")


if __name__ == "__main__":
    main()

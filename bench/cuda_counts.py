"""``python -m bench.cuda_counts``: instructions of a product in every certified CUDA kernel.

Counted in the machine code for sm_90 that lpkernels._C holds; nothing runs. Prints a table and
writes results/cuda-sm_90-counts.jsonl anew.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from lpkernels import _build
from tests import sass
from tests.test_cuda_counts import CEILINGS, PRODUCTS, main_loop

_RESULTS = Path(__file__).parent / "results" / "cuda-sm_90-counts.jsonl"


def records() -> list[dict[str, object]]:
    library = Path(str(_build.load_extension().__file__)).resolve()
    kernels: dict[str, sass.Function] = {}
    with tempfile.TemporaryDirectory() as folder:
        for cubin in sass.cubins(library, "sm_90", Path(folder)):
            kernels.update({f.name: f for f in sass.functions(sass.disassembled(cubin))})
    found: list[dict[str, object]] = []
    for name, ceiling in CEILINGS.items():
        for tables in (False, True):
            for chunks in (False, True):
                loop = main_loop(kernels, ceiling.tile, tables, chunks)
                found.append(
                    {
                        "kind": "counted, never run",
                        "target": "sm_90",
                        "kernel": name,
                        "tables": tables,
                        "chunks": chunks,
                        "instructions_per_product": round(len(loop.body) / PRODUCTS, 3),
                        "ceiling": ceiling.most,
                    }
                )
    return found


def main() -> None:
    reason = _build.why_no_cuda()
    if reason:
        raise SystemExit(f"bench.cuda_counts: {reason}")
    found = records()
    _RESULTS.write_text("".join(json.dumps(r) + "\n" for r in found))
    for record in found:
        layout = ("tables" if record["tables"] else "packed", "chunks" if record["chunks"] else "")
        print(f"{record['kernel']:16} {' '.join(layout):14} {record['instructions_per_product']}")


if __name__ == "__main__":
    main()

"""``python -m bench.cuda_counts``: instructions of a product in every certified CUDA kernel.

Counted in the machine code for sm_90 that lpkernels._C holds; nothing runs. Of tensor cores those
of a stage, without the ends of chunks. Prints a table and writes results/cuda-sm_90-counts.jsonl
anew.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from lpkernels import _build
from tests import sass
from tests.test_cuda_counts import (
    CEILINGS,
    OPERAND_BLOCKS,
    PRODUCTS,
    TENSOR_CEILING,
    TENSOR_PRODUCTS,
    main_loop,
    operand_steps,
    tensor_stage,
)

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
                per_product = len(loop.body) / PRODUCTS
                found.append(record(name, tables, chunks, per_product, ceiling.most))
    for bfloat16, name in enumerate(("tensor cores, half", "tensor cores, bfloat16")):
        stage = tensor_stage(kernels, bool(bfloat16), tables=False)
        per_product = len(stage.body) / TENSOR_PRODUCTS
        found.append(record(name, False, True, per_product, TENSOR_CEILING))
    for name, steps in OPERAND_BLOCKS.items():
        count = sum(map(len, operand_steps(kernels, steps)))
        found.append(record(name, False, False, count / (4 * steps.steps), steps.most))
    return found


def record(
    kernel: str, tables: bool, chunks: bool, per_product: float, ceiling: float
) -> dict[str, object]:
    return {
        "kind": "counted, never run",
        "target": "sm_90",
        "kernel": kernel,
        "tables": tables,
        "chunks": chunks,
        "instructions_per_product": round(per_product, 3),
        "ceiling": ceiling,
    }


def main() -> None:
    reason = _build.why_no_cuda()
    if reason:
        raise SystemExit(f"bench.cuda_counts: {reason}")
    found = records()
    _RESULTS.write_text("".join(json.dumps(r) + "\n" for r in found))
    for one in found:
        layout = ("tables" if one["tables"] else "packed", "chunks" if one["chunks"] else "")
        print(f"{one['kernel']:22} {' '.join(layout):14} {one['instructions_per_product']}")


if __name__ == "__main__":
    main()

"""``python -m bench.cuda_counts``: instructions of a product in every certified CUDA kernel, and of
a sum at the end of a chunk.

Counted in the machine code for sm_90 that lpkernels._C holds; nothing runs. Of tensor cores the
products are those of a stage; with tables both ways of each lookup are counted, one of which runs.
Prints a table and writes results/cuda-sm_90-counts.jsonl anew.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from lpkernels import _build
from tests.backends.cuda.test_cuda_counts import (
    CEILINGS,
    OPERAND_BLOCKS,
    PRODUCTS,
    TENSOR_CEILING,
    TENSOR_PRODUCTS,
    closing_loop,
    main_loop,
    operand_steps,
    tensor_stage,
)
from tests.support import sass
from tests.support.sass import Loop

_RESULTS = Path(__file__).parent / "results" / "cuda-sm_90-counts.jsonl"
# Of a pass of the loop that closes chunks, and of a thread of a tensor tile.
_ROW, _TENSOR_SUMS = 8, 64
# The end of a chunk of a tensor tile whose sums lie inside the format, none made odd, by blocks of
# code (NOTES.md); with tables every outer sum is also read and written.
_TENSOR_END = 420


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
                end = len(closing_loop(kernels, ceiling.tile, tables).body) if chunks else None
                per_sum = None if end is None else end / _ROW
                found.append(record(name, tables, chunks, per_product, per_sum, ceiling.most))
    for bfloat16, name in enumerate(("tensor cores, half", "tensor cores, bfloat16")):
        for tables in (False, True):
            stage = tensor_stage(kernels, bool(bfloat16), tables)
            count = _outside_ends(stage) if tables else len(stage.body)
            end = _TENSOR_END + (2 * _TENSOR_SUMS if tables else 0)
            per_product, per_sum = count / TENSOR_PRODUCTS, end / _TENSOR_SUMS
            found.append(record(name, tables, True, per_product, per_sum, TENSOR_CEILING))
    for name, steps in OPERAND_BLOCKS.items():
        count = sum(map(len, operand_steps(kernels, steps)))
        found.append(record(name, False, False, count / (4 * steps.steps), None, steps.most))
    return found


def _outside_ends(stage: Loop) -> int:
    """Instructions of a loop with the end of a chunk in it, without that: from behind the last
    tensor instruction to the last outer sum stored."""
    names = [i.name.split(".")[0] for i in stage.body]
    last = max(n for n, name in enumerate(names) if name == "HMMA")
    stored = max(n for n, name in enumerate(names) if name == "STG")
    return last + 1 + len(names) - (stored + 1)


def record(
    kernel: str,
    tables: bool,
    chunks: bool,
    per_product: float,
    per_sum: float | None,
    ceiling: float,
) -> dict[str, object]:
    return {
        "kind": "counted, never run",
        "target": "sm_90",
        "kernel": kernel,
        "tables": tables,
        "chunks": chunks,
        "instructions_per_product": round(per_product, 3),
        "instructions_per_sum_closed": None if per_sum is None else round(per_sum, 3),
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
        closed = one["instructions_per_sum_closed"]
        end = "" if closed is None else f", {closed} a sum closed"
        print(f"{one['kernel']:22} {' '.join(layout):14} {one['instructions_per_product']}{end}")


if __name__ == "__main__":
    main()

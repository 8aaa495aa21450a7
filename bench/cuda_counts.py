"""``python -m bench.cuda_counts``: instructions of a product in every certified CUDA kernel, and of
a sum at the end of a chunk. Such a sum may join an outer sum in float32, or in double where only
that will do, or wait in memory because sums are split. "parts" is the kernel that adds sums that
wait.

They are counted in the machine code for sm_90 that lpkernels._C holds; nothing runs. For
tensor cores, the products of one stage are counted. With tables, both ways of each lookup are
counted, but only one runs. The command prints a table and adds the records that are not in
results/cuda-sm_90-counts.jsonl yet; the last record of a kernel, tile and layout holds.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lpkernels import _build, schemas
from lpkernels.experiments.records import append_record, read_records
from tests.backends.cuda.product_loops import (
    CEILINGS,
    OPERAND_BLOCKS,
    PARTS_CEILING,
    PRODUCTS,
    TENSOR_PRODUCTS,
    TENSOR_TILES,
    Tensor,
    ends_of,
    kernel_of,
    operand_steps,
    parts_loops,
    stage_loop,
    tensor_ceiling,
    tensor_kept,
    tensor_stage,
)
from tests.backends.cuda.shaped_loops import (
    RULES,
    SHAPES,
    counted,
    layouts,
    shaped_ceiling,
    shaped_kernel_of,
)
from tests.support import sass
from tests.support.sass import Loop

_KIND = "counted, never run"
_RESULTS = Path(__file__).parent / "results" / "cuda-sm_90-counts.jsonl"
# Sums of a thread.
_SUMS = 64
# Instructions at the end of a chunk of a tensor tile, if all sums lie inside the format and none is
# made odd, counted by blocks of code (NOTES.md). With tables every outer sum is also read and
# written.
_TENSOR_END = 420


def records() -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        return _records_of(sass.Kernels(sass.in_library("sm_90", Path(folder))))


def _records_of(kernels: sass.Kernels) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for name, ceiling in CEILINGS.items():
        for tables in (False, True):
            for chunks in (False, True):
                function = kernel_of(kernels, ceiling.tile, tables, chunks)
                if not chunks:
                    per_product = len(stage_loop(function).body) / PRODUCTS
                    found.append(record(name, tables, chunks, per_product, (), ceiling.most))
                    continue
                ends = ends_of(function)
                per_product = len(ends.stage.body) / PRODUCTS
                sums = [count / _SUMS for count in (ends.closed, ends.kept, ends.in_double)]
                found.append(record(name, tables, chunks, per_product, sums, ceiling.most))
    found += tensor_records(kernels) + shaped_records(kernels)
    in_float, in_double = parts_loops(kernels)
    found.append(record("parts", False, True, 0.0, [in_float, 0.0, in_double], PARTS_CEILING))
    for name, steps in OPERAND_BLOCKS.items():
        count = sum(map(len, operand_steps(kernels, steps)))
        found.append(record(name, False, False, count / (4 * steps.steps), (), steps.most))
    return found


def tensor_records(kernels: sass.Kernels) -> list[dict[str, object]]:
    found = []
    for bfloat16, name in enumerate(("tensor cores, half", "tensor cores, bfloat16")):
        for tile in TENSOR_TILES:
            for tables in (False, True):
                kernel = Tensor(bool(bfloat16), tables, tile)
                stage = tensor_stage(kernels, kernel)
                count = _outside_ends(stage) if tables else len(stage.body)
                end = _TENSOR_END + (2 * _SUMS if tables else 0)
                sums = [end / _SUMS, tensor_kept(kernels, kernel)]
                per_product = count / TENSOR_PRODUCTS
                most = tensor_ceiling(tile)
                found.append(record(name, tables, True, per_product, sums, most, tile))
    return found


def shaped_records(kernels: sass.Kernels) -> list[dict[str, object]]:
    found = []
    for rule in RULES:
        for tile in SHAPES:
            for tables in layouts(rule):
                got = counted(shaped_kernel_of(kernels, rule, tile, tables), tile)
                sums = [got.closed, got.kept]
                most = shaped_ceiling(rule, tile)
                found.append(record(rule, tables, True, got.product, sums, most, tile))
    return found


def _outside_ends(stage: Loop) -> int:
    """Instructions of a loop that holds the end of a chunk, without that end: it reaches from
    behind the last tensor instruction to the last outer sum stored."""
    names = [i.name.split(".")[0] for i in stage.body]
    last = max(n for n, name in enumerate(names) if name == "HMMA")
    stored = max(n for n, name in enumerate(names) if name == "STG")
    return last + 1 + len(names) - (stored + 1)


def record(
    kernel: str,
    tables: bool,
    chunks: bool,
    per_product: float,
    sums: Sequence[float],
    ceiling: float,
    tile: tuple[int, int] = (128, 128),
) -> dict[str, object]:
    """The record of a kernel. sums: instructions of a sum that ends a chunk, of one that waits, and
    of one that ends a chunk in double."""
    ends = dict(zip(("closed", "kept", "closed_in_double"), sums, strict=False))
    return {
        "kind": _KIND,
        "schema": schemas.schema(_KIND),
        "target": "sm_90",
        "kernel": kernel,
        **({} if tile == (128, 128) else {"tile": tile}),
        "tables": tables,
        "chunks": chunks,
        "instructions_per_product": round(per_product, 3),
        **{f"instructions_per_sum_{end}": round(count, 3) for end, count in ends.items()},
        "ceiling": ceiling,
    }


def of(one: dict[str, Any]) -> tuple[str, ...]:
    """The key of a record: the kernel, its tile and its layout."""
    return tuple(str(one.get(name)) for name in ("kernel", "tile", "tables", "chunks"))


def main() -> None:
    reason = _build.why_no_cuda()
    if reason:
        raise SystemExit(f"bench.cuda_counts: {reason}")
    # Records have lists where these have tuples.
    found = json.loads(json.dumps(records()))
    last = {of(one): one for one in read_records(_RESULTS)}
    for one in found:
        if last.get(of(one)) != one:
            append_record(_RESULTS, one)
    for one in found:
        tile = "x".join(map(str, one.get("tile", ())))
        layout = ("tables" if one["tables"] else "packed", "chunks" if one["chunks"] else "")
        ends = [
            f", {count} a sum {name.removeprefix('instructions_per_sum_').replace('_', ' ')}"
            for name, count in one.items()
            if name.startswith("instructions_per_sum_")
        ]
        count = one["instructions_per_product"]
        print(f"{one['kernel']:22} {tile:7} {' '.join(layout):14} {count}{''.join(ends)}")


if __name__ == "__main__":
    main()

"""The counts in the package are the recorded ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.predict.counts import CUDA, PARTS, TRITON, Count, cuda_count, outer_count, triton_count
from bench.predict.shaped_counts import shaped_count, shaped_counts
from lpkernels.arithmetic import Accumulator
from tests.loops import rows
from tests.support.cuda_tiles import TILES

ENDS = ("closed", "kept", "closed_in_double")
RESULTS = Path(__file__).parents[2] / "bench" / "results"


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def test_cuda_has_the_recorded_counts() -> None:
    """The counts are equal but for blocks aligned by their operands. Their time is not predicted,
    since the instructions at the end of a block are not counted."""
    recorded = {
        (r["kernel"], r["tables"], r["chunks"]): Count(
            r["instructions_per_product"],
            *(r.get(f"instructions_per_sum_{end}", 0.0) for end in ENDS),
        )
        for r in lines("cuda-sm_90-counts.jsonl")
        if not r["kernel"].startswith("operands, ") and "tile" not in r
    }
    assert recorded.pop(("parts", False, True)) == PARTS
    held = {
        (kernel, bool(i & 2), bool(i & 1)): count
        for kernel, layouts in CUDA.items()
        for i, count in enumerate(layouts)
        if count is not None
    }
    assert held == recorded


def test_smaller_tiles_have_the_recorded_counts() -> None:
    recorded = {
        (r["kernel"], *r["tile"], r["tables"]): Count(
            r["instructions_per_product"], *(r[f"instructions_per_sum_{end}"] for end in ENDS[:2])
        )
        for r in lines("cuda-sm_90-counts.jsonl")
        if "tile" in r
    }
    assert shaped_counts() == recorded


# The instructions of a product with tables and chunks of 64, in the units of a table of cut.h.
@rows(
    "shapes, kernel, unit",
    ("kShapes", "two steps", 16), ("kFloatShapes", "float32", 32),
    ("kRareShapes", "odd, floor", 8), ("kTensorShapes", "tensor cores, half", 256),
)  # fmt: skip
def test_tiles_are_chosen_by_their_counts(shapes: str, kernel: str, unit: int) -> None:
    for *sizes, _, cost in TILES[shapes]:
        if sizes == [128, 128]:
            count = CUDA[kernel].tables_chunks
        else:
            count = shaped_count(kernel, tuple(sizes), tables=True)
        assert count is not None
        assert cost == round(unit * (count.product + count.closed / 64))


def test_triton_has_the_last_recorded_counts() -> None:
    recorded = {
        r["kernel"]: Count(r["instructions"], r.get("instructions_per_sum_closed") or 0.0)
        for r in lines("triton-sm_90.jsonl")
    }
    assert held_in(recorded) == TRITON


def held_in(recorded: dict[str, Count]) -> dict[str, Count]:
    """The recorded counts without those of kernels that exist no more: variants of "split" from the
    time before "fused"."""
    before = {"split, chunks", "split, rounded products", "split, image"}
    return {name: count for name, count in recorded.items() if name not in before}


def test_a_layout_that_was_counted_is_taken() -> None:
    acc = Accumulator("e6m9", chunk=64)
    assert cuda_count("two steps", acc, tables=True) == CUDA["two steps"].tables_chunks
    one = Accumulator("e6m9")
    assert cuda_count("two steps", one, tables=True) == CUDA["two steps"].tables
    # Without subnormals outer sums are made in double.
    counted = CUDA["two steps"].packed_chunks
    assert counted is not None
    in_double = Accumulator("e6m9", chunk=64, outer="e6m9_nosub")
    assert cuda_count("two steps", in_double, tables=False).closed == counted.in_double
    assert triton_count("fused", acc, tables=True) == TRITON["fused, chunks, image"]
    assert triton_count("fused", acc, tables=False) == TRITON["fused, chunks"]
    assert triton_count("exact", Accumulator("e6m0"), tables=True) == TRITON["wide, nearest_even"]


def test_a_variant_that_was_not_costs_what_it_costs_fused() -> None:
    found = triton_count("split", Accumulator("e6m12", chunk=64), tables=True)
    more = TRITON["fused, chunks, image"].product - TRITON["fused"].product
    assert found.product == pytest.approx(TRITON["split"].product + more)
    assert found.closed == TRITON["fused, chunks, image"].closed


def test_outer_sums_in_float64_have_counts_of_their_own() -> None:
    single, double = Accumulator("e6m9", chunk=64), Accumulator("e6m9", chunk=64, outer="fp32")
    fused = triton_count("fused", double, tables=False)
    assert fused == Count(TRITON["fused, chunks"].product, TRITON["fused, chunks, outer64"].closed)
    # Programs that share chunks leave the outer sums to another kernel.
    shared = [triton_count("fused", acc, tables=False, shared=True) for acc in (single, double)]
    assert shared == [TRITON["fused, chunks, shared"]] * 2
    assert outer_count(single) == TRITON["outer"].product
    assert outer_count(double) == TRITON["outer64"].product


def test_what_was_never_counted_is_refused() -> None:
    acc = Accumulator("e6m12", product="e4m3")
    with pytest.raises(NotImplementedError, match="split, rounded products kernel, whose instruc"):
        triton_count("split", acc, tables=False)
    with pytest.raises(NotImplementedError, match="takes its exact kernel"):
        triton_count("exact", Accumulator("e6m0", chunk=8), tables=False)
    with pytest.raises(ValueError, match="tensor cores, half: there is no such kernel without"):
        cuda_count("tensor cores, half", Accumulator("fp32"), tables=False)

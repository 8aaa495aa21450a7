"""What a product takes in every kernel that was counted: instructions of a thread in the machine
code for sm_90, and those of a sum at the end of a chunk.

Counted, never run. The records are bench/results/cuda-sm_90-counts.jsonl and triton-sm_90.jsonl,
the last line of each kernel; a test holds these equal to them.
"""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning.cuda_tiers import closes_in_float
from lpkernels.backends.planning.plans import not_counted


class Count(NamedTuple):
    """Instructions of a thread: for a product, and for a sum that ends a chunk. kept: for one that
    waits in memory instead, where sums are split. in_double: where chunks cannot end in float32."""

    product: float
    closed: float = 0.0
    kept: float = 0.0
    in_double: float = 0.0


class Layouts(NamedTuple):
    """Of one CUDA kernel: operands packed side by side or found by tables, one sum or chunks; None:
    there is no such kernel."""

    packed: Count | None
    packed_chunks: Count | None
    tables: Count | None
    tables_chunks: Count | None


CUDA = {
    "float32": Layouts(
        Count(1.164), Count(1.24, 23.531, 7.141, 56.078),
        Count(1.334), Count(1.408, 23.281, 7.094, 56.109),
    ),
    "half precision": Layouts(
        Count(0.633), Count(0.707, 17.25, 6.219, 51.703),
        Count(0.816), Count(0.891, 17.25, 6.297, 51.578),
    ),
    "bfloat16": Layouts(
        Count(0.648), Count(0.727, 17.891, 6.031, 52.016),
        Count(0.809), Count(0.889, 17.891, 6.281, 51.594),
    ),
    "toward zero": Layouts(
        Count(2.672), Count(2.746, 23.281, 7.172, 55.391),
        Count(2.838), Count(2.916, 23.281, 7.125, 55.828),
    ),
    "two steps": Layouts(
        Count(3.17), Count(3.246, 23.531, 7.188, 56.047),
        Count(3.336), Count(3.416, 23.781, 7.109, 56.203),
    ),
    "two steps, watched": Layouts(
        Count(3.67), Count(3.746, 23.031, 7.172, 55.406),
        Count(3.836), Count(3.912, 23.281, 7.125, 56.109),
    ),
    "two steps, clipped": Layouts(
        Count(5.172), Count(5.248, 23.031, 7.141, 55.672),
        Count(5.338), Count(5.418, 23.281, 7.172, 55.672),
    ),
    "odd, two steps": Layouts(
        Count(6.67), Count(6.746, 22.906, 7.203, 55.547),
        Count(6.836), Count(6.916, 23.781, 7.234, 56.203),
    ),
    "split": Layouts(
        Count(4.172), Count(4.248, 23.406, 7.156, 56.047),
        Count(4.338), Count(4.418, 23.781, 7.109, 56.203),
    ),
    "split, watched": Layouts(
        Count(4.672), Count(4.748, 23.156, 7.141, 55.406),
        Count(4.838), Count(4.914, 23.281, 7.125, 56.109),
    ),
    "split, clipped": Layouts(
        Count(6.174), Count(6.25, 23.156, 7.156, 55.672),
        Count(6.34), Count(6.42, 23.281, 7.078, 55.953),
    ),
    "floor": Layouts(
        Count(5.166), Count(5.24, 23.656, 7.203, 56.047),
        Count(5.332), Count(5.408, 23.281, 7.094, 55.969),
    ),
    "floor, watched": Layouts(
        Count(5.666), Count(5.74, 23.156, 7.156, 55.531),
        Count(5.832), Count(5.908, 23.781, 7.156, 55.922),
    ),
    "floor, clipped": Layouts(
        Count(7.168), Count(7.242, 23.281, 7.156, 55.672),
        Count(7.334), Count(7.414, 23.406, 7.109, 56.109),
    ),
    "odd, split": Layouts(
        Count(7.672), Count(7.748, 23.281, 7.25, 55.656),
        Count(7.838), Count(7.916, 23.281, 7.125, 55.969),
    ),
    "odd, floor": Layouts(
        Count(8.666), Count(8.74, 23.406, 7.172, 55.656),
        Count(8.832), Count(8.908, 23.656, 7.125, 55.922),
    ),
    "stochastic": Layouts(
        Count(7.012), Count(7.115, 23.391, 7.359, 50.859),
        Count(7.137), Count(7.322, 23.516, 7.344, 50.859),
    ),
    "converted": Layouts(
        Count(2.664), Count(2.738, 23.281, 7.188, 55.672),
        Count(2.83), Count(2.908, 23.281, 7.141, 55.828),
    ),
    "double, split": Layouts(
        Count(4.76), Count(4.84, 31.422, 9.578, 63.516),
        Count(5.062), Count(5.273, 31.297, 9.625, 63.641),
    ),
    "double, floor": Layouts(
        Count(6.713), Count(6.639, 31.297, 9.516, 64.203),
        Count(7.033), Count(7.242, 31.297, 9.562, 63.922),
    ),
    "tensor cores, half": Layouts(
        None, Count(0.068, 6.562, 2.891),
        None, Count(0.333, 8.562, 3.688),
    ),
    "tensor cores, bfloat16": Layouts(
        None, Count(0.068, 6.562, 2.891),
        None, Count(0.333, 8.562, 3.688),
    ),
}  # fmt: skip
#: Of a chunk of an output where sums were split.#: Of a chunk of an output where sums were split.
PARTS = Count(0.0, 17.0, 0.0, 51.0)

#: Packed operands in one sum, where the name says nothing else.
TRITON = {
    "half": Count(0.727),
    "brain": Count(0.722),
    "plain": Count(1.205),
    "split": Count(4.322),
    "floor": Count(6.332),
    "floor, image": Count(7.717),
    "range": Count(8.201),
    "nearest64": Count(9.148),
    "cut64, toward_zero": Count(3.785),
    "cut64, nearest_away": Count(4.668),
    "cut64, stochastic": Count(9.645),
    "wide, nearest_even": Count(28.125),
    "wide, stochastic": Count(83.5),
    "half, chunks": Count(0.992, 30.219),
    "half, image": Count(1.112),
    "fused": Count(3.322),
    "fused, chunks": Count(3.438, 32.188),
    "fused, rounded products": Count(9.33),
    "fused, image": Count(3.672),
    "stochastic": Count(8.605),
    "stochastic, philox": Count(14.922),
    "toward_zero": Count(2.594),
    "toward_positive": Count(5.598),
    "to_odd": Count(6.594),
    "fixed": Count(3.156),
    "fixed, wraps": Count(2.154),
    "fused64": Count(3.82),
    "nearest_away": Count(3.594),
    "fixed, nearest_away": Count(7.156),
    "fixed, wraps, toward_zero": Count(6.152),
    "fused, chunks, image": Count(4.066, 32.125),
}
# What the names of variants end in.
_CHUNKS, _IMAGE = ", chunks", ", image"


def cuda_count(kernel: str, acc: Accumulator, *, tables: bool) -> Count:
    """Of a kernel of csrc/cuda in the layout that a product has."""
    found = CUDA[kernel][2 * tables + (acc.chunk is not None)]
    if found is None:
        raise ValueError(f"{kernel}: there is no such kernel without chunks")
    return found if closes_in_float(acc) else found._replace(closed=found.in_double)


def triton_count(kernel: str, acc: Accumulator, *, tables: bool) -> Count:
    """Of a Triton kernel in the layout that a product has.

    A variant that was not counted takes what the same variant adds to the kernel "fused".

    Raises: NotImplementedError: products are rounded, in a kernel that was not counted so.
    """
    rounded = acc.product is not None
    if kernel.startswith("wide"):
        mode = "stochastic" if acc.rounding == "stochastic" else "nearest_even"
        if rounded or acc.chunk is not None or acc.rounding not in ("stochastic", "nearest_even"):
            raise not_counted("triton", kernel, acc)
        return TRITON[f"wide, {mode}"]
    if rounded:
        kernel += ", rounded products"
        if kernel not in TRITON:
            raise not_counted("triton", kernel, acc)
    chunks = _CHUNKS if acc.chunk is not None else ""
    image = _IMAGE if tables else ""
    counted = TRITON.get(kernel + chunks + image)
    if counted is not None:
        return counted
    like = TRITON["fused" + chunks + image]
    return Count(TRITON[kernel].product + like.product - TRITON["fused"].product, like.closed)

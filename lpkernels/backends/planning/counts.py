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
from lpkernels.backends.planning.triton_tiers import single_outer


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
        Count(1.164), Count(1.24, 22.844, 7.109, 56.188),
        Count(1.334), Count(1.408, 22.594, 7.078, 55.922),
    ),
    "half precision": Layouts(
        Count(0.633), Count(0.709, 18.203, 6.234, 51.734),
        Count(0.814), Count(0.889, 17.719, 6.234, 51.609),
    ),
    "bfloat16": Layouts(
        Count(0.648), Count(0.727, 17.922, 6.203, 51.75),
        Count(0.811), Count(0.887, 18.234, 6.234, 51.625),
    ),
    "toward zero": Layouts(
        Count(2.672), Count(2.746, 21.141, 6.766, 55.781),
        Count(2.838), Count(2.918, 21.016, 6.734, 55.641),
    ),
    "two steps": Layouts(
        Count(3.17), Count(3.246, 22.828, 7.203, 55.75),
        Count(3.336), Count(3.414, 22.828, 7.156, 55.766),
    ),
    "two steps, watched": Layouts(
        Count(3.67), Count(3.746, 22.328, 7.156, 55.516),
        Count(3.836), Count(3.914, 22.578, 7.141, 55.766),
    ),
    "two steps, clipped": Layouts(
        Count(5.172), Count(5.248, 22.328, 7.172, 55.656),
        Count(5.338), Count(5.418, 22.578, 7.078, 55.812),
    ),
    "odd, two steps": Layouts(
        Count(6.67), Count(6.746, 22.578, 7.203, 55.766),
        Count(6.836), Count(6.914, 22.578, 7.172, 55.766),
    ),
    "split": Layouts(
        Count(4.172), Count(4.248, 22.703, 7.172, 55.891),
        Count(4.338), Count(4.416, 22.328, 7.078, 55.828),
    ),
    "split, watched": Layouts(
        Count(4.672), Count(4.748, 22.203, 7.141, 55.516),
        Count(4.838), Count(4.916, 22.078, 7.047, 55.812),
    ),
    "split, clipped": Layouts(
        Count(6.174), Count(6.25, 22.328, 7.188, 55.656),
        Count(6.34), Count(6.42, 22.578, 7.078, 55.656),
    ),
    "floor": Layouts(
        Count(5.166), Count(5.254, 22.703, 7.203, 56.031),
        Count(5.332), Count(5.424, 22.078, 7.047, 55.828),
    ),
    "floor, watched": Layouts(
        Count(5.666), Count(5.754, 22.453, 7.141, 55.656),
        Count(5.832), Count(5.924, 22.828, 7.078, 56.609),
    ),
    "floor, clipped": Layouts(
        Count(7.168), Count(7.258, 22.328, 7.219, 55.656),
        Count(7.334), Count(7.428, 22.328, 7.062, 56.078),
    ),
    "odd, split": Layouts(
        Count(7.672), Count(7.748, 22.453, 7.219, 55.625),
        Count(7.838), Count(7.918, 22.578, 7.078, 55.641),
    ),
    "odd, floor": Layouts(
        Count(8.666), Count(8.754, 22.453, 7.203, 55.5),
        Count(8.832), Count(8.924, 22.828, 7.141, 55.766),
    ),
    "stochastic": Layouts(
        Count(7.012), Count(7.111, 22.25, 6.656, 50.594),
        Count(7.137), Count(7.316, 22.125, 6.625, 50.594),
    ),
    "converted": Layouts(
        Count(2.664), Count(2.738, 22.344, 7.141, 55.516),
        Count(2.83), Count(2.91, 22.219, 7.094, 56.094),
    ),
    "double, split": Layouts(
        Count(4.76), Count(4.84, 30.594, 9.547, 63.906),
        Count(5.062), Count(5.275, 30.469, 9.578, 63.625),
    ),
    "double, floor": Layouts(
        Count(6.713), Count(6.633, 30.469, 9.531, 63.906),
        Count(7.033), Count(7.01, 30.469, 9.547, 64.188),
    ),
    "tensor cores, half": Layouts(
        None, Count(0.069, 6.562, 2.921),
        None, Count(0.256, 8.562, 3.746),
    ),
    "tensor cores, bfloat16": Layouts(
        None, Count(0.069, 6.562, 2.921),
        None, Count(0.256, 8.562, 3.746),
    ),
}  # fmt: skip
#: Of a chunk of an output where sums were split.
PARTS = Count(0.0, 16.75, 0.0, 50.0)

#: Packed operands in one sum, where the name says nothing else.
TRITON = {
    "half": Count(0.727),
    "brain": Count(0.722),
    "plain": Count(1.209),
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
    "half, chunks": Count(1.02, 22.312),
    "half, image": Count(1.112),
    "fused": Count(3.322),
    "fused, chunks": Count(3.363, 22.312),
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
    "fused, chunks, image": Count(4.141, 22.625),
    "fused, chunks, outer64": Count(3.438, 32.156),
    "fused, chunks, shared": Count(3.434, 7.156),
    "fused, chunks, image, shared": Count(4.066, 7.375),
    "outer": Count(21.75),
    "outer64": Count(29.875),
}
# What the names of variants end in.
_CHUNKS, _IMAGE, _SHARED = ", chunks", ", image", ", shared"


def cuda_count(kernel: str, acc: Accumulator, *, tables: bool) -> Count:
    """Of a kernel of csrc/cuda in the layout that a product has."""
    found = CUDA[kernel][2 * tables + (acc.chunk is not None)]
    if found is None:
        raise ValueError(f"{kernel}: there is no such kernel without chunks")
    return found if closes_in_float(acc) else found._replace(closed=found.in_double)


def outer_count(acc: Accumulator) -> float:
    """Instructions of the Triton kernel that adds the sums of chunks, for one of them."""
    return TRITON["outer" if single_outer(acc.to_ints()) else "outer64"].product


def triton_count(kernel: str, acc: Accumulator, *, tables: bool, shared: bool = False) -> Count:
    """Of a Triton kernel in the layout that a product has; shared: programs share its chunks.

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
    variant = (_CHUNKS if acc.chunk is not None else "") + (_IMAGE if tables else "")
    variant += _SHARED if shared else ""
    like = TRITON["fused" + variant]
    closed = like.closed
    if acc.chunk is not None and not shared and not single_outer(acc.to_ints()):
        closed = TRITON["fused, chunks, outer64"].closed
    counted = TRITON.get(kernel + variant)
    if counted is not None:
        return Count(counted.product, closed)
    return Count(TRITON[kernel].product + like.product - TRITON["fused"].product, closed)

"""What a product takes in every kernel that was counted: instructions of a thread in the machine
code for sm_90, and those of a sum at the end of a chunk.

Counted, never run. The records are bench/results/cuda-sm_90-counts.jsonl and triton-sm_90.jsonl,
the last line of each kernel; a test holds these equal to them.
"""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning.plans import not_counted
from lpkernels.backends.planning.triton_tiers import single_outer


class Count(NamedTuple):
    """Instructions of a thread: for a product, and for a sum that ends a chunk."""

    product: float
    closed: float = 0.0


class Layouts(NamedTuple):
    """Of one CUDA kernel: operands packed side by side or found by tables, one sum or chunks; None:
    there is no such kernel."""

    packed: Count | None
    packed_chunks: Count | None
    tables: Count | None
    tables_chunks: Count | None


def _layouts(packed: float, chunks: float, tables: float, both: float, *ends: float) -> Layouts:
    one, other = ends
    return Layouts(Count(packed), Count(chunks, one), Count(tables), Count(both, other))


def _tensor(chunks: float, both: float, *ends: float) -> Layouts:
    one, other = ends
    return Layouts(None, Count(chunks, one), None, Count(both, other))


CUDA = {
    "float32": _layouts(1.164, 1.27, 1.334, 1.438, 96.75, 96.875),
    "half precision": _layouts(0.633, 0.73, 0.814, 0.91, 92.375, 92.5),
    "bfloat16": _layouts(0.648, 0.746, 0.811, 0.908, 92.375, 92.5),
    "toward zero": _layouts(2.672, 2.791, 2.838, 2.945, 94.75, 96.75),
    "two steps": _layouts(3.168, 3.289, 3.336, 3.445, 95.125, 96.625),
    "two steps, watched": _layouts(3.67, 3.789, 3.836, 3.945, 94.75, 96.625),
    "two steps, clipped": _layouts(5.17, 5.291, 5.338, 5.447, 95.25, 96.625),
    "odd, two steps": _layouts(6.67, 6.789, 6.836, 6.945, 94.75, 96.625),
    "split": _layouts(4.17, 4.291, 4.338, 4.447, 95.0, 96.625),
    "split, watched": _layouts(4.672, 4.791, 4.838, 4.947, 94.875, 96.625),
    "split, clipped": _layouts(6.174, 6.293, 6.34, 6.451, 95.25, 96.625),
    "floor": _layouts(5.166, 5.27, 5.332, 5.439, 96.625, 96.625),
    "floor, watched": _layouts(5.666, 5.77, 5.832, 5.939, 96.5, 96.625),
    "floor, clipped": _layouts(7.168, 7.271, 7.334, 7.443, 97.0, 96.75),
    "odd, split": _layouts(7.672, 7.791, 7.838, 7.947, 95.0, 96.625),
    "odd, floor": _layouts(8.666, 8.77, 8.83, 8.939, 96.5, 96.625),
    "stochastic": _layouts(7.004, 7.113, 7.143, 7.283, 95.75, 95.625),
    "converted": _layouts(2.664, 2.77, 2.832, 2.939, 96.5, 96.625),
    "double, split": _layouts(4.76, 4.896, 5.062, 5.221, 101.375, 104.0),
    "double, floor": _layouts(6.709, 6.66, 6.822, 6.998, 103.25, 104.0),
    "tensor cores, half": _tensor(0.068, 0.321, 6.562, 8.562),
    "tensor cores, bfloat16": _tensor(0.068, 0.321, 6.562, 8.562),
}

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


def cuda_count(kernel: str, *, tables: bool, chunks: bool) -> Count:
    """Of a kernel of csrc/cuda in the layout that a product has."""
    found = CUDA[kernel][2 * tables + chunks]
    if found is None:
        raise ValueError(f"{kernel}: there is no such kernel without chunks")
    return found


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

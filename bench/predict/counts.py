"""The instructions of a thread in every kernel that was counted, in the machine code for sm_90: for
a product, and for a sum at the end of a chunk.

They were counted, never run. The records are bench/results/cuda-sm_90-counts.jsonl and
triton-sm_90.jsonl, the last line of each kernel; a test holds these equal to them.
"""

from __future__ import annotations

from typing import NamedTuple

from bench.predict.cuda_plans import closes_in_float
from bench.predict.plans import not_counted
from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning.triton_tiers import single_outer


class Count(NamedTuple):
    """Instructions of a thread: for a product, and for a sum that ends a chunk.

    kept: for a sum that waits in memory instead, where sums are split. in_double: for a sum that
    ends a chunk where chunks cannot end in float32.
    """

    product: float
    closed: float = 0.0
    kept: float = 0.0
    in_double: float = 0.0


class Layouts(NamedTuple):
    """The counts of one CUDA kernel, by layout: operands lie side by side or are found by tables,
    sums have chunks or none. None: there is no such kernel."""

    packed: Count | None
    packed_chunks: Count | None
    tables: Count | None
    tables_chunks: Count | None


CUDA = {
    "float32": Layouts(
        Count(1.168), Count(1.27, 23.031, 6.422, 56.172),
        Count(1.34), Count(1.441, 23.031, 6.406, 56.312),
    ),
    "half precision": Layouts(
        Count(0.641), Count(0.717, 17.234, 5.844, 51.859),
        Count(0.814), Count(0.9, 17.359, 5.859, 51.984),
    ),
    "bfloat16": Layouts(
        Count(0.656), Count(0.717, 17.766, 5.906, 51.891),
        Count(0.811), Count(0.881, 17.641, 5.891, 52.031),
    ),
    "toward zero": Layouts(
        Count(2.676), Count(2.775, 22.406, 6.453, 55.656),
        Count(2.844), Count(2.949, 22.781, 6.422, 55.5),
    ),
    "two steps": Layouts(
        Count(3.172), Count(3.277, 22.656, 6.531, 55.875),
        Count(3.346), Count(3.445, 22.406, 6.406, 56.016),
    ),
    "two steps, watched": Layouts(
        Count(3.674), Count(3.777, 22.656, 6.562, 55.734),
        Count(3.842), Count(3.945, 22.656, 6.422, 56.188),
    ),
    "two steps, clipped": Layouts(
        Count(5.174), Count(5.279, 22.531, 6.422, 55.5),
        Count(5.332), Count(5.447, 22.531, 6.453, 55.922),
    ),
    "odd, two steps": Layouts(
        Count(6.674), Count(6.775, 22.156, 6.469, 55.797),
        Count(6.832), Count(6.943, 22.781, 6.391, 56.312),
    ),
    "split": Layouts(
        Count(4.174), Count(4.271, 21.516, 6.422, 55.875),
        Count(4.332), Count(4.441, 22.906, 6.469, 56.156),
    ),
    "split, watched": Layouts(
        Count(4.674), Count(4.771, 21.766, 6.438, 55.734),
        Count(4.832), Count(4.941, 22.406, 6.5, 56.047),
    ),
    "split, clipped": Layouts(
        Count(6.174), Count(6.275, 22.531, 6.406, 55.922),
        Count(6.332), Count(6.441, 22.281, 6.422, 55.781),
    ),
    "floor": Layouts(
        Count(5.174), Count(5.27, 21.625, 6.469, 55.859),
        Count(5.332), Count(5.432, 21.516, 6.5, 56.297),
    ),
    "floor, watched": Layouts(
        Count(5.674), Count(5.738, 21.641, 6.219, 56.172),
        Count(5.832), Count(5.908, 21.375, 6.234, 56.141),
    ),
    "floor, clipped": Layouts(
        Count(7.174), Count(7.271, 21.016, 6.328, 55.656),
        Count(7.332), Count(7.439, 20.891, 6.391, 55.781),
    ),
    "odd, split": Layouts(
        Count(7.674), Count(7.77, 21.516, 6.406, 56.453),
        Count(7.832), Count(7.939, 22.656, 6.484, 55.891),
    ),
    "odd, floor": Layouts(
        Count(8.674), Count(8.75, 21.125, 6.188, 55.766),
        Count(8.832), Count(8.922, 20.75, 6.109, 55.766),
    ),
    "stochastic": Layouts(
        Count(7.008), Count(7.119, 22.188, 6.188, 55.797),
        Count(7.143), Count(7.324, 22.438, 6.594, 55.891),
    ),
    "converted": Layouts(
        Count(2.672), Count(2.75, 21.109, 6.156, 55.484),
        Count(2.834), Count(2.922, 20.984, 6.125, 55.609),
    ),
    "double, split": Layouts(
        Count(4.766), Count(4.84, 29.391, 7.562, 64.312),
        Count(5.156), Count(5.268, 29.266, 7.562, 65.281),
    ),
    "double, floor": Layouts(
        Count(6.553), Count(6.611, 29.266, 7.562, 63.875),
        Count(7.121), Count(7.264, 29.531, 7.812, 64.172),
    ),
    "tensor cores, half": Layouts(
        None, Count(0.068, 6.562, 4.413),
        None, Count(0.272, 8.562, 5.397),
    ),
    "tensor cores, bfloat16": Layouts(
        None, Count(0.069, 6.562, 4.397),
        None, Count(0.247, 8.562, 5.27),
    ),
}  # fmt: skip
#: Instructions of the kernel that adds split sums, for each chunk of an output.
PARTS = Count(0.0, 19.5, 0.0, 53.0)

#: Counts of Triton kernels: of packed operands in one sum, where the name says nothing else.
TRITON = {
    "half": Count(0.723),
    "brain": Count(0.717),
    "plain": Count(1.197),
    "split": Count(4.324),
    "floor": Count(6.346),
    "floor, image": Count(7.643),
    "range": Count(8.197),
    "nearest64": Count(9.145),
    "cut64, toward_zero": Count(3.785),
    "cut64, nearest_away": Count(4.648),
    "cut64, stochastic": Count(9.625),
    "wide, nearest_even": Count(28.125),
    "wide, stochastic": Count(83.5),
    "half, chunks": Count(1.09, 23.219),
    "half, image": Count(1.105),
    "fused": Count(3.322),
    "fused, chunks": Count(3.441, 22.438),
    "fused, rounded products": Count(9.326),
    "fused, image": Count(3.602),
    "stochastic": Count(8.633),
    "stochastic, philox": Count(14.938),
    "toward_zero": Count(2.594),
    "toward_positive": Count(5.598),
    "to_odd": Count(6.598),
    "fixed": Count(3.156),
    "fixed, wraps": Count(2.16),
    "fused64": Count(3.891),
    "nearest_away": Count(3.594),
    "fixed, nearest_away": Count(7.152),
    "fixed, wraps, toward_zero": Count(6.156),
    "fused, chunks, image": Count(4.07, 23.031),
    "fused, chunks, outer64": Count(3.438, 31.844),
    "fused, chunks, shared": Count(3.441, 6.938),
    "fused, chunks, image, shared": Count(4.066, 7.031),
    "outer": Count(21.625),
    "outer64": Count(29.625),
    "floor, chunks": Count(6.441, 22.375),
    "fused64, chunks": Count(3.895, 25.0),
    "nearest64, chunks": Count(9.082, 25.594),
}
# The endings of the names of variants.
_CHUNKS, _IMAGE, _SHARED = ", chunks", ", image", ", shared"


def cuda_count(kernel: str, acc: Accumulator, *, tables: bool) -> Count:
    """The count of a kernel of csrc/cuda in the layout that a product has."""
    found = CUDA[kernel][2 * tables + (acc.chunk is not None)]
    if found is None:
        raise ValueError(f"{kernel}: there is no such kernel without chunks")
    return found if closes_in_float(acc) else found._replace(closed=found.in_double)


def outer_count(acc: Accumulator) -> float:
    """Instructions that the Triton kernel which adds the sums of chunks takes for one of them."""
    return TRITON["outer" if single_outer(acc.to_ints()) else "outer64"].product


def triton_count(kernel: str, acc: Accumulator, *, tables: bool, shared: bool = False) -> Count:
    """The count of a Triton kernel in the layout that a product has.

    shared: programs share the chunks. A variant that was not counted is taken to add to its kernel
    what the same variant adds to the kernel "fused".

    Raises: NotImplementedError: products are rounded, in a kernel that was not counted so.
    """
    rounded = acc.product is not None
    if kernel == "exact":
        # Its records have an older name.
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

"""Every way in which the backend's kernels are compiled: the accumulators, quantizers and layouts
whose launches, taken together, make every branch of every kernel.

`kernel_keys` says what decides a kernel's instructions. The four roundings of a product (of
sums, of products, of outer sums, of the result) are code that shares nothing but registers, and the
code that addresses operands and outputs is separate in the same way. So each of these parts takes
every value of its own, and every kernel of sums meets every address and every combination of
rounded products and chunks. A kernel with several tiers is in the group of the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lpkernels.backends.planning import triton_tiers as _tiers
from tests.backends.triton.every import elements, products
from tests.backends.triton.every.rules import Call
from tests.backends.triton.kernel_keys import key
from tests.backends.triton.launches import Launch, recorded

#: Each name has its kernels and the calls that launch them, among other kernels.
GROUPS: dict[str, tuple[tuple[str, ...], Callable[[], Iterator[Call]]]] = {
    **{
        _tiers.NAMES[t]: (("certified_kernel",), partial(products.tier_calls, t))
        for t in products.FIRST
    },
    "exact": (("exact_kernel", "pack_operand_kernel", "frame_kernel"), products.exact_calls),
    "finish": (("exact_kernel",), products.finish_calls),
    "pairwise": (("pairwise_kernel",), partial(products.order_calls, "pairwise")),
    "compensated": (("compensated_kernel",), partial(products.order_calls, "compensated")),
    "aligned": (("aligned_kernel",), partial(products.order_calls, "aligned")),
    "operands": (("by_operands_kernel",), products.operand_calls),
    "native": (("native_kernel",), products.native_calls),
    "quantize": (("quantize_kernel",), elements.quantize_calls),
    "slices": (("range_kernel", "line_kernel", "quantize_blocks_kernel"), elements.slice_calls),
    "counting": (
        ("count_kernel", "count_blocks_kernel", "count_lines_kernel"),
        elements.counting_calls,
    ),
    "codes": (
        ("pack_kernel", "unpack_kernel", "pack_blocks_kernel", "unpack_blocks_kernel"),
        elements.code_calls,
    ),
    "accumulate": (("accumulate_kernel",), elements.accumulate_calls),
    "update": (("update_kernel",), elements.update_calls),
}


def launches(group: str, target: str) -> list[Launch]:
    """All launches of one group that are compiled separately on a target."""
    found: dict[Any, Launch] = {}
    for launch in _made(group, target):
        found.setdefault(key(launch), launch)
    return list(found.values())


def first_launches(group: str) -> list[Launch]:
    """The first launch on sm_90 of each kernel of a group; no call is made after these."""
    found: dict[str, Launch] = {}
    made = _made(group, "sm_90")
    while len(found) < len(GROUPS[group][0]):
        launch = next(made)
        found.setdefault(launch.name, launch)
    return list(found.values())


def _made(group: str, target: str) -> Iterator[Launch]:
    """The launches of a group's kernels, by its calls in turn."""
    names, calls = GROUPS[group]
    for call in calls():
        with recorded(target) as made:
            call()
        for launch in made:
            tiers = launch.constant("TIERS")
            other = tiers is not None and _tiers.NAMES[tiers[0]] != group
            other = other or (group == "finish" and not launch.constant("FINISHES"))
            if launch.name in names and not other:
                yield launch

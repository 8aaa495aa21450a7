"""Every way in which the backend's kernels are compiled: the accumulators, quantizers and layouts
whose launches, taken together, make every branch of every kernel.

`kernel_keys` lists the properties that decide a kernel's instructions. The four roundings of a
product (of sums, of products, of outer sums, of the result) are code that shares nothing but
registers, and the code that addresses operands and outputs is separate in the same way. So each of
these parts takes every value of its own, and every kernel of sums meets every address and every
combination of rounded products and chunks. A kernel with several tiers is in the group of the first
of them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lpkernels.backends.planning import triton_tiers as _tiers
from tests.backends.triton.every import elements, products
from tests.backends.triton.every.rules import Call
from tests.backends.triton.kernel_keys import key
from tests.backends.triton.launches import Launch, recorded

#: Each name has its kernels, without "_kernel", and the calls that launch them among others.
GROUPS: dict[str, tuple[str, Callable[[], Iterator[Call]]]] = {
    **{_tiers.NAMES[t]: ("certified", partial(products.tier_calls, t)) for t in products.FIRST},
    "exact": ("exact pack_operand frame", products.exact_calls),
    "finish": ("exact", products.finish_calls),
    **{order: (order, partial(products.order_calls, order))
       for order in ("pairwise", "compensated", "aligned")},
    "operands": ("by_operands", products.operand_calls),
    "native": ("native", products.native_calls),
    "quantize": ("quantize", elements.quantize_calls),
    "slices": ("range line largest quantize_blocks dequantize", elements.slice_calls),
    "hadamard": ("hadamard", elements.hadamard_calls),
    "counting": ("count quantize_blocks count_lines", elements.counting_calls),
    "codes": ("pack unpack pack_blocks unpack_blocks", elements.code_calls),
    "accumulate": ("accumulate", elements.accumulate_calls),
    "update": ("update", elements.update_calls),
}  # fmt: skip


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
    while len(found) < len(GROUPS[group][0].split()):
        launch = next(made)
        found.setdefault(launch.name, launch)
    return list(found.values())


def _made(group: str, target: str) -> Iterator[Launch]:
    """The launches of a group's kernels, by its calls in turn."""
    kernels, calls = GROUPS[group]
    names = [f"{kernel}_kernel" for kernel in kernels.split()]
    for call in calls():
        with recorded(target) as made:
            call()
        for launch in made:
            tiers = launch.constant("TIERS")
            other = tiers is not None and _tiers.NAMES[tiers[0]] != group
            other = other or (group == "finish" and not launch.constant("FINISHES"))
            if launch.name in names and not other:
                yield launch

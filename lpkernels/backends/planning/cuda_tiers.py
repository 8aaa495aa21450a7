"""Which kernel of csrc/cuda makes a product: `plan_for` of csrc/cuda/product/plan.h, for operands
of which `Range` says all that packing would find out.

The device makes this choice; here is the host's side of it. Names are those of the counts
(bench/results/cuda-sm_90-counts.jsonl). "exact" and "ordered" are not among them.
"""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning.ranges import Range, emin, log2_above, product_of, top
from lpkernels.backends.planning.shapes import Shape
from lpkernels.formats import FixedFormat, FloatFormat

EXACT, ORDERED = "exact", "ordered"
TENSOR = ("tensor cores, half", "tensor cores, bfloat16")
_HARDWARE = {
    FloatFormat(8, 23): "float32",
    FloatFormat(5, 10): "half precision",
    FloatFormat(8, 7): "bfloat16",
}
#: Formats of more bits behind the point are never clipped: kMostClipped of
#: csrc/cuda/product/plan.h.
MOST_CLIPPED = 11
# kEnoughBound, kLeastBound and kMostBound of csrc/cuda/product/plan.h.
_ENOUGH, _LEAST, _MOST = 40, -125, 127


class Certificate(NamedTuple):
    """The Certificate of csrc/cuda/product/plan.h."""

    valid: bool
    odd: bool
    floor: bool
    bound: int
    everywhere: bool


def has_running_sum(acc: Accumulator) -> bool:
    return acc.order in ("sequential", "native") and acc.block is None


def hardware(fmt: object) -> str:
    """The name of the processor's own arithmetic of a format; "" if it has none."""
    return _HARDWARE.get(fmt, "") if isinstance(fmt, FloatFormat) else ""


def inner_rounding(acc: Accumulator) -> str:
    """The rounding of the inner sums. Native chunks are float32 sums to nearest."""
    return "nearest_even" if acc.order == "native" else acc.rounding


def _closes_chunks(acc: Accumulator) -> bool:
    outer = acc.outermost
    if acc.chunk is None:
        return True
    if acc.outermost_rounding != "nearest_even":
        return acc.outermost_rounding == inner_rounding(acc)
    return isinstance(outer, FloatFormat) and outer.man_bits > 0


def _draws_in_fours(acc: Accumulator) -> bool:
    return acc.rng == "fast" and acc.random_bits <= 8 and (acc.chunk or 0) % 8 == 0


def may_certify(acc: Accumulator) -> bool:
    """Whether any operands could take another kernel than the exact one."""
    fmt, rounding = acc.fmt, inner_rounding(acc)
    if not has_running_sum(acc) or not _closes_chunks(acc):
        return False
    if not isinstance(fmt, FloatFormat) or fmt.man_bits < 1:
        return False
    single = hardware(fmt) == "float32"
    if rounding == "stochastic":
        fits = fmt.man_bits >= 4 and acc.random_bits <= 22 - fmt.man_bits
        return fits and _draws_in_fours(acc)
    if rounding == "toward_zero":
        return single or fmt.man_bits <= 21
    return rounding == "nearest_even" or (
        single and rounding in ("toward_positive", "toward_negative")
    )


def may_use_tensor_cores(acc: Accumulator) -> bool:
    """Whether tensor cores may make the chunks."""
    return acc.order == "native" and acc.chunk is not None and closes_in_float(acc)


def closes_in_float(acc: Accumulator) -> bool:
    """Whether chunks end in float32 and not in double: the rule of csrc/cuda/rules/outer_way.h."""
    outer = acc.outermost
    if acc.outermost_rounding != "nearest_even":
        return False
    if not isinstance(outer, FloatFormat) or not outer.subnormals:
        return False
    if hardware(outer) == "float32":
        return True
    least, own = emin(outer), outer.exp_bits == 8 and emin(outer) == -126
    if not 1 <= outer.man_bits <= 21:
        return False
    if own and outer.specials == "ieee" and outer.overflow == "infinity":
        return True
    return (
        least >= -126 and least - outer.man_bits >= -147 and top(outer) + 25 - outer.man_bits <= 127
    )


def has_shapes(kernel: str) -> bool:
    """Whether a kernel has tiles of several shapes: `has_shapes` of csrc/cuda/product/plan.h."""
    if kernel in TENSOR:
        return True
    rule, _, limit = kernel.partition(", ")
    return rule in ("two steps", "split", "floor") and limit in ("", "watched")


def _holds(name: str, x: Range) -> bool:
    """Whether half precision or bfloat16 holds every element."""
    if name == "bfloat16":
        return x.width <= 8
    return x.width <= 11 and x.highest <= 16 and x.lowest >= -24


def _max_bound(fmt: FloatFormat) -> int:
    full = fmt.max == 2.0 ** (top(fmt) + 1) - 2.0 ** (top(fmt) - fmt.man_bits)
    return top(fmt) + 1 if full else top(fmt)


def _certify(acc: Accumulator, fmt: FloatFormat, p: Range, factor: Range) -> Certificate:
    rounding = inner_rounding(acc)
    q, lx = fmt.man_bits + 1, emin(fmt) - fmt.man_bits
    bound, odd, everywhere, floor = _ENOUGH, False, False, p.lowest < lx
    none = Certificate(False, odd, floor, bound, everywhere)
    if not 1 <= fmt.man_bits <= 21 or (not fmt.subnormals and p.lowest < emin(fmt)):
        return none
    if rounding == "nearest_even":
        twice = p.width <= q and (2 * q <= 23 or (q == 12 and p.width <= 11))
        everywhere = p.width <= 24 and twice
        if p.width > 24:
            odd = True
        elif not everywhere:
            safe = p.lowest + 24
            if q + p.width <= 23:
                safe = max(safe, lx + 24)
            odd = safe < min(p.highest + 12, _ENOUGH)
            bound = bound if odd else safe
    elif rounding in ("toward_zero", "stochastic"):
        if floor or (rounding == "stochastic" and acc.random_bits > 22 - fmt.man_bits):
            return none
    else:
        return none
    least = p.lowest
    if floor:
        least = emin(fmt) if odd else min(p.lowest, lx, emin(fmt))
    least = min(least, factor.lowest)
    bound = min(bound, _max_bound(fmt), least + 127, _MOST)
    valid = bound >= max(p.highest, _LEAST) and factor.highest + 1 - bound <= 126
    if floor:
        valid = valid and emin(fmt) + 1 - bound + 24 - fmt.man_bits <= 127
    return Certificate(valid, odd, floor, bound, everywhere)


def _certify_double(fmt: FloatFormat, p: Range) -> Certificate:
    q, lx = fmt.man_bits + 1, emin(fmt) - fmt.man_bits
    everywhere, bound = p.width <= q, p.lowest + 53
    if fmt.man_bits < 1 or (not fmt.subnormals and p.lowest < emin(fmt)):
        return Certificate(False, False, p.lowest < lx, bound, everywhere)
    if q + p.width <= 52:
        bound = max(bound, lx + 53)
    bound = _max_bound(fmt) if everywhere else min(bound, _max_bound(fmt))
    return Certificate(bound >= p.highest, False, p.lowest < lx, bound, everywhere)


def _clips(fmt: FloatFormat, c: Certificate, p: Range, factor: Range) -> bool:
    if fmt.overflow != "saturate" or not c.everywhere or not 1 <= fmt.man_bits <= 21:
        return False
    if not fmt.subnormals and p.lowest < emin(fmt):
        return False
    reach = max(top(fmt) + 1, p.highest) + 1
    least = min(p.lowest, factor.lowest, emin(fmt) - fmt.man_bits)
    return least >= -126 and reach + 25 - fmt.man_bits <= 127


def _converts(fmt: FloatFormat, c: Certificate, growth: int, p: Range) -> bool:
    if hardware(fmt) != "half precision":
        return False
    if p.width <= fmt.man_bits + 1 or max(p.highest, 16) + 1 <= p.lowest + 24:
        return True
    return c.valid and not c.odd and growth <= c.bound


def _nearest(
    fmt: FloatFormat, c: Certificate, growth: int, p: Range, factor: Range, fast_doubles: bool
) -> str:
    """The kernel of a sum to nearest_even under a certificate; the fastest rule is tried first."""
    split = "two steps" if fmt.man_bits <= 10 else "split"
    rule = "floor" if c.floor else split
    if _converts(fmt, c, growth, p):
        return "converted"
    if c.valid and not c.odd and growth <= c.bound:
        return rule
    if _clips(fmt, c, p, factor):
        return f"{rule}, clipped"
    if c.valid and not c.odd:
        return f"{rule}, watched"
    d = _certify_double(fmt, p)
    if d.valid and (fast_doubles or not c.valid):
        return "double, floor" if d.floor else "double, split"
    return f"odd, {rule}" if c.valid else EXACT


def _products_stay(acc: Accumulator, p: Range) -> bool:
    fmt = acc.product
    if fmt is None:
        return True
    if not isinstance(fmt, FloatFormat):
        return False
    last = emin(fmt) - fmt.man_bits if fmt.subnormals else emin(fmt)
    return p.width <= fmt.man_bits + 1 and p.lowest >= last and p.highest <= top(fmt)


def tier(acc: Accumulator, shape: Shape, *, fast_doubles: bool) -> str:
    """The kernel of a product in sequence or in chunks, or "ordered".

    fast_doubles: the processor adds doubles at half the rate of floats, no less.
    """
    if not has_running_sum(acc):
        return ORDERED
    fmt, rounding = acc.fmt, inner_rounding(acc)
    p = product_of(shape.left, shape.right)
    if not may_certify(acc) or isinstance(fmt, FixedFormat) or not _products_stay(acc, p):
        return EXACT
    operands = (shape.left, shape.right)
    if may_use_tensor_cores(acc):
        for name, kernel in zip(("half precision", "bfloat16"), TENSOR, strict=True):
            if all(_holds(name, x) for x in operands):
                return kernel
    own = hardware(fmt)
    if own == "float32":
        return own
    if own and rounding == "nearest_even" and all(_holds(own, x) for x in operands):
        return own
    c = _certify(acc, fmt, p, shape.left)
    length = min(acc.chunk or shape.k, shape.k)
    growth = p.highest + min(log2_above(length), fmt.man_bits + 2)
    if rounding == "nearest_even":
        return _nearest(fmt, c, growth, p, shape.left, fast_doubles)
    if not c.valid:
        return EXACT
    if rounding == "toward_zero":
        return "toward zero"
    in_fours = not shape.skips and fmt.man_bits >= 4 and p.highest <= c.bound - 5
    return "stochastic" if in_fours and _draws_in_fours(acc) else EXACT

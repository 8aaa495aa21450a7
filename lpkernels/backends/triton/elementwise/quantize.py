"""quantize for float, fixed and table formats, element by element, with counts.

Overflow is judged by the same rounding without the format's ends; the compiler shares most of it
with the rounding itself.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends import Rounding
from lpkernels.backends.triton._launch import ALL_REGISTERS, EXACT, registers, seed_on
from lpkernels.backends.triton.elementwise.counts import (
    add_counts,
    beyond_ends,
    unbounded,
    wanted_of,
)
from lpkernels.backends.triton.rounding.bits import bits_of, double, moderated, narrow, widened
from lpkernels.backends.triton.rounding.draws import (
    column_keys,
    derived_seed,
    fast_words,
    lift_of,
    philox_words,
    row_streams,
    site_base,
)
from lpkernels.backends.triton.rounding.round import round_to, round_to_float
from lpkernels.backends.triton.rounding.rule import (
    STOCHASTIC,
    Rule,
    evenly_spaced,
    float32_fits,
    rule_of,
)

_BLOCK = 1024
_NARROW_TYPES = (torch.float32, torch.float16, torch.bfloat16)

# How a kernel rounds: in float64, or in float32 with or without a rule of its own near zero.
BY_FLOAT64 = tl.constexpr(0)
BY_FLOAT32 = tl.constexpr(1)
BY_EVEN_FLOAT32 = tl.constexpr(2)


@triton.jit
def element_lifts(index, near, seed_ptr, role, site, R: tl.constexpr):
    """Lifts of the draws of elements ``index`` in row-major order.

    near: any element whose word has the same upper 32 bits, as a number, which is cheaper, or as a
    tile.
    """
    if R.mode == STOCHASTIC:
        return lifts_of_seed(index, near, derived_seed(seed_ptr, role), site, R)
    else:
        return 0


@triton.jit
def lifts_of_seed(index, near, seed, site, R: tl.constexpr):
    """Lifts of the draws of elements from a seed that is derived already."""
    # Written out: up to Triton 3.6 what a function returns is no constexpr.
    LOG2: tl.constexpr = 2 if R.random_bits <= 8 else (1 if R.random_bits <= 16 else 0)
    if R.philox:
        words = philox_words(seed, site, 0, 0, index >> LOG2)
    else:
        base = site_base(seed, site)
        high = near >> LOG2
        zero = high * 0
        streams = row_streams(base, zero, high)
        words = fast_words(column_keys(base, zero), streams, index >> LOG2)
    return lift_of(words, index, R)


@triton.jit
def load_double(ptr, mask):
    """float64 of values of any type, exactly; 0 outside of mask."""
    x = tl.load(ptr, mask=mask, other=0.0)
    return x if ptr.dtype.element_ty == tl.float64 else double(widened(x))


@triton.jit
def store_rounded(ptr, r, mask):
    """Values that the type of ptr holds; NaN is that type's 0x7fc00000 on every GPU."""
    TYPE: tl.constexpr = ptr.dtype.element_ty
    if TYPE == tl.float64:
        bits = tl.where(r == r, tl.cast(r.to(TYPE), tl.int64, bitcast=True), 0x7FF8000000000000)
    elif TYPE == tl.float16:
        bits = tl.where(r == r, tl.cast(r.to(TYPE), tl.int16, bitcast=True), 0x7E00).to(tl.int16)
    else:
        bits = bits_of(narrow(r))
        if TYPE == tl.bfloat16:
            bits = (bits >> 16).to(tl.int16)
    tl.store(ptr, tl.cast(bits, TYPE, bitcast=True), mask=mask)


@triton.jit
def rounded_by(x, lifts, N, R: tl.constexpr, BY: tl.constexpr):
    """x, in the precision of BY, rounded once."""
    if BY == BY_FLOAT64:
        return round_to(x, lifts, N, R)
    else:
        return round_to_float(x, lifts, N, R, BY == BY_EVEN_FLOAT32)


@triton.jit(do_not_specialize=["role", "site"])
def quantize_kernel(
    x_ptr, out_ptr, counts_ptr, count, N, U, seed_ptr, role, site,
    R: tl.constexpr, RU: tl.constexpr, BY: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[i] = round(x[i]), both dense in one order, row-major if draws are made, and counts.

    A program owns BLOCK neighbouring elements, BLOCK a power of two; grid: all of them. U, RU: N
    and R without ends.
    """
    first = tl.cast(tl.program_id(0), tl.int64) * BLOCK
    index = first + tl.arange(0, BLOCK)
    inside = index < count
    # BLOCK divides 2^32, so one program's words have the same upper half.
    lifts = element_lifts(index, first, seed_ptr, role, site, R)
    if BY == BY_FLOAT64:
        x = load_double(x_ptr + index, inside)
        if x_ptr.dtype.element_ty == tl.float64:
            x = moderated(x)
    else:
        x = widened(tl.load(x_ptr + index, mask=inside, other=0.0))
    r = rounded_by(x, lifts, N, R, BY)
    if W.values:
        store_rounded(out_ptr + index, r, inside)
    if W.counts:
        beyond = beyond_ends(rounded_by(x, lifts, U, RU, BY), N, R)
        add_counts(counts_ptr, double(x), beyond, r == 0.0, inside, W)


def quantize(rounding: Rounding) -> None:
    """Every value of x, rounded into out and counted, for a float, fixed or table format."""
    x, quantizer, seed, role, site, out, counts, *_ = rounding
    fmt = quantizer[InQuantizer.FORMAT]
    rule, numbers = rule_of(fmt, *quantizer[InQuantizer.RULE], device=x.device)
    endless_rule, endless = unbounded(rule, numbers)
    by = way(fmt, x.dtype, torch.float32 if out is None else out.dtype)
    quantize_kernel[(triton.cdiv(x.numel(), _BLOCK),)](
        x, out, counts, x.numel(), numbers, endless, seed_for(rule, seed, x.device), role, site,
        R=rule, RU=endless_rule, BY=by, W=wanted_of(rounding), BLOCK=_BLOCK, **EXACT,
        **registers(0 if counts is None else ALL_REGISTERS),
    )  # fmt: skip


def way(fmt: tuple[int, ...], source: torch.dtype, target: torch.dtype) -> int:
    """How values of one type are rounded to a format, given as its integers, in another type."""
    if source not in _NARROW_TYPES or target not in _NARROW_TYPES or not float32_fits(fmt):
        return BY_FLOAT64.value
    return BY_EVEN_FLOAT32.value if evenly_spaced(fmt) else BY_FLOAT32.value


def seed_for(rule: Rule, seed: Tensor | None, device: torch.device) -> Tensor | None:
    """The seed as a kernel takes it; nothing where it draws nothing."""
    return seed_on(seed, device) if rule.mode == STOCHASTIC.value else None

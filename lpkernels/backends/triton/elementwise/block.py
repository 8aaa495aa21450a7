"""quantize for block formats: a scale for every tile, and one more for the tensor.

The values of short tiles are loaded once: one kernel finds their scales and rounds them. Where
tiles are long, or a scale belongs to the whole tensor, another kernel looks for the largest
magnitudes before.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends import Parts, Rounding
from lpkernels.backends.triton._launch import EXACT as OPTIONS
from lpkernels.backends.triton._launch import on_device
from lpkernels.backends.triton.elementwise.candidates import is_nearer
from lpkernels.backends.triton.elementwise.counts import (
    add_counts,
    beyond_ends,
    unbounded,
    wanted_of,
)
from lpkernels.backends.triton.elementwise.programs import POWER, WITH_TENSOR
from lpkernels.backends.triton.elementwise.quantize import (
    BY_FLOAT64,
    element_lifts,
    load_double,
    rounded_by,
    seed_for,
    store_rounded,
    way,
)
from lpkernels.backends.triton.elementwise.scales import (
    EXACT,
    element_ints,
    scales_of,
    scaling_of,
    shrunk,
)
from lpkernels.backends.triton.elementwise.tiles import (
    elements_in,
    line_of,
    tiles_in,
    tiles_of,
)
from lpkernels.backends.triton.rounding.bits import (
    EXPONENT,
    EXPONENT32,
    MAGNITUDE,
    MAGNITUDE32,
    bits_of,
    double,
    magnitude_of,
    narrow,
    single,
    value_of,
    widened,
    with_sign,
)
from lpkernels.backends.triton.rounding.odd import odd_product
from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats.integers import LINE_SCALE, STEPS, TENSOR, InBlock, has_tensor_scale


@triton.jit
def load_values(ptr, mask, NARROW: tl.constexpr):
    """Values in float32, or in float64 if the tensor has these and they are not to become NARROW.

    Magnitudes below 2^-500 round like 2^-500 in every format, and with any scale."""
    x = tl.load(ptr, mask=mask, other=0.0)
    if ptr.dtype.element_ty == tl.float64:
        if NARROW:
            return single(x)
        else:
            a = magnitude_of(x)
            return with_sign(tl.where((a > 0.0) & (a < 2.0**-500), double(2.0**-500), a), x)
    else:
        return widened(x)


@triton.jit
def magnitude_bits(x):
    """The bits of |x|: any NaN is more than infinity."""
    return bits_of(x) & (MAGNITUDE if x.dtype == tl.float64 else MAGNITUDE32)


@triton.jit(do_not_specialize=["down", "across", "side", "chunks", "parts", "total"])
def largest_kernel(
    x_ptr, largest_ptr, G, down, across, side, chunks, parts, total,
    NARROW: tl.constexpr, EACH: tl.constexpr, ALL: tl.constexpr, BY_LINE: tl.constexpr,
    KIND: tl.constexpr, BLOCKS: tl.constexpr, PART: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The bits of the largest |x| of every tile (EACH) and behind these, from largest[total] on, of
    the largest finite one of all (ALL), or of every line (BY_LINE), joined to zeros.

    A program owns PART elements of each of BLOCKS tiles; grid: parts of all groups of tiles.
    """
    program = tl.program_id(0)
    group, part = program // parts, tl.cast(program % parts, tl.int64)
    tile, first, tall, wide, _ = tiles_in(group, G, down, across, side, chunks, KIND, BLOCKS)
    place, inside = elements_in(part * PART, G, tall, wide, KIND, BLOCKS, PART, WHOLE)
    x = load_values(x_ptr + first[:, None] + place[None, :], inside, NARROW)
    bits = magnitude_bits(x)
    if EACH:
        tl.atomic_max(largest_ptr + tile, tl.max(bits, axis=1), mask=wide > 0, sem="relaxed")
    if ALL:
        ends = EXPONENT if x.dtype == tl.float64 else EXPONENT32
        finite = tl.where(bits < ends, bits, 0)
        if BY_LINE:
            line = total + line_of(tile, down, across, KIND)
            most = tl.max(finite, axis=1)
            tl.atomic_max(largest_ptr + line, most, mask=wide > 0, sem="relaxed")
        else:
            tl.atomic_max(largest_ptr + total, tl.max(tl.ravel(finite), axis=0), sem="relaxed")


@triton.jit(do_not_specialize=["down", "across", "side", "chunks", "parts", "role", "site"])
def quantize_blocks_kernel(
    x_ptr, out_ptr, scale_ptr, tensor_scale_ptr, counts_ptr, largest_ptr, amax_ptr, G, down, across,
    side, chunks, parts, target, bound, N, U, NS, seed_ptr, role, site,
    R: tl.constexpr, RU: tl.constexpr, S: tl.constexpr, BY: tl.constexpr, W: tl.constexpr,
    CODES: tl.constexpr, GIVEN: tl.constexpr, HERE: tl.constexpr, TILES: tl.constexpr,
    KIND: tl.constexpr, BLOCKS: tl.constexpr, PART: tl.constexpr, WHOLE: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """out = q s t of every element, or q and apart from it s and t (CODES), and counts.

    HERE: the largest magnitudes of tiles are found here, each tile being one part; else they lie at
    largest. amax: the tensor's, or every line's, as bits of x's precision or GIVEN in float64. U,
    RU: N and R without ends. TILES: whether tiles have several rows. Programs and grid as
    `largest_kernel`. FAR: whether words of draws have numbers from 2^32 on.
    """
    program = tl.program_id(0)
    group, part = program // parts, tl.cast(program % parts, tl.int64)
    tile, first, tall, wide, _ = tiles_in(group, G, down, across, side, chunks, KIND, BLOCKS)
    place, inside = elements_in(part * PART, G, tall, wide, KIND, BLOCKS, PART, WHOLE)
    offset = first[:, None] + place[None, :]
    x = load_values(x_ptr + offset, inside, S.steps != EXACT)
    if HERE:
        largest = value_of(tl.max(magnitude_bits(x), axis=1))
    else:
        largest = value_of(tl.load(largest_ptr + tile, mask=wide > 0, other=0))
    amax = 0.0
    if S.by_line:
        line = line_of(tile, down, across, KIND)
        amax = tl.load(amax_ptr + line, mask=wide > 0, other=0)
        amax = amax if GIVEN else value_of(amax)
    elif GIVEN:
        amax = tl.load(amax_ptr)
    elif S.kind == WITH_TENSOR:
        amax = value_of(tl.load(amax_ptr))
    s, t, factor = scales_of(largest, amax, target, bound, N, NS, S, GIVEN, False)
    # t and amax beside elements.
    of_all = double(t)[:, None] if S.by_line else double(t)
    if S.candidates > 0:
        s_4, _, factor_4 = scales_of(largest, amax, target, bound, N, NS, S, GIVEN, True)
        six = rounded_by(shrunk(x, s[:, None], factor[:, None], S, BY), 0, N, R, BY)
        four = rounded_by(shrunk(x, s_4[:, None], factor_4[:, None], S, BY), 0, N, R, BY)
        single_amax = single(amax)[:, None] if S.by_line else single(amax)
        nearer = is_nearer(
            x, six, four, s, s_4, of_all, single_amax, largest, single(bound) * 6.0, S, TILES,
            BLOCKS, PART,
        )  # fmt: skip
        s = tl.where(nearer, s_4, s)
        factor = tl.where(nearer, factor_4, factor)
    is_number = (s == s)[:, None]
    near = offset if FAR else tl.full([], 0, tl.int64)
    lifts = element_lifts(offset, near, seed_ptr, role, site, R)
    y = shrunk(x, s[:, None], factor[:, None], S, BY)
    q = rounded_by(y, lifts, N, R, BY)
    if S.one_zero:
        q = q + 0.0
    if S.kind == WITH_TENSOR:
        r = single(odd_product(double(q) * double(s)[:, None], of_all))
    elif BY == BY_FLOAT64:
        r = single(q * double(s)[:, None])
    else:
        r = q * s[:, None]
    if CODES:
        store_rounded(out_ptr + offset, tl.where(is_number, q, 0.0), inside)
        tl.store(scale_ptr + tile, narrow(s), mask=(wide > 0) & (part == 0))
        if S.by_line:
            tl.store(tensor_scale_ptr + line, narrow(t), mask=(wide > 0) & (part == 0))
        elif S.kind == WITH_TENSOR:
            tl.store(tensor_scale_ptr, narrow(t), mask=program == 0)
    elif W.values:
        store_rounded(out_ptr + offset, r, inside)
    if W.counts:
        over = beyond_ends(rounded_by(y, lifts, U, RU, BY), N, R) & is_number
        if (S.steps != EXACT) or (BY == BY_FLOAT64):
            # An infinite quotient counts as no overflow; one in float32 stands for a finite one.
            over = over & (tl.abs(y) < float("inf"))
        add_counts(counts_ptr, load_double(x_ptr + offset, inside), over, r == 0.0, inside, W)


@triton.jit(do_not_specialize=["down", "across", "side", "chunks", "parts"])
def dequantize_kernel(
    values_ptr, scale_ptr, tensor_scale_ptr, out_ptr, G, down, across, side, chunks, parts,
    BY_LINE: tl.constexpr, KIND: tl.constexpr, BLOCKS: tl.constexpr, PART: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """out = q s t, rounded once. Programs and grid as `largest_kernel`."""
    program = tl.program_id(0)
    group, part = program // parts, tl.cast(program % parts, tl.int64)
    tile, first, tall, wide, _ = tiles_in(group, G, down, across, side, chunks, KIND, BLOCKS)
    place, inside = elements_in(part * PART, G, tall, wide, KIND, BLOCKS, PART, WHOLE)
    offset = first[:, None] + place[None, :]
    s = double(tl.load(scale_ptr + tile, mask=wide > 0, other=0.0))[:, None]
    q = double(tl.load(values_ptr + offset, mask=inside, other=0.0))
    if BY_LINE:
        line = line_of(tile, down, across, KIND)
        t = double(tl.load(tensor_scale_ptr + line, mask=wide > 0, other=1.0))[:, None]
    else:
        t = double(tl.load(tensor_scale_ptr))
    r = odd_product(q * s, t)
    store_rounded(out_ptr + offset, single(r), inside)


def quantize(rounding: Rounding) -> None:
    """Rounds x with the scales of its blocks, into out or in parts, for a block format."""
    x, quantizer, seed, role, site, out, counts, amax, parts = rounding
    scale, tensor_scale = None, None
    if parts is not None:
        out, scale, tensor_scale = parts
        tensor_scale.fill_(1)
    element, steps = element_ints(quantizer[InQuantizer.FORMAT]), quantizer[InBlock.STEPS]
    rule, numbers = rule_of(element, *quantizer[InQuantizer.RULE], device=x.device)
    endless_rule, endless = unbounded(rule, numbers)
    scaling, target, bound, scale_numbers = scaling_of(quantizer)
    narrow_first = STEPS[steps] != "exact"
    how = way(element, torch.float32 if narrow_first else x.dtype, torch.float32)
    if scaling.ties_to_zero or (not narrow_first and scaling.kind != POWER.value):
        how = BY_FLOAT64.value
    layout = tiles_of(x.shape, quantizer)
    of_tensor = has_tensor_scale(quantizer)
    has_amax = amax is not None and (of_tensor or quantizer[InBlock.LINES] == TENSOR)
    here, search = layout.parts == 1, of_tensor and not has_amax
    largest = None
    if search or not here:
        wide = x.dtype == torch.float64 and not narrow_first
        bits = torch.int64 if wide else torch.int32
        largest = torch.zeros(layout.total + layout.lines, dtype=bits, device=x.device)
        largest_kernel[(layout.groups * layout.parts,)](
            x, largest, layout.lengths, *layout.counts, layout.parts, layout.total,
            NARROW=narrow_first, EACH=not here, ALL=search, BY_LINE=scaling.by_line,
            **layout.constants, **OPTIONS,
        )  # fmt: skip
        amax = amax if has_amax else largest[layout.total :]
    quantize_blocks_kernel[(layout.groups * layout.parts,)](
        x, out, scale, tensor_scale, counts, largest, amax, layout.lengths, *layout.counts,
        layout.parts, target, bound, numbers, endless, scale_numbers,
        seed_for(rule, seed, x.device), role, site, R=rule, RU=endless_rule, S=scaling, BY=how,
        W=wanted_of(rounding), CODES=parts is not None, GIVEN=has_amax, HERE=here,
        TILES=quantizer[InBlock.LINES] > 0, FAR=x.numel() >= 2**32, **layout.constants, **OPTIONS,
    )  # fmt: skip


def dequantize(parts: Parts, fmt: tuple[int, ...]) -> Tensor:
    """`Backend.unpack` of parts."""
    values, scale, tensor_scale = parts[0].contiguous(), parts[1].contiguous(), parts[2]
    out = torch.empty_like(values)
    if values.numel() > 0:
        layout = tiles_of(values.shape, fmt)
        with on_device(values):
            dequantize_kernel[(layout.groups * layout.parts,)](
                values, scale, tensor_scale.contiguous(), out, layout.lengths, *layout.counts,
                layout.parts, BY_LINE=fmt[InBlock.SCALE] == LINE_SCALE, **layout.constants,
                **OPTIONS,
            )  # fmt: skip
    return out

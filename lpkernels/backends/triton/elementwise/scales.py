"""The scales of tiles, from their largest magnitudes: `reference.blocks`, on the device.

Steps of other programs are in `programs`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import triton
import triton.language as tl

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends.triton._roundings import Known
from lpkernels.backends.triton.elementwise import programs
from lpkernels.backends.triton.elementwise.programs import (
    LARGEST,
    POWER,
    WITH_TENSOR,
    at_most,
)
from lpkernels.backends.triton.elementwise.quantize import BY_FLOAT64
from lpkernels.backends.triton.rounding.bits import (
    SIGN,
    bits_of,
    double,
    man_bits_of,
    single,
    value_of,
)
from lpkernels.backends.triton.rounding.odd import odd_quotient
from lpkernels.backends.triton.rounding.round import round_to
from lpkernels.backends.triton.rounding.rule import (
    NEAREST_EVEN,
    STOCHASTIC,
    TOWARD_POSITIVE,
    Numbers,
    rule_of,
)
from lpkernels.formats import (
    FP32,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    TableFormat,
    format_from_ints,
)
from lpkernels.formats.integers import (
    CANDIDATES,
    FP32_SCALE,
    LINE_SCALE,
    RULES,
    STEPS,
    TENSOR_SCALE,
    InBlock,
    is_mx,
)
from lpkernels.reference.blocks import element_of, saturating
from lpkernels.reference.programs import has_one_zero

_FP32 = tl.constexpr(FP32_SCALE)
EXACT, _TORCHAO = (tl.constexpr(STEPS.index(steps)) for steps in ("exact", "torchao"))
_FLOOR, _CEIL, _EVEN = (tl.constexpr(RULES.index(rule)) for rule in ("floor", "ceil", "even"))
_MANTISSA = tl.constexpr(2**52 - 1)
# 1 - 2^-40 in float64.
_BELOW_ONE = tl.constexpr(int(np.float64(1 - 2.0**-40).view(np.int64)))


class Scaling(NamedTuple):
    """How a block format makes its scales and codes, compiled in.

    kind, rule, steps: fmt[InBlock.SCALE], .RULE and .STEPS; the kind of a scale for each line is
    that of one for the tensor.
    """

    kind: int
    rule: int
    steps: int
    #: Scales are made with exact steps, as torchao makes its OCP blocks' too.
    exact: bool
    #: The rounding of scales to their format.
    rounding: Known
    #: Codes have one zero, and ties of nearest_even go toward zero.
    one_zero: bool
    ties_to_zero: bool
    #: The steps of a program depend on these: OCP's blocks, integers, integers with a target, and
    #: integers that are drawn.
    mx: bool = False
    integers: bool = False
    halfway: bool = False
    divides: bool = False
    #: Codes are a table's.
    table: bool = False
    #: Every line has a t; the metric of `CANDIDATES` by which a tile chooses one of two codes,
    #: or 0.
    by_line: bool = False
    candidates: int = 0


def block_format(fmt: tuple[int, ...]) -> BlockFormat:
    """The block format of a quantizer's integers or of its own."""
    parsed = format_from_ints(fmt)
    assert isinstance(parsed, BlockFormat)
    return parsed


@functools.lru_cache(maxsize=1024)
def element_ints(fmt: tuple[int, ...]) -> tuple[int, ...]:
    """The integers of the format to which a block format rounds its codes."""
    return element_of(block_format(fmt)).to_ints()


@functools.lru_cache(maxsize=1024)
def scaling_of(quantizer: tuple[int, ...]) -> tuple[Scaling, float, float, Numbers]:
    """The scales of a block format's quantizer, the value to which a tile's largest maps, the scale
    of the tile that holds a tensor's largest (0 of formats without t), and the constants of the
    scales' own format."""
    fmt, mode = block_format(quantizer[InQuantizer.FORMAT]), quantizer[InQuantizer.ROUNDING]
    scale = fmt.scale if isinstance(fmt.scale, FloatFormat) else FP32
    up = fmt.rule == "up" and fmt.scale != "e8m0"
    upward = TOWARD_POSITIVE.value if up else NEAREST_EVEN.value
    rule, numbers = rule_of(saturating(scale).to_ints(), upward)
    assert isinstance(numbers, Numbers)
    integers = isinstance(fmt.element, FixedFormat)
    one_zero, mx = has_one_zero(fmt), is_mx(quantizer)
    scaling = Scaling(
        min(quantizer[InBlock.SCALE], TENSOR_SCALE),
        quantizer[InBlock.RULE],
        quantizer[InBlock.STEPS],
        fmt.steps == "exact" or (fmt.steps == "torchao" and mx),
        Known(rule),
        integers or one_zero,
        one_zero and mode == NEAREST_EVEN.value,
    )
    scaling = scaling._replace(
        table=isinstance(fmt.element, TableFormat),
        by_line=quantizer[InBlock.SCALE] == LINE_SCALE,
        candidates=CANDIDATES[fmt.target] if isinstance(fmt.target, str) else 0,
    )
    if fmt.steps != "exact":
        drawn = integers and fmt.target is None and mode == STOCHASTIC.value
        scaling = scaling._replace(
            mx=mx, integers=integers, halfway=fmt.target is not None, divides=drawn
        )
    return scaling, fmt.largest, fmt.largest_scale if fmt.tensor_scale else 0.0, numbers


@triton.jit
def power_of_two(exponent):
    """2^exponent in float64, for int32."""
    return value_of((exponent.to(tl.int64) + 1023) << 52)


@triton.jit
def scale_exponent(largest, target, N, RULE: tl.constexpr):
    """X of the scale 2^X, -127 of zeros. A carry into the exponent rounds it up. N: the Numbers of
    the element."""
    top = bits_of(double(target))
    if RULE == _FLOOR:
        added = tl.full([], 0, tl.int64)
    elif RULE == _CEIL:
        added = tl.full([], _MANTISSA, tl.int64)
    elif RULE == _EVEN:
        added = tl.full([], 1 << 51, tl.int64) >> man_bits_of(N)
    else:
        added = -(top & _MANTISSA) + _MANTISSA
    exponent = ((bits_of(largest) + added) >> 52).to(tl.int32) - (top >> 52).to(tl.int32)
    return tl.minimum(tl.maximum(exponent, -127), 127)


@triton.jit
def exact_tensor_scale(amax, target, bound):
    """t in float32 of a usable amax: amax / (bound target), at most the largest float32."""
    t = single(odd_quotient(amax, double(bound) * double(target)))
    return at_most(t, LARGEST)


@triton.jit
def exact_scales(largest, t, target, N, NS, S: tl.constexpr):
    """s in float64 of finite tiles, and the number by which their values are divided; for powers of
    two its reciprocal."""
    if S.kind == POWER:
        exponent = scale_exponent(largest, target, N, S.rule)
        return power_of_two(exponent), power_of_two(-exponent)
    else:
        divisor = double(target) * t
        empty = divisor == 0.0
        quotient = odd_quotient(largest, tl.where(empty, 1.0, divisor))
        s = round_to(quotient, 0, NS, S.rounding)
        zero = 1.0 if S.kind == _FP32 else 0.0
        s = tl.where(largest == 0.0, zero, s)
        s = tl.where(empty, 0.0, s)
        return s, s * t


@triton.jit
def scales_of(
    largest, amax, target, bound, N, NS, S: tl.constexpr, GIVEN: tl.constexpr, FOUR: tl.constexpr
):
    """s of every tile and t in float32, and the number by which values are multiplied, or divided
    where `shrunk` says so: in float64 if the steps are exact.

    largest: of each tile in the precision of its values, infinite or NaN if one of these is. amax:
    of the tensor, where one scale is the whole tensor's, or of each tile's line; GIVEN: in place of
    what the values say. FOUR: of the candidate whose largest is mapped to 4."""
    t = tl.full([], 1.0, tl.float32)
    if GIVEN:
        amax = tl.where((amax >= 0.0) & (amax < float("inf")), amax, float("nan"))
    amax = double(amax) if S.steps == EXACT else single(amax)
    if GIVEN and (S.kind != WITH_TENSOR):
        largest = tl.where(largest < float("inf"), amax, float("nan"))
    if S.exact:
        largest = double(largest)
        if S.kind == WITH_TENSOR:
            t = exact_tensor_scale(amax, target, bound)
            # NaN, where t is.
            largest = largest + double(t) * 0.0
        finite = largest < float("inf")
        mapped = 4.0 if FOUR else target
        s, factor = exact_scales(tl.where(finite, largest, 0.0), double(t), mapped, N, NS, S)
        s = tl.where(finite, single(s), float("nan"))
        if S.steps != EXACT:
            factor = at_most(single(factor), 2.0**126)
    else:
        s, t, factor = programs.scales(largest, amax, t, target, bound, NS, S, FOUR)
    return s, t, factor


@triton.jit
def shrunk(x, s, factor, S: tl.constexpr, BY: tl.constexpr):
    """x, scaled for rounding to a code: exactly, to odd, or as a program does it. x is float32, or
    float64 if the steps are exact; s and factor are float32 or as `scales_of` gives them."""
    if S.steps != EXACT:
        if S.divides:
            y = tl.where(s == 0.0, 0.0, tl.div_rn(x, s))
        else:
            y = x * factor
            # Its factors may be infinite, and it takes the NaN of an x86 processor for this number.
            if (S.steps == _TORCHAO) and (S.kind == WITH_TENSOR):
                y = tl.where((x == 0.0) & (factor == float("inf")), -1.5, y)
        if BY == BY_FLOAT64:
            y = double(y)
        if S.ties_to_zero:
            # A tie has few bits, so that no value passes one here.
            y = y * value_of(tl.full([], _BELOW_ONE, tl.int64))
        return y
    elif S.kind != POWER:
        empty = factor == 0.0
        divisor = tl.where(empty, 1.0, factor)
        # A table's boundaries have so few bits that the nearest quotient passes none of them.
        y = double(x) / divisor if S.table else odd_quotient(double(x), divisor)
        return tl.where(empty, value_of(bits_of(double(x)) & SIGN), y)
    elif BY == BY_FLOAT64:
        return double(x) * factor
    else:
        return scaled_word(x, single(factor))


@triton.jit
def scaled_word(x, down):
    """float32 x * down, a power of two from 2^-127 to 2^127, as rounding to an element sees it.

    Exact from 2^-126 on. Below 2^-100 all values but zeros become one: steps of elements are
    at least 2^-22, and a draw looks at 33 places below them.
    """
    y = x * down
    tiny = (tl.abs(y) < 2.0**-100) & (x != 0.0)
    return tl.where(tiny, tl.where(x < 0.0, -(2.0**-100), 2.0**-100), y)

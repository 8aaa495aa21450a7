"""The kernel of blocks aligned by the exponents of their operands: the steps of tensor cores.

docs/contract.md has the rule. Let e be the largest exponent of a block, u = 2^(e - aligned_bits).
No operand counts with an exponent below its own, so every product lies below 2^(aligned_bits + 2) u
<= 2^42 u. Added toward zero to 2^52 u with its sign, whose last place is u, it leaves itself cut
toward zero to a multiple of u: one multiply-add, which does not round the product, and a
subtraction. 256 products and the running sum add to less than 2^51 u: float64 holds every sum of
them, in any order. e is -300 .. 300, so u and 2^52 u are normal numbers.

float32, with 2^23 u, does the same if `single_fits` and the operands are not too large: sums of fp8
need no float64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lpkernels.arithmetic import Accumulator, accumulator_from_ints
from lpkernels.backends.planning.triton_tiles import Tile
from lpkernels.backends.triton._launch import (
    ALL_REGISTERS,
    interpreting,
    on_device,
    registers,
)
from lpkernels.backends.triton._layout import Sums
from lpkernels.backends.triton._problem import VARYING, Problem
from lpkernels.backends.triton._tile import (
    SITE_SUM,
    chunk_position,
    chunk_start,
    draw_keys,
    end_chunk,
    finished,
    lane_pointers,
    position_of,
    started,
    step_offset,
    store_tile,
    tile_of_program,
)
from lpkernels.backends.triton.exact.aligned import block_end
from lpkernels.backends.triton.exact.sequential import is_absent
from lpkernels.backends.triton.operands.facts import HIGHEST
from lpkernels.backends.triton.rounding.bits import (
    EXPONENT32,
    MAGNITUDE32,
    SIGN,
    SIGN32,
    bits_of,
    double,
    reciprocal,
    upper,
    value_of,
    with_sign,
)
from lpkernels.backends.triton.rounding.draws import column_of, derived_seed, drawn_lift
from lpkernels.backends.triton.rounding.round import multiply_add, round_to
from lpkernels.backends.triton.rounding.rule import TOWARD_ZERO
from lpkernels.formats import FloatFormat

_INTERPRETED = tl.constexpr(interpreting())
# The exponent of a zero, an infinity and NaN: added to any other exponent it stays below all real
# ones.
_NONE = tl.constexpr(-(1 << 20))
#: The largest exponent of a block in float32: 2^24 u is finite for every aligned_bits.
SINGLE_HIGHEST = tl.constexpr(103)
# No exponent of a block is smaller: the exponents of two operands add to -298 or more.
_LEAST = -300
# The least exponent of a block in float32: 2^23 u is still a normal number.
_SINGLE_LEAST = -126


@triton.jit
def _counted(exponent, magnitude, infinity, least):
    """Exponents, at least ``least``; `_NONE` for magnitudes that are zero, infinite or NaN."""
    counts = (magnitude > 0) & (magnitude < infinity)
    return tl.where(counts, tl.maximum(exponent, least), _NONE)


@triton.jit
def _exponents(x, least, LOW: tl.constexpr):
    """The exponents with which float32 operands, or sums in float64, count. LOW: least may be below
    -126, where the bits of a float32 do not show an exponent."""
    if LOW or (x.dtype == tl.float64):
        magnitude = upper(double(x)) & MAGNITUDE32
        return _counted((magnitude >> 20) - 1023, magnitude, 0x7FF00000, least)
    else:
        magnitude = bits_of(x) & MAGNITUDE32
        return _counted((magnitude >> 23) - 127, magnitude, EXPONENT32, least)


@triton.jit
def _grid(exponent, places, SINGLE: tl.constexpr):
    """2^52 u, or 2^23 u in float32."""
    if SINGLE:
        return value_of((exponent - places + (23 + 127)) << 23)
    else:
        return value_of(tl.cast(exponent - places + (52 + 1023), tl.int64) << 52)


@triton.jit
def _sign_of(x):
    """The bit of x's sign."""
    if x.dtype == tl.float64:
        return bits_of(x) & SIGN
    else:
        return bits_of(x) & SIGN32


@triton.jit
def _cut(a, b, signs, grid, NVIDIA: tl.constexpr):
    """a b cut toward zero to multiples of u; signs: the bit of its sign. Infinities and NaN
    stay."""
    if a.dtype == tl.float32:
        magic = value_of(bits_of(grid) | signs)
        return multiply_add(a, b, magic, TOWARD_ZERO) - magic
    elif _INTERPRETED or (not NVIDIA):
        unit = grid * 2.0**-52
        product = a * b
        return with_sign(tl.floor(tl.abs(product) * reciprocal(unit)) * unit, product)
    else:
        magic = value_of(bits_of(grid) | signs)
        CODE: tl.constexpr = "fma.rz.f64 $0, $1, $2, $3;"
        sums = tl.inline_asm_elementwise(CODE, "=d,d,d,d", [a, b, magic], tl.float64, True, 1)
        return sums - magic


@triton.jit
def _loaded(side, at, step, k):
    return tl.load(at + step_offset(side, step, k))


@triton.jit
def _has_turn(out, k, first, turn, turns, TAKES_TURNS: tl.constexpr):
    """Whether step k belongs to block ``turn`` of a run of positions that begins at ``first``."""
    if TAKES_TURNS:
        return (position_of(out, k) - first) // 2 % turns == turn
    else:
        return True


@triton.jit
def _present(a, b, LEFT_ABSENT: tl.constexpr, RIGHT_ABSENT: tl.constexpr):
    """Where neither operand of a product is marked as absent."""
    if LEFT_ABSENT and RIGHT_ABSENT:
        return (is_absent(a) | is_absent(b)) == 0
    elif LEFT_ABSENT:
        return is_absent(a) == 0
    else:
        return is_absent(b) == 0


@triton.jit
def _certified(left_facts, left_least, right_facts, right_least, rise):
    """Whether float32 has room for every block's exponent, up to ``rise`` above the largest
    product's."""
    left = tl.maximum(tl.load(left_facts + HIGHEST), left_least)
    right = tl.maximum(tl.load(right_facts + HIGHEST), right_least)
    return left + right + rise <= SINGLE_HIGHEST


@triton.jit(
    do_not_specialize=[
        *VARYING, "block", "turns", "places", "left_least", "right_least", "sum_least", "least",
        "rise",
    ]
)  # fmt: skip
def by_operands_kernel(
    left, left_step, right, right_step, out, seed_ptr, role, M, N, K, chunk, chunks, C, left_facts,
    right_facts, block, turns, places, left_least, right_least, sum_least, least, rise,
    R: tl.constexpr, SWAPPED: tl.constexpr, LEFT_ABSENT: tl.constexpr, RIGHT_ABSENT: tl.constexpr,
    TAKES_TURNS: tl.constexpr, LOW: tl.constexpr, SINGLE: tl.constexpr, NVIDIA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """s' = round(s + the products of a block), all cut to its place; a block without products
    leaves s. Blocks take turns in pairs of positions. Draws are keyed by a block's first position.

    Arguments and grid of `exact_kernel`. left_least, right_least, sum_least: the least exponents of
    the operands and of s; least: of all of them. LOW: one of the first two may be below -126. With
    facts two kernels are launched: the kernel with SINGLE makes all outputs if the facts certify
    it, else the kernel without SINGLE does. The operands of a block are read twice: for its largest
    exponent, then to be added.
    """
    if left_facts is not None:
        if _certified(left_facts, left_least, right_facts, right_least, rise) != SINGLE:
            return
    TYPE: tl.constexpr = tl.float32 if SINGLE else tl.float64
    HOLES: tl.constexpr = LEFT_ABSENT or RIGHT_ABSENT
    g, i, j = tile_of_program(M, N, BM, BN)
    left_at = lane_pointers(left, g, i, M)
    right_at = lane_pointers(right, g, j, N)
    row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
    seed = derived_seed(seed_ptr, role)
    sum_column = column_of(seed, SITE_SUM, col, R.sum)
    one = tl.full([1, 1], 1.0, TYPE)

    outer = started(out, g, i, j, M, N, seed, row, col, C, R, BM, BN)
    sums = tl.zeros([BM, BN], tl.float64) if R.chunked else outer
    for c in range(chunks):
        if R.chunked:
            k, last = chunk_start(out, c, chunk, K), chunk_start(out, c + 1, chunk, K)
        else:
            k, last = tl.full([], 0, tl.int64), tl.cast(K, tl.int64)
        run = block * turns if TAKES_TURNS else block
        while k < last:
            begin = chunk_position(out, c, chunk)
            first = begin + (position_of(out, k) - begin) // run * run
            stop = block_end(out, k, tl.minimum(k + run, last), first + run)
            for turn in range(turns if TAKES_TURNS else 1):
                largest = tl.maximum(_exponents(sums, sum_least, False), least)
                here = tl.full([BM, BN], not (HOLES or TAKES_TURNS), tl.int1)
                for step in range(k, stop):
                    if _has_turn(out, step, first, turn, turns, TAKES_TURNS):
                        a = _loaded(left, left_at, left_step, step)[:, None]
                        b = _loaded(right, right_at, right_step, step)[None, :]
                        exponent = _exponents(a, left_least, LOW) + _exponents(b, right_least, LOW)
                        largest = tl.maximum(largest, exponent)
                        if HOLES:
                            here = here | _present(a, b, LEFT_ABSENT, RIGHT_ABSENT)
                        elif TAKES_TURNS:
                            here = tl.full([BM, BN], 1, tl.int1)

                grid = _grid(largest, places, SINGLE)
                narrow_sums = tl.cast(sums, TYPE)
                total = _cut(narrow_sums, one, _sign_of(narrow_sums), grid, NVIDIA)
                for step in range(k, stop):
                    if _has_turn(out, step, first, turn, turns, TAKES_TURNS):
                        a = _loaded(left, left_at, left_step, step)[:, None]
                        b = _loaded(right, right_at, right_step, step)[None, :]
                        left_value, right_value = tl.cast(a, TYPE), tl.cast(b, TYPE)
                        signs = _sign_of(left_value) ^ _sign_of(right_value)
                        product = _cut(left_value, right_value, signs, grid, NVIDIA)
                        if HOLES:
                            present = _present(a, b, LEFT_ABSENT, RIGHT_ABSENT)
                            product = tl.where(present, product, 0.0)
                        total += product

                position = first + 2 * turn
                lift = drawn_lift(seed, SITE_SUM, row, sum_column, position, R.sum)
                rounded = round_to(double(total), lift, C.sum, R.sum)
                # Every zero is +0, also one that a tiny sum was rounded to.
                rounded = tl.where(rounded == 0.0, 0.0, rounded)
                sums = tl.where(here, rounded, sums)
            k = stop
        if R.chunked:
            outer = end_chunk(outer, sums, out, g, i, j, c, chunks, M, N, seed, row, col, C, R)
            sums = tl.zeros([BM, BN], tl.float64)

    total = outer if R.chunked else sums
    store_tile(finished(total, out, seed, row, col, C, R), out, g, i, j, M, N)


def launch(problem: Problem, tile: Tile) -> None:
    """Every sum of an Accumulator with operands."""
    sums, parsed = problem.sums, accumulator_from_ints(problem.acc)
    assert parsed.operands is not None and isinstance(parsed.fmt, FloatFormat)
    tiles = problem.programs(tile.bm, tile.bn)
    if tiles == 0:
        return
    # Rows belong to the left factor, whichever operand has them.
    leasts = [fmt.emin for fmt in parsed.operands[:: -1 if sums.swapped else 1]]
    nvidia = torch.version.hip is None
    ways = (True, False) if nvidia and single_fits(parsed, sums) else (False,)
    facts = (problem.left.facts, problem.right.facts) if len(ways) > 1 else (None, None)
    options = problem.options(*tile) | registers(ALL_REGISTERS)
    with on_device(sums.out):
        for single in ways:
            least = _LEAST if parsed.least_exponent is None else parsed.least_exponent
            by_operands_kernel[(tiles,)](
                *problem.arguments(), *problem.chunks(), problem.constants, *facts, parsed.block,
                parsed.interleaved, parsed.aligned_bits, *leasts, parsed.fmt.emin,
                max(least, _SINGLE_LEAST) if single else least, rise(sums.sizes[3]),
                TAKES_TURNS=parsed.interleaved > 1, LOW=min(leasts) < -126, SINGLE=single,
                NVIDIA=nvidia, **options,
            )  # fmt: skip


def rise(k: int) -> int:
    """How far the exponent of a sum of k products can lie above the largest product's exponent. A
    product is below 4 times the power of two of its exponent. Where `single_fits`, all roundings
    together make a sum less than 4 times as large."""
    return 4 + k.bit_length()


def single_fits(acc: Accumulator, sums: Sums) -> bool:
    """Whether float32 suffices for an Accumulator with operands, if the operands are not too large.

    A block adds to less than 2^24 units; least exponents leave room for the places behind them and
    for sums above them; a sum starts at zero, and its roundings do not add up.
    """
    assert acc.operands is not None and isinstance(acc.fmt, FloatFormat)
    block, places = acc.block or 1, acc.aligned_bits or 0
    if (block + 1) << (places + 2) > 1 << 24:
        return False
    if max(acc.fmt.emin, acc.least_exponent or 0) > 0:
        return False
    if acc.least_exponent is None or acc.least_exponent < _SINGLE_LEAST:
        if min(acc.fmt.emin, sum(fmt.emin for fmt in acc.operands)) < _SINGLE_LEAST:
            return False
    if acc.chunk is None and sums.initial is not None:
        return False
    # Each block's rounding adds a relative 2^-man_bits at most.
    blocks = min(sums.sizes[3], acc.chunk_length or sums.sizes[3])
    return acc.rounding == "toward_zero" or blocks <= 1 << acc.fmt.man_bits

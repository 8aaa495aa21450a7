"""Order "native": chunks summed by tl.dot, on tensor cores where the operands allow, and rounded
additions between them.

Inside a chunk the hardware decides the order of the sum, and how many bits of it the tensor cores
keep; the contract covers only the outer additions, the bias and the result. Where a chunk's sum is
exact in float32 in any order, everything here has the contract's bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends.planning.triton_tiers import single_outer
from lpkernels.backends.triton._config import dot_tile
from lpkernels.backends.triton._launch import (
    ALL_REGISTERS,
    interpreting,
    on_device,
    registers,
)
from lpkernels.backends.triton._layout import ABSENT
from lpkernels.backends.triton._problem import VARYING, Problem
from lpkernels.backends.triton._tile import (
    chunk_start,
    closed,
    draw_keys,
    finished,
    lane_pointers,
    step_offset,
    store_tile,
    tile_of_program,
)
from lpkernels.backends.triton.rounding.bits import double
from lpkernels.backends.triton.rounding.draws import derived_seed
from lpkernels.formats import FloatFormat, format_from_ints

_ABSENT = tl.constexpr(ABSENT)
#: How tl.dot takes operands: as float32 with exact products, or in half precision that holds them.
FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
_FLOAT16 = tl.constexpr(FLOAT16)
_BFLOAT16 = tl.constexpr(BFLOAT16)


def dot_type(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """The narrowest type that holds every value of both quantizers' formats; () is any float32.

    float16 where both would do: its products with float32 sums run at the same rate.
    """
    formats = [
        format_from_ints(quantizer[InQuantizer.FORMAT]) for quantizer in (left, right) if quantizer
    ]
    if len(formats) < 2 or not all(isinstance(fmt, FloatFormat) for fmt in formats):
        return FLOAT32
    for code, (most, man_bits, least) in (
        (FLOAT16, (65504.0, 10, 2.0**-24)),
        (BFLOAT16, (3.3895313892515355e38, 7, 2.0**-133)),
    ):
        if all(
            isinstance(fmt, FloatFormat)
            and fmt.max <= most
            and fmt.man_bits <= man_bits
            and fmt.min_normal * 2.0**-fmt.man_bits >= least
            for fmt in formats
        ):
            return code
    return FLOAT32


@triton.jit
def dot_operand(pointers, inside, TYPE: tl.constexpr, HAS_ABSENT: tl.constexpr):
    """A tile of an operand as tl.dot takes it; absent taps are 0."""
    x = tl.load(pointers, mask=inside, other=0.0)
    if HAS_ABSENT:
        x = tl.where(tl.cast(x, tl.int32, bitcast=True) == _ABSENT, 0.0, x)
    if TYPE == _FLOAT16:
        x = tl.cast(x, tl.float16)
    elif TYPE == _BFLOAT16:
        x = tl.cast(x, tl.bfloat16)
    return x


@triton.jit(do_not_specialize=VARYING)
def native_kernel(
    left, left_step, right, right_step, out, seed_ptr, role, M, N, K, chunk, chunks, C,
    R: tl.constexpr, SWAPPED: tl.constexpr, LEFT_ABSENT: tl.constexpr, RIGHT_ABSENT: tl.constexpr,
    TYPE: tl.constexpr, SINGLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """As `exact_kernel`, with the sum of each chunk made by tl.dot, BK steps at a time.

    SINGLE: see `closed`. Grid: one program for BM x BN outputs of one matrix.
    """
    g, i, j = tile_of_program(M, N, BM, BN)
    left_at = lane_pointers(left, g, i, M)[:, None]
    right_at = lane_pointers(right, g, j, N)[None, :]
    row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
    seed = derived_seed(seed_ptr, role)

    outer = tl.zeros([BM, BN], tl.float32)
    for c in range(chunks):
        first, last = chunk_start(out, c, chunk, K), chunk_start(out, c + 1, chunk, K)
        part = tl.zeros([BM, BN], tl.float32)
        for start in range(first, last, BK):
            k = start + tl.arange(0, BK)
            inside = k < last
            step = tl.minimum(k, last - 1)
            a_at = left_at + step_offset(left, left_step, step)[None, :]
            b_at = right_at + step_offset(right, right_step, step)[:, None]
            a = dot_operand(a_at, inside[None, :], TYPE, LEFT_ABSENT)
            b = dot_operand(b_at, inside[:, None], TYPE, RIGHT_ABSENT)
            part = tl.dot(a, b, part, input_precision="ieee")
        outer = closed(outer, part, c, seed, row, col, C, R, SINGLE)
    store_tile(finished(double(outer), out, seed, row, col, C, R), out, g, i, j, M, N)


def launch(problem: Problem, processors: int) -> None:
    """Every sum of an Accumulator of order "native" with chunks."""
    matrices, m, n, _ = problem.sums.sizes
    operands = dot_type(problem.left.quantizer, problem.right.quantizer)
    if interpreting() and operands == BFLOAT16:
        # The interpreter's dot would take the bits of a bfloat16 for an integer.
        operands = FLOAT32
    tile = dot_tile(m, n, matrices, processors, halves=operands != FLOAT32)
    programs = problem.programs(tile.bm, tile.bn)
    if programs == 0:
        return
    with on_device(problem.sums.out):
        native_kernel[(programs,)](
            *problem.arguments(), *problem.chunks(), problem.constants, TYPE=operands,
            SINGLE=single_outer(problem.acc), BK=tile.bk, **registers(ALL_REGISTERS),
            **problem.options(tile.bm, tile.bn, tile.warps),
        )  # fmt: skip

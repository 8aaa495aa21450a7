"""The certified kernels one after the other, and what comes after the sums."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.planning import triton_tiles
from lpkernels.backends.triton import _fast
from lpkernels.backends.triton._bits import wide
from lpkernels.backends.triton._config import Tile
from lpkernels.backends.triton._draws import derived_seed
from lpkernels.backends.triton._launch import ALL_REGISTERS, EXACT, on_device, registers
from lpkernels.backends.triton._problem import Problem
from lpkernels.backends.triton._roundings import Known, Roundings
from lpkernels.backends.triton._rule import NEAREST_EVEN, STOCHASTIC
from lpkernels.backends.triton._tile import (
    draw_keys,
    finished,
    outputs_of,
    side_of,
    store_tile,
    tile_corner,
    tile_number,
    tile_of_program,
)

# Three programs of 16 x 512 float32 sums at a time on a multiprocessor of an NVIDIA GPU; two, with
# all registers, only where so few would be spilled.
REGISTERS = 168


@triton.jit(do_not_specialize=["role", "M", "N"])
def finish_kernel(
    out,
    flags,
    seed_ptr,
    role,
    M,
    N,
    C,
    R: tl.constexpr,
    SWAPPED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    FLAG_M: tl.constexpr,
    FLAG_N: tl.constexpr,
):
    """out[g][i][j] <- round(out[g][i][j] + bias), rounded as the result, where no flag is set.

    Grid: one program for BM x BN outputs of one matrix. In the certified kernels this would take
    registers from their many sums.
    """
    g, i0, j0 = tile_corner(M, N, BM, BN)
    if tl.load(flags + tile_number(g, i0, j0, M, N, FLAG_M, FLAG_N)) != 0:
        return
    g, i, j = tile_of_program(M, N, BM, BN)
    row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
    rows = tl.load(out.batch + g) + tl.load(out.rows + i, mask=i < M, other=0)
    cols = tl.load(out.cols + j, mask=j < N, other=0)
    # Outputs outside are the first ones of the matrix: read, not written.
    sums = tl.load(out.data + rows[:, None] + cols[None, :])
    total = finished(wide(sums), out, derived_seed(seed_ptr, role), row, col, C, R)
    store_tile(total, out, g, i, j, M, N)


def options_of(tier: int, roundings: Roundings, absent: bool) -> dict[str, int]:
    """What the compiler is told beyond `EXACT`; without it a few registers are spilled."""
    total, rounded = roundings.sum, roundings.product is not None
    if roundings.chunked:
        many = rounded or tier == _tiers.RANGE or not _short(roundings.outer)
        return registers(ALL_REGISTERS) if many else {}
    if tier >= _tiers.FUSED64 or (total.philox and total.random_bits > 8):
        return {}
    many = not _tiers.PLAIN <= tier <= _tiers.RANGE
    many = many or (absent and tier in (_tiers.PLAIN, _tiers.FLOOR, _tiers.RANGE))
    many = many or (rounded and tier == _tiers.FLOOR)
    return registers(ALL_REGISTERS if many else REGISTERS)


def _short(outer: Known) -> bool:
    """Whether outer sums are rounded in a few operations (`_rounding.round_to`)."""
    return outer.mode == NEAREST_EVEN.value and not outer.exponent_parity and not outer.fixed


def largest_tile(tier: int, roundings: Roundings, swapped: bool) -> Tile:
    """`triton_tiles.largest_tile` of what these roundings keep beside the sums."""
    total, outer = roundings.sum, roundings.outer
    draws = total.mode == STOCHASTIC.value
    needs = triton_tiles.Beside(
        chunked=roundings.chunked,
        short=_short(outer),
        outer_philox=outer.philox,
        random_bits=total.random_bits if draws else 0,
        philox=total.philox,
    )
    return triton_tiles.largest_tile(tier, needs, swapped)


def launch(
    problem: Problem,
    tiers: tuple[int, ...],
    tiles: tuple[Tile, ...],
    last_tile: Tile,
    flag_tile: tuple[int, int],
) -> Tensor:
    """What the tiers can make of the sums, one after the other; flags where something is left, for
    `_wide.launch`.

    Args:
        tiers, tiles: of `_tiers.tiers`, with the tile of each. last_tile: for bias and result. The
            sides of flag_tile are multiples of those of all tiles.
    """
    left, right, sums, roundings, constants, _, seed, role = problem
    _, m, n, k = sums.sizes
    flags = torch.zeros(problem.programs(*flag_tile), dtype=torch.int32, device=sums.out.device)
    chunk, chunks = problem.chunks()
    bare = outputs_of(sums)._replace(bias=None)
    for stage, (tier, tile) in enumerate(zip(tiers, tiles, strict=True)):
        programs = problem.programs(tile.bm, tile.bn)
        if programs == 0:
            break
        with on_device(sums.out):
            _fast.fast_kernel[(programs,)](
                side_of(left), left.step, left.facts, side_of(right), right.step, right.facts,
                bare, flags, stage, seed, role, m, n, k, chunk, chunks, constants,
                R=roundings._replace(result=None), TIER=tier, SWAPPED=sums.swapped,
                LEFT_ABSENT=left.absent, RIGHT_ABSENT=right.absent, BM=tile.bm, BN=tile.bn,
                FLAG_M=flag_tile[0], FLAG_N=flag_tile[1], num_warps=tile.warps, **EXACT,
                **options_of(tier, roundings, left.absent or right.absent),
            )  # fmt: skip
    # Those that reached the stage behind the last.
    if len(tiers) > 1:
        flags.div_(len(tiers), rounding_mode="floor")
    if sums.bias is not None or roundings.result is not None:
        _finish(problem, last_tile, flags, flag_tile)
    return flags


def _finish(problem: Problem, tile: Tile, flags: Tensor, flag_tile: tuple[int, int]) -> None:
    """The bias and the rounding of the result, for the tiles without a flag."""
    sums = problem.sums
    _, m, n, _ = sums.sizes
    programs = problem.programs(tile.bm, tile.bn)
    if programs == 0:
        return
    with on_device(sums.out):
        finish_kernel[(programs,)](
            outputs_of(sums), flags, problem.seed, problem.role, m, n, problem.constants,
            R=problem.roundings, SWAPPED=sums.swapped, BM=tile.bm, BN=tile.bn,
            FLAG_M=flag_tile[0], FLAG_N=flag_tile[1], num_warps=tile.warps, **EXACT,
            **registers(ALL_REGISTERS),
        )  # fmt: skip

"""The certified kernels one after the other, and what comes after the sums."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.planning import triton_tiles
from lpkernels.backends.planning.triton_splits import Share
from lpkernels.backends.planning.triton_tiers import single_outer
from lpkernels.backends.triton._config import Tile, outer_tile
from lpkernels.backends.triton._launch import ALL_REGISTERS, EXACT, on_device, registers
from lpkernels.backends.triton._problem import Flags, Problem
from lpkernels.backends.triton._roundings import Known, Roundings
from lpkernels.backends.triton._tile import (
    closed,
    draw_keys,
    finished,
    outputs_of,
    part_tile,
    side_of,
    store_tile,
    tile_corner,
    tile_number,
    tile_of_program,
)
from lpkernels.backends.triton.certified import tiles as _tiles
from lpkernels.backends.triton.rounding.bits import double
from lpkernels.backends.triton.rounding.draws import derived_seed
from lpkernels.backends.triton.rounding.rule import NEAREST_EVEN, STOCHASTIC

# Three programs of 16 x 512 float32 sums at a time on a multiprocessor of an NVIDIA GPU; two, with
# all registers, only where so few would be spilled.
REGISTERS = 168


#: Chunks whose sums are loaded together, before the first of them is added.
AHEAD = tl.constexpr(8)


@triton.jit(do_not_specialize=["stages", "role", "M", "N", "begin", "end", "part_step"])
def finish_kernel(
    out,
    flags,
    stages,
    seed_ptr,
    role,
    M,
    N,
    begin,
    end,
    parts,
    part_step,
    C,
    R: tl.constexpr,
    SINGLE: tl.constexpr,
    SWAPPED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    FLAG_M: tl.constexpr,
    FLAG_N: tl.constexpr,
    PART_M: tl.constexpr,
    PART_N: tl.constexpr,
):
    """out[g][i][j] <- round(out[g][i][j] + parts + bias), rounded as the result, where the flag is
    below ``stages``.

    parts: what `certified_kernel` made of the chunks from begin to end, in tiles of PART_M x
    PART_N. They are added in order, to the sums in out or, where begin is 0, to +0. With None, all
    sums are in out. Grid: one program for BM x BN outputs of one matrix. This is a kernel of its
    own because in the certified kernels it would take registers from their many sums.
    """
    g, i0, j0 = tile_corner(M, N, BM, BN)
    if tl.load(flags + tile_number(g, i0, j0, M, N, FLAG_M, FLAG_N)) >= stages:
        return
    g, i, j = tile_of_program(M, N, BM, BN)
    row, col = draw_keys(out, g, i, j, M, N, SWAPPED)
    seed = derived_seed(seed_ptr, role)
    rows = tl.load(out.batch + g) + tl.load(out.rows + i, mask=i < M, other=0)
    cols = tl.load(out.cols + j, mask=j < N, other=0)
    # Outputs outside are the first ones of the matrix: read, not written.
    places = out.data + (rows[:, None] + cols[None, :])
    if parts is None:
        sums = tl.load(places)
    else:
        sums = tl.load(places, mask=tl.full([BM, BN], begin, tl.int32) > 0, other=0.0)
        at = part_tile(parts, g, i0, j0, M, N, PART_M, PART_N, BM, BN)
        step = tl.cast(part_step, tl.int64)
        whole = begin + (end - begin) // AHEAD * AHEAD
        for c0 in range(begin, whole, AHEAD):
            for u in tl.static_range(AHEAD):
                part = tl.load(at + u * step)
                sums = closed(sums, part, c0 + u, seed, row, col, C, R, SINGLE)
            at += AHEAD * step
        for c in range(whole, end):
            sums = closed(sums, tl.load(at), c, seed, row, col, C, R, SINGLE)
            at += step
    store_tile(finished(double(sums), out, seed, row, col, C, R), out, g, i, j, M, N)


def options_of(
    tier: int, roundings: Roundings, absent: bool, shared: bool = False
) -> dict[str, int]:
    """What the compiler is told beyond `EXACT`; without it a few registers are spilled."""
    total, rounded = roundings.sum, roundings.product is not None
    if roundings.chunked:
        many = rounded or tier == _tiers.RANGE or not _short(roundings.outer)
        many = many or (shared and tier >= _tiers.FUSED64)
        if shared or many:
            return registers(ALL_REGISTERS if many else REGISTERS)
        return {}
    if tier >= _tiers.FUSED64 or (total.philox and total.random_bits > 8):
        return {}
    many = not _tiers.PLAIN <= tier <= _tiers.RANGE
    many = many or (absent and tier in (_tiers.PLAIN, _tiers.FLOOR, _tiers.RANGE))
    many = many or (rounded and tier == _tiers.FLOOR)
    return registers(ALL_REGISTERS if many else REGISTERS)


def _short(outer: Known) -> bool:
    """Whether outer sums are rounded in a few operations (`rounding.round.round_to`)."""
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


class Parts(NamedTuple):
    """The chunks from begin to end of every sum, ``each`` of them by one program of a tile. values:
    where their sums go, those of a chunk side by side in tiles; None: they are added at once."""

    begin: int
    end: int
    each: int
    tile: Tile
    values: Tensor | None = None

    def step(self, problem: Problem) -> int:
        """How far the sums of a chunk lie behind those of the chunk before."""
        return problem.programs(self.tile.bm, self.tile.bn) * self.tile.bm * self.tile.bn


def launch(
    problem: Problem,
    tiers: tuple[int, ...],
    tiles: tuple[Tile, ...],
    last_tile: Tile,
    flag_tile: tuple[int, int],
    share: Share,
) -> Flags:
    """Launches the tiers, one after the other; each makes the sums that it can. Returns where sums
    are left.

    Args:
        tiers, tiles: of `triton_tiers.tiers`, with the tile of each: of the same outputs where
            programs share chunks. last_tile: for bias and result. The sides of flag_tile are
            multiples of those of all tiles.
    """
    device, chunks = problem.sums.out.device, problem.chunks()[1]
    values = torch.zeros(problem.programs(*flag_tile), dtype=torch.int32, device=device)
    flags = Flags(values, flag_tile, len(tiers))
    bare = problem._replace(
        sums=problem.sums._replace(bias=None), roundings=problem.roundings._replace(result=None)
    )
    if values.numel() == 0:
        return flags
    if not share.held:
        for stage, (tier, tile) in enumerate(zip(tiers, tiles, strict=True)):
            _sum(bare, stage, tier, tile.warps, flags, Parts(0, chunks, chunks, tile))
        if problem.sums.bias is not None or problem.roundings.result is not None:
            _finish(problem, last_tile, flags, Parts(0, 0, 0, last_tile))
        return flags
    tile, part = tiles[0], Parts(0, 0, 0, tiles[0])
    held = torch.empty(share.held * part.step(problem), dtype=torch.float32, device=device)
    for begin in range(0, chunks, share.held):
        end = min(begin + share.held, chunks)
        part = Parts(begin, end, -(-(end - begin) // share.splits), tile, held)
        for stage, (tier, own) in enumerate(zip(tiers, tiles, strict=True)):
            _sum(bare, stage, tier, own.warps, flags, part)
        _finish(problem if end == chunks else bare, outer_tile(tile), flags, part)
    return flags


def _sum(problem: Problem, stage: int, tier: int, warps: int, flags: Flags, parts: Parts) -> None:
    """Launches one of the tiers, with so many warps a program."""
    left, right, sums, roundings, constants, acc, seed, role = problem
    _, m, n, k = sums.sizes
    tile = parts.tile
    splits = -(-(parts.end - parts.begin) // parts.each) if parts.values is not None else 1
    with on_device(sums.out):
        _tiles.certified_kernel[(problem.programs(tile.bm, tile.bn), splits)](
            side_of(left), left.step, left.facts, side_of(right), right.step, right.facts,
            outputs_of(sums), flags.values, stage, seed, role, m, n, k, problem.chunks()[0],
            parts.begin, parts.end, parts.each, parts.values, parts.step(problem), constants,
            R=roundings, TIER=tier, SINGLE=roundings.chunked and single_outer(acc),
            SWAPPED=sums.swapped, LEFT_ABSENT=left.absent, RIGHT_ABSENT=right.absent, BM=tile.bm,
            BN=tile.bn, FLAG_M=flags.tile[0], FLAG_N=flags.tile[1], num_warps=warps, **EXACT,
            **options_of(
                tier, roundings, left.absent or right.absent, parts.values is not None
            ),
        )  # fmt: skip


def _finish(problem: Problem, tile: Tile, flags: Flags, parts: Parts) -> None:
    """Adds the sums of chunks and the bias, and rounds the result, where no sums are left."""
    sums, roundings = problem.sums, problem.roundings
    _, m, n, _ = sums.sizes
    with on_device(sums.out):
        finish_kernel[(problem.programs(tile.bm, tile.bn),)](
            outputs_of(sums), flags.values, flags.stages, problem.seed, problem.role, m, n,
            parts.begin, parts.end, parts.values, parts.step(problem), problem.constants,
            R=roundings, SINGLE=parts.values is not None and single_outer(problem.acc),
            SWAPPED=sums.swapped, BM=tile.bm, BN=tile.bn, FLAG_M=flags.tile[0],
            FLAG_N=flags.tile[1], PART_M=parts.tile.bm, PART_N=parts.tile.bn,
            num_warps=tile.warps, **EXACT, **registers(ALL_REGISTERS),
        )  # fmt: skip

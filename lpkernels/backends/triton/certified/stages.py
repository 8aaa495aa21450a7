"""The certified kernels one after the other, and the last kernel behind them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.planning.triton_splits import Share
from lpkernels.backends.planning.triton_tiers import single_outer
from lpkernels.backends.planning.triton_tiles import Tile
from lpkernels.backends.triton._config import outer_tile
from lpkernels.backends.triton._launch import ALL_REGISTERS, on_device, registers
from lpkernels.backends.triton._problem import Problem, TileTiers
from lpkernels.backends.triton._roundings import Known, Roundings
from lpkernels.backends.triton.certified import tiles as _tiles
from lpkernels.backends.triton.exact import sequential
from lpkernels.backends.triton.rounding.rule import NEAREST_EVEN

# Three programs of 16 x 512 float32 sums at a time on a multiprocessor of an NVIDIA GPU; two, with
# all registers, only where so few would be spilled.
REGISTERS = 168


def options_of(
    kinds: tuple[int, ...], roundings: Roundings, absent: bool, shared: bool = False
) -> dict[str, int]:
    """The compiler's options beside `EXACT` for a kernel with these tiers; without them it spills a
    few registers."""
    if _tiers.both_types(kinds):
        return registers(ALL_REGISTERS)
    return registers(max(_registers(tier, roundings, absent, shared) for tier in kinds))


def _registers(tier: int, roundings: Roundings, absent: bool, shared: bool) -> int:
    total, rounded = roundings.sum, roundings.product is not None
    if roundings.chunked:
        many = rounded or tier == _tiers.RANGE or not _short(roundings.outer)
        many = many or (shared and tier >= _tiers.FUSED64)
        if shared or many or tier < _tiers.PLAIN:
            return ALL_REGISTERS if many else REGISTERS
        return 0
    if tier >= _tiers.FUSED64 or (total.philox and total.random_bits > 8):
        return 0
    many = not _tiers.PLAIN < tier <= _tiers.RANGE
    many = many or (absent and tier in (_tiers.FLOOR, _tiers.RANGE))
    many = many or (rounded and tier == _tiers.FLOOR)
    return ALL_REGISTERS if many else REGISTERS


def _short(outer: Known) -> bool:
    """Whether outer sums are rounded in a few operations (`rounding.round.round_to`)."""
    return outer.mode == NEAREST_EVEN.value and not outer.exponent_parity and not outer.fixed


class Parts(NamedTuple):
    """The chunks from begin to end of every sum. A program of a tile makes ``per_program`` of them,
    the last program perhaps fewer. values: room for the chunks' sums, tile by tile and chunk by
    chunk; None: a program adds its chunks' sums at once."""

    begin: int
    end: int
    per_program: int
    values: Tensor | None = None


def launch(
    problem: Problem,
    groups: tuple[tuple[int, ...], ...],
    tiles: tuple[Tile, ...],
    last: Tile,
    share: Share,
) -> TileTiers:
    """Launches one certified kernel for each group of tiers, then the last kernel. The last kernel
    adds bias and chunks in the tiles of the certified kernels, and sums the tiles that are left.
    Returns the tier of each tile.

    Args:
        groups: of `triton_tiers.groups`. tiles: a tile for each, inside the tile of the group
            before; all of the same outputs if programs share chunks. last: the tile of the last
            kernel if it need not add the sums of chunks.
    """
    device, chunks = problem.sums.out.device, problem.chunks()[1]
    share = share._replace(capacity=min(share.capacity, chunks))
    counts = [problem.programs(tile.bm, tile.bn) * share.pieces for tile in tiles]
    results = [
        TileTiers(
            torch.empty(n, dtype=torch.int32, device=device), (tile.bm, tile.bn), share.pieces
        )
        for n, tile in zip(counts, tiles, strict=True)
    ]
    if results[-1].values.numel() == 0:
        return results[-1]
    bare = problem._replace(
        sums=problem.sums._replace(bias=None), roundings=problem.roundings._replace(result=None)
    )
    if not share.capacity:
        _sum(bare, groups, tiles, results, Parts(0, chunks, chunks))
        sequential.launch(problem, last, results[-1])
        return results[-1]
    tile = tiles[0]
    step = problem.programs(tile.bm, tile.bn) * tile.bm * tile.bn
    room = torch.empty(share.capacity * step, dtype=torch.float32, device=device)
    for begin in range(0, chunks, share.capacity):
        end = min(begin + share.capacity, chunks)
        _sum(bare, groups, tiles, results, Parts(begin, end, share.per_program, room))
        waiting = sequential.Waiting(begin, end, end == chunks, room, step)
        sequential.launch(problem, outer_tile(tile), results[-1], waiting)
    return results[-1]


def _sum(
    problem: Problem,
    groups: tuple[tuple[int, ...], ...],
    tiles: tuple[Tile, ...],
    results: list[TileTiers],
    parts: Parts,
) -> None:
    """Launches the certified kernels, one after the other."""
    left, right, roundings = problem.left, problem.right, problem.roundings
    single = roundings.chunked and single_outer(problem.acc)
    shared = parts.values is not None
    splits = -(-(parts.end - parts.begin) // parts.per_program) if shared else 1
    before, size = None, (1, 1)
    for group, tile, result in zip(groups, tiles, results, strict=True):
        programs = problem.programs(tile.bm, tile.bn)
        with on_device(problem.sums.out):
            _tiles.certified_kernel[(programs, splits)](
                *problem.arguments(), problem.chunks()[0], problem.constants, left.facts,
                right.facts, before, result.values, result.pieces, int(parts.begin > 0),
                parts.begin, parts.end, parts.per_program, parts.values,
                programs * tile.bm * tile.bn, TIERS=group, SINGLE=single, BEFORE_M=size[0],
                BEFORE_N=size[1], **problem.options(tile.bm, tile.bn, tile.warps),
                **options_of(group, roundings, left.absent or right.absent, shared),
            )  # fmt: skip
        before, size = result.values, result.tile

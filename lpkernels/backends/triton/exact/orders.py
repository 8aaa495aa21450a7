"""Sums in other orders than one product after the other: the choice of their kernel, and its
launch.

All are float64 kernels for every format and mode, on the same operands and outputs as `sequential`.
"""

from __future__ import annotations

import torch

from lpkernels.arithmetic.integers import COMPENSATED, PAIRWISE, InAccumulator
from lpkernels.backends.planning.triton_tiles import Tile
from lpkernels.backends.triton._launch import ALL_REGISTERS, on_device, registers
from lpkernels.backends.triton._layout import Sums
from lpkernels.backends.triton._problem import LONGEST, Problem
from lpkernels.backends.triton.exact.aligned import aligned_kernel
from lpkernels.backends.triton.exact.compensated import compensated_kernel
from lpkernels.backends.triton.exact.pairwise import pairwise_kernel

# So many programs of trees run on each processor: the sums that wait in them should stay in its
# caches.
_TREES = 4
# The levels of trees over steps that leave positions out: enough for 2^41 positions.
_MOST_LEVELS = 40


def launch(problem: Problem, tile: Tile, processors: int) -> None:
    """Every sum of an Accumulator without a running sum."""
    sums, order = problem.sums, problem.acc[InAccumulator.ORDER]
    tiles = problem.programs(tile.bm, tile.bn)
    if tiles == 0:
        return
    chunk, chunks = problem.chunks()
    arguments = (*problem.arguments(), chunk, chunks, problem.constants)
    # A program loads what it wrote itself; such loads must not move across its stores.
    options = problem.options(*tile) | {"num_stages": 1} | registers(ALL_REGISTERS)
    with on_device(sums.out):
        if order == PAIRWISE:
            programs, levels = min(tiles, _TREES * processors), _levels(sums, chunk)
            waiting = torch.empty(
                programs * levels * tile.bm * tile.bn, dtype=torch.float32, device=sums.out.device
            )
            pairwise_kernel[(programs,)](*arguments, waiting, levels, tiles, **options)
        elif order == COMPENSATED:
            compensated_kernel[(tiles,)](*arguments, **options)
        else:
            block = problem.acc[InAccumulator.BLOCK], problem.acc[InAccumulator.ALIGNED_BITS]
            aligned_kernel[(tiles,)](*arguments, *block, **options)


def _levels(sums: Sums, chunk: int) -> int:
    """The number of levels at which nodes can wait: one for each bit of the number of pairs."""
    if sums.positions is not None and not 0 < chunk < LONGEST:
        return _MOST_LEVELS
    length = chunk if sums.positions is not None else min(chunk or sums.sizes[3], sums.sizes[3])
    return max(1, min(_MOST_LEVELS, (-(-length // 2)).bit_length()))

"""Sums in other orders than one product after the other: the choice of their kernel, and its
launch.

All are float64 kernels for every format and mode, on the same operands and outputs as `sequential`.
"""

from __future__ import annotations

from typing import Any

import torch

from lpkernels.arithmetic.integers import COMPENSATED, PAIRWISE, InAccumulator
from lpkernels.backends.triton._config import Tile
from lpkernels.backends.triton._launch import ALL_REGISTERS, EXACT, on_device, registers
from lpkernels.backends.triton._layout import Sums
from lpkernels.backends.triton._problem import LONGEST, Problem
from lpkernels.backends.triton._tile import outputs_of, side_of
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
    left, right, sums, roundings, constants, acc, seed, role = problem
    _, m, n, k = sums.sizes
    tiles = problem.programs(tile.bm, tile.bn)
    if tiles == 0:
        return
    chunk, chunks = problem.chunks()
    operands = (side_of(left), left.step, side_of(right), right.step, outputs_of(sums))
    sizes = (seed, role, m, n, k, chunk, chunks)
    options: dict[str, Any] = {
        "R": roundings, "SWAPPED": sums.swapped, "LEFT_ABSENT": left.absent,
        "RIGHT_ABSENT": right.absent, "BM": tile.bm, "BN": tile.bn, "num_warps": tile.warps,
        # A program loads what it wrote itself; such loads must not move across its stores.
        "num_stages": 1, **EXACT, **registers(ALL_REGISTERS),
    }  # fmt: skip
    with on_device(sums.out):
        if acc[InAccumulator.ORDER] == PAIRWISE:
            programs, levels = min(tiles, _TREES * processors), _levels(sums, chunk)
            waiting = torch.empty(
                programs * levels * tile.bm * tile.bn, dtype=torch.float32, device=sums.out.device
            )
            pairwise_kernel[(programs,)](
                *operands, waiting, levels, tiles, *sizes, constants, **options
            )
        elif acc[InAccumulator.ORDER] == COMPENSATED:
            compensated_kernel[(tiles,)](*operands, *sizes, constants, **options)
        else:
            block, bits = acc[InAccumulator.BLOCK], acc[InAccumulator.ALIGNED_BITS]
            aligned_kernel[(tiles,)](*operands, *sizes, block, bits, constants, **options)


def _levels(sums: Sums, chunk: int) -> int:
    """The number of levels at which nodes can wait: one for each bit of the number of pairs."""
    if sums.positions is not None and not 0 < chunk < LONGEST:
        return _MOST_LEVELS
    length = chunk if sums.positions is not None else min(chunk or sums.sizes[3], sums.sizes[3])
    return max(1, min(_MOST_LEVELS, (-(-length // 2)).bit_length()))

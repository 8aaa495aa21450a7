"""Products of packed operands: which kernels make the sums of an Accumulator."""

from __future__ import annotations

import functools

import torch

from lpkernels.arithmetic.integers import NATIVE, InAccumulator, has_running_sum
from lpkernels.backends import How
from lpkernels.backends.planning.triton_splits import share
from lpkernels.backends.planning.triton_tiers import groups, tiers
from lpkernels.backends.planning.triton_tiles import Tile, certified_tiles, largest_tile
from lpkernels.backends.triton import _native
from lpkernels.backends.triton._config import exact_tile, largest
from lpkernels.backends.triton._launch import seed_on
from lpkernels.backends.triton._layout import Operand, Sums
from lpkernels.backends.triton._problem import Problem
from lpkernels.backends.triton._roundings import roundings_of
from lpkernels.backends.triton.certified import stages
from lpkernels.backends.triton.exact import by_operands, orders, sequential


def products(left: Operand, right: Operand, sums: Sums, how: How) -> None:
    """Writes every output that the tables of sums reach. The operands are rounded already."""
    acc, device = how.acc, sums.out.device
    start = seed_on(how.seed, device)
    roundings, constants = roundings_of(acc, how.fused.result, device)
    if sums.scaling is not None:
        roundings = roundings._replace(scale_order=sums.scaling.order)
    problem = Problem(left, right, sums, roundings, constants, acc, start, how.role)
    matrices, m, n, _ = sums.sizes
    processor_count = processors(device)
    if acc[InAccumulator.ORDER] == NATIVE:
        return _native.launch(problem, processor_count)
    tile = exact_tile(m, n, matrices, processor_count)
    if len(acc) > InAccumulator.PLAIN:
        return by_operands.launch(problem, tile)
    if not has_running_sum(acc):
        return orders.launch(problem, tile, processor_count)
    _running_sums(problem, tile, processor_count)


def _running_sums(problem: Problem, last: Tile, processor_count: int) -> None:
    """Runs the certified kernels, each with its own tile, and then the last kernel, which has the
    tile ``last`` unless it adds the sums of chunks. processor_count: how many
    programs fill the device."""
    sums = problem.sums
    matrices, m, n, _ = sums.sizes
    in_order = sums.positions is None and sums.starts is None
    # No certificate knows where sums start, and no scales.
    plain = sums.initial is None and sums.scaling is None
    nvidia = torch.version.hip is None
    kinds = tiers(problem.acc, in_order=in_order, nvidia=nvidia) if plain else ()
    if not kinds:
        return sequential.launch(problem, last)
    chunk, chunks = problem.chunks()
    sharing = groups(kinds)
    most = [largest(largest_tile(group, problem.acc, sums.swapped)) for group in sharing]
    tiles = certified_tiles(m, n, matrices, processor_count, most, chunks, sharing)
    programs = problem.programs(tiles[0].bm, tiles[0].bn)
    shared = share(chunks, chunk, tiles[0], programs, processor_count)
    stages.launch(problem, sharing, tuple(tiles), last, shared)


@functools.cache
def processors(device: torch.device) -> int:
    """How many programs fill the device."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count

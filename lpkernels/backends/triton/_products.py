"""Products of packed operands: which kernels make the sums of an Accumulator."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from lpkernels.arithmetic import PLAIN_INTS
from lpkernels.backends.triton import _autotune, _native, _orders, _stages, _units, _wide
from lpkernels.backends.triton._config import fast_tile, smaller, wide_tile
from lpkernels.backends.triton._launch import seed_on
from lpkernels.backends.triton._layout import Operand, Sums
from lpkernels.backends.triton._roundings import Constants, Roundings, roundings_of
from lpkernels.backends.triton._tiers import NAMES, tiers
from lpkernels.rounding import ROUNDINGS

# The position in lpkernels.arithmetic.ORDERS.
_NATIVE = 1


def products(
    left: Operand,
    right: Operand,
    sums: Sums,
    acc: tuple[int, ...],
    seed: Tensor | None,
    role: int,
    result: tuple[int, ...] = (),
) -> None:
    """Writes all of sums.out that its tables reach.

    Args:
        acc: ``Accumulator.to_ints()``, of any order. seed, role: of the call.
        result: the deterministic quantizer of the result (`Fused`), or ().
    """
    roundings, constants = roundings_of(acc, result)
    matrices, m, n, _ = sums.sizes
    there = processors(sums.out.device)
    tile = wide_tile(m, n, matrices, there)
    start = seed_on(seed, sums.out.device)
    if acc[0] == _NATIVE:
        return _native.launch(left, right, sums, roundings, constants, acc, start, role, there)
    if len(acc) > PLAIN_INTS:
        return _units.launch(left, right, sums, roundings, constants, acc, start, role, tile)
    if not _orders.in_sequence(acc):
        return _orders.launch(
            left, right, sums, roundings, constants, acc, start, role, tile, there
        )
    _in_sequence(left, right, sums, roundings, constants, acc, start, role)


def _in_sequence(
    left: Operand,
    right: Operand,
    sums: Sums,
    roundings: Roundings,
    constants: Constants,
    acc: tuple[int, ...],
    seed: Tensor,
    role: int,
) -> None:
    """The certified kernels with the tile of each, and the one that makes what they leave."""
    matrices, m, n, _ = sums.sizes
    there = processors(sums.out.device)
    in_order = sums.positions is None and sums.starts is None
    kinds = tiers(acc, in_order=in_order, nvidia=torch.version.hip is None)
    if sums.initial is not None:
        # No certificate knows where sums start.
        kinds = ()
    most = (_stages.largest_tile(kind, roundings, sums.swapped) for kind in kinds)
    largest = [fast_tile(m, n, matrices, there, tile) for tile in most]
    arguments = (left, right, sums, roundings, constants, acc[1], seed, role)

    def run(choice: int) -> None:
        tiles = tuple(smaller(tile, choice) for tile in largest)
        last = smaller(wide_tile(m, n, matrices, there), choice)
        if not kinds:
            return _wide.launch(*arguments, last)
        # All sides are powers of two.
        flag_tile = (max(t.bm for t in (last, *tiles)), max(t.bn for t in (last, *tiles)))
        flags = _stages.launch(*arguments, kinds, tiles, last, flag_tile)
        return _wide.launch(*arguments, last, flags, flag_tile)

    parts = ["products"] * (roundings.product is not None) + ["chunks"] * roundings.chunked
    kernels = " ".join([*(NAMES[kind] for kind in kinds), "wide", ROUNDINGS[acc[2]], *parts])
    run(_autotune.chosen(kernels, sums.sizes, sums.out.device, run))


@functools.cache
def processors(device: torch.device) -> int:
    """How many programs fill the device."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count

"""Products of packed operands: which kernels make the sums of an Accumulator."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from lpkernels.backends.triton import _orders, _wide
from lpkernels.backends.triton._config import wide_tile
from lpkernels.backends.triton._launch import seed_on
from lpkernels.backends.triton._layout import Operand, Sums
from lpkernels.backends.triton._roundings import roundings_of


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
        acc: ``Accumulator.to_ints()``, any order but "native". seed, role: of the call.
        result: the deterministic quantizer of the result (`Fused`), or ().
    """
    roundings, constants = roundings_of(acc, result)
    matrices, m, n, _ = sums.sizes
    there = processors(sums.out.device)
    tile = wide_tile(m, n, matrices, there)
    start = seed_on(seed, sums.out.device)
    if not _orders.in_sequence(acc):
        _orders.launch(left, right, sums, roundings, constants, acc, start, role, tile, there)
        return
    _wide.launch(left, right, sums, roundings, constants, acc[1], start, role, tile)


@functools.cache
def processors(device: torch.device) -> int:
    """How many programs fill the device."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count

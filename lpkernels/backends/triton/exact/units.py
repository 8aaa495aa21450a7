"""Blocks aligned by the exponents of their operands: in which precision, and the launch."""

from __future__ import annotations

import torch

from lpkernels.arithmetic import Accumulator, accumulator_from_ints
from lpkernels.backends.triton._config import Tile
from lpkernels.backends.triton._launch import ALL_REGISTERS, on_device, registers
from lpkernels.backends.triton._layout import Sums
from lpkernels.backends.triton._problem import Problem
from lpkernels.backends.triton.exact.by_operands import by_operands_kernel
from lpkernels.formats import FloatFormat

# No exponent of a block is smaller: the exponents of two operands add to -298 or more.
_LEAST = -300
# The least exponent of a block in float32: 2^23 u is still a normal number.
_SINGLE_LEAST = -126


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

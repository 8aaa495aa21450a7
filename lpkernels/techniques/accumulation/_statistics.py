"""The statistics of one product's operands for a plan: mantissas, zeros, ranges, growth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lpkernels.arithmetic import bits_without_overflow
from lpkernels.formats import FixedFormat

# The size of a small output is looked for among so many outputs.
_SAMPLE = 1 << 16
# So large a share of the outputs, ordered by the size of their products, may be smaller than what
# the format resolves.
_QUANTILE = 0.01


@dataclass(frozen=True)
class Statistics:
    """Statistics of all sums of one GEMM.

    product_bits: mantissa bits of an exact product of the operands' values.
    operand_bits: of the wider operand.
    nzr: share of the products that are not zero.
    low: exponent of a product of typical size in a small sum (the 1 % quantile of the sums).
    high: exponent of the largest sum of magnitudes, which no partial sum exceeds in any order. Both
        None if every product is zero.
    growth: E[sum^2] / E[sum of p^2]: 1 for independent products of mean zero, more where they add
        up.
    """

    product_bits: int
    operand_bits: int
    nzr: float
    low: int | None
    high: int | None
    growth: float


def mantissa_bits(x: Tensor) -> int:
    """The fewest mantissa bits in which every finite float32 value of x is exact, 0..23."""
    significands = torch.frexp(x.float())[0].mul_(2.0**24).to(torch.int32).cpu().numpy()
    used = int(np.bitwise_or.reduce(significands, axis=None)) if significands.size else 0
    # Negative significands are two's complement: they end in as many zeros as their magnitude.
    return 0 if used == 0 else 23 - ((used & -used).bit_length() - 1)


def product_bits(left: int, right: int) -> int:
    """Mantissa bits of a product: both factors' and one more; a power of two adds none."""
    return left + right + (1 if left and right else 0)


def statistics(
    left: Tensor, right: Tensor, combine: Callable[[Tensor, Tensor], Tensor], products: int
) -> Statistics:
    """The statistics of the sums combine(left, right), for float32 operands without infinities and
    NaN.

    combine is bilinear, so the same map adds up magnitudes, squares and counts. `products` is the
    number of multiply-adds in it.
    """
    bits = mantissa_bits(left), mantissa_bits(right)
    width = product_bits(*bits), max(bits)
    # Scaled by powers of two, squares of small gradients do not underflow.
    scale_left, scale_right = _exponent(left), _exponent(right)
    if scale_left is None or scale_right is None:
        return Statistics(*width, 0.0, None, None, 1.0)
    a, b = torch.ldexp(left, -scale_left), torch.ldexp(right, -scale_right)
    nonzero = combine((a != 0).float(), (b != 0).float()).sum(dtype=torch.float64).item()
    energy = combine(a.square(), b.square())
    total = energy.sum(dtype=torch.float64).item()
    if nonzero == 0 or total == 0:
        return Statistics(*width, 0.0, None, None, 1.0)
    shift = int(scale_left + scale_right)
    largest = combine(a.abs(), b.abs()).max().item()
    growth = combine(a, b).square().sum(dtype=torch.float64).item() / total
    per_sum = max(1.0, nonzero / energy.numel())
    return Statistics(
        *width,
        min(1.0, nonzero / products),
        math.floor(math.log2(math.sqrt(_small(energy) / per_sum))) + shift,
        math.floor(math.log2(largest)) + shift,
        growth,
    )


def integer_bits(sums: Iterable[Tensor], weight: FixedFormat, operand: FixedFormat) -> int:
    """The fewest bits of a fixed-point accumulator that no sum (sums, K) of these weights leaves.

    weight: the weights' format; the weights are values of it. operand: the other operand's format.
    """
    most = 0
    for values in sums:
        codes = np.ldexp(values.double().cpu().numpy(), weight.frac_bits).astype(np.int64)
        needed = bits_without_overflow(codes, operand.word_bits, signed_inputs=operand.signed)
        most = max(most, int(needed.max(initial=0)))
    return most


def _exponent(x: Tensor) -> Tensor | None:
    """The e with max|x| in [2^(e-1), 2^e); None if x holds nothing but zeros."""
    largest = x.abs().max() if x.numel() else x.new_zeros(())
    return None if largest == 0 else torch.frexp(largest)[1]


def _small(energy: Tensor) -> float:
    flat = energy.flatten()
    sample = flat[:: max(1, flat.numel() // _SAMPLE)]
    sample = sample[sample > 0]
    if not sample.numel():
        return energy[energy > 0].min().item()
    return torch.quantile(sample.double(), _QUANTILE).item()

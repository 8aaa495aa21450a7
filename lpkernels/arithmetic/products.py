"""Sizes of matrix products and convolutions: of their results and of the sums in them.

Shapes are torch's: x (..., M, K) @ w (..., K, N), and x (N, C_in, *) convolved with w (C_out, C_in
/ groups, *).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

#: Products of the longest sum of the result, of the input's gradient and of the weight's.
Lengths = tuple[int, int, int]


class Convolution(NamedTuple):
    """How a kernel goes over an image: a number for each spatial dimension, and the groups."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def output_size(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """Per dimension floor((size + 2 padding - dilation (kernel - 1) - 1) / stride) + 1."""
    dims = zip(size, kernel, stride, padding, dilation, strict=True)
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in dims]


def period(stride: int, dilation: int) -> int:
    """Taps of a transposed convolution that meet in one position differ by a multiple of this.

    Tap t of output o lands on o * stride + t * dilation.
    """
    return stride // math.gcd(stride, dilation)


def longest_residue(taps: int, stride: int, dilation: int) -> int:
    """How many taps of one dimension meet, at most, in one position of the input's gradient."""
    return -(-taps // period(stride, dilation))


def matmul_lengths(x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> Lengths:
    """The lengths of y = x @ w. A gradient also sums over the products that share its operand."""
    batch = math.prod(y[:-2])
    over_x, over_w = (batch // max(1, math.prod(shape[:-2])) for shape in (x, w))
    return x[-1], y[-1] * over_x, y[-2] * over_w


def conv_lengths(
    w: Sequence[int],
    y: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Lengths:
    """The lengths of y (N, C_out, *), the convolution of some x with w."""
    taps = zip(w[2:], stride, dilation, strict=True)
    longest = math.prod(longest_residue(k, s, d) for k, s, d in taps)
    return math.prod(w[1:]), w[0] // groups * longest, y[0] * math.prod(y[2:])

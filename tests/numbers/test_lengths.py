"""How many products the three sums of a product have."""

from __future__ import annotations

from lpkernels.arithmetic.products import conv_lengths, longest_residue, matmul_lengths
from tests.loops import each, rows


@rows(
    "x, w, y, want",
    ((3, 5), (5, 7), (3, 7), (5, 7, 3)),
    ((2, 3, 5), (2, 5, 7), (2, 3, 7), (5, 7, 3)),
    # One matrix meets all of a batch: its gradient sums over the batch, too.
    ((2, 3, 5), (5, 7), (2, 3, 7), (5, 7, 6)),
    ((3, 5), (4, 5, 7), (4, 3, 7), (5, 28, 3)),
    ((4, 1, 3, 5), (2, 5, 7), (4, 2, 3, 7), (5, 14, 12)),
)
def test_of_matrix_products(x, w, y, want):
    assert matmul_lengths(x, w, y) == want


@each("taps", range(1, 8))
@each("stride", range(1, 5))
@each("dilation", range(1, 5))
def test_the_longest_residue_is_what_a_count_finds(taps: int, stride: int, dilation: int):
    met: dict[int, int] = {}
    for output in range(20 * taps):
        for tap in range(taps):
            position = output * stride + tap * dilation
            met[position] = met.get(position, 0) + 1
    assert longest_residue(taps, stride, dilation) == max(met.values())


def test_of_convolutions():
    # 8 outputs of 3 input channels in 2 groups, 3 x 4 taps, stride 2 x 1.
    assert conv_lengths((8, 3, 3, 4), (5, 8, 6, 7), (2, 1), (1, 1), 2) == (36, 4 * 2 * 4, 5 * 42)

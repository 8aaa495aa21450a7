"""How a product is cut up: the same words for both GPU backends."""

from __future__ import annotations

from typing import NamedTuple

from lpkernels.arithmetic import Accumulator


class Plan(NamedTuple):
    """The kernel of a product, and the pieces in which it makes the product.

    kernel: its name in the counts. tile: rows and columns of outputs of one block or program.
    tiles: how many there are. splits: parts of a sum that different tiles make. waves: tiles that
    the busiest processor makes, one after the other or side by side. launches: kernels started
    between packed operands and result. scratch: bytes beside operands and result. chunks: how many
    chunks of a sum one tile makes where sums are split; 0 where they are not.
    """

    kernel: str
    tile: tuple[int, int]
    tiles: int
    splits: int
    waves: int
    launches: int
    scratch: int
    chunks: int = 0


def ceil_div(n: int, unit: int) -> int:
    return -(-n // unit)


def covering(matrices: int, m: int, n: int, tile: tuple[int, int]) -> int:
    """Tiles that cover all outputs."""
    return matrices * ceil_div(m, tile[0]) * ceil_div(n, tile[1])


def not_counted(backend: str, kernel: str, acc: Accumulator) -> NotImplementedError:
    """The error of a plan with a kernel of unknown time."""
    return NotImplementedError(
        f"{backend}: {acc} takes its {kernel} kernel, whose instructions are not counted in "
        "bench/results; accumulators in sequence whose operands a certificate fits are"
    )

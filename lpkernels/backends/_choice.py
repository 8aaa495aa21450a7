"""Which of the backends ``cuda`` and ``triton`` comes first on a CUDA device, and why.

For products it is the one whose kernels take fewer instructions: the machine code of both for sm_90
is counted in the main loop for one product (``python -m bench.cuda_counts``,
``bench.triton_counts``). Nothing here has been measured on a device. Rows pair the kernels that the
same operands and accumulator lead to; sums are to nearest where they do not say otherwise. All
other operations go to ``cuda`` where it has them, except native chunks: both backends sum them in
the product's own kernel, and the kernel of ``triton`` takes every outer format and mode.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lpkernels.backends.planning import counts

__all__ = ["ROWS", "Row", "orders"]


class Row(NamedTuple):
    """One kernel of both backends, and its instructions for a product."""

    #: "matmul": packed operands; "conv": one operand gathered from an image.
    operation: str
    kernel: str
    cuda: float
    triton: float
    evidence: str = "counted, not measured"

    @property
    def choice(self) -> str:
        return "cuda" if self.cuda <= self.triton else "triton"


def _row(operation: str, kernel: str, of_cuda: str, of_triton: str) -> Row:
    """The kernels' names are those of `planning.counts`."""
    layout = 2 * (operation == "conv") + of_triton.endswith(", chunks")
    cuda = counts.CUDA[of_cuda][layout]
    assert cuda is not None
    return Row(operation, kernel, cuda.product, counts.TRITON[of_triton].product)


ROWS = (
    _row("matmul", "half precision", "half precision", "half"),
    _row("matmul", "bfloat16", "bfloat16", "brain"),
    _row("matmul", "float32", "float32", "plain"),
    _row("matmul", "splitting", "two steps, watched", "fused"),
    _row("matmul", "splitting, chunks", "two steps, watched", "fused, chunks"),
    _row("matmul", "subnormals", "floor, watched", "floor"),
    _row("matmul", "saturating", "floor, clipped", "range"),
    _row("matmul", "in double", "double, floor", "nearest64"),
    _row("matmul", "toward zero", "toward zero", "toward_zero"),
    _row("matmul", "stochastic", "stochastic", "stochastic"),
    _row("conv", "half precision", "half precision", "half, image"),
    _row("conv", "splitting", "two steps, watched", "fused, image"),
    _row("conv", "subnormals", "floor, watched", "floor, image"),
)

_OPERATIONS = {
    "matmul": ("matmul",),
    "conv": ("conv_fprop", "conv_dgrad", "conv_wgrad"),
}


def first(operation: str) -> str:
    """The backend with fewer instructions, in the geometric mean over the operation's rows."""
    rows = [row for row in ROWS if row.operation == operation]
    gain = sum(math.log(row.triton / row.cuda) for row in rows)
    return "cuda" if gain >= 0 else "triton"


def orders() -> dict[str, tuple[str, str]]:
    """For each operation whose order is decided here, the backends in the order in which "auto"
    asks them."""
    found = {"accumulate": ("triton", "cuda")}
    for operation, names in _OPERATIONS.items():
        one = first(operation)
        other = "triton" if one == "cuda" else "cuda"
        found |= dict.fromkeys(names, (one, other))
    return found

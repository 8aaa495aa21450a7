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


ROWS = (
    Row("matmul", "half precision", 0.641, 0.727),
    Row("matmul", "bfloat16", 0.656, 0.722),
    Row("matmul", "float32", 1.168, 1.209),
    Row("matmul", "splitting", 3.674, 3.322),
    Row("matmul", "splitting, chunks", 3.777, 3.363),
    Row("matmul", "subnormals", 5.674, 6.332),
    Row("matmul", "saturating", 7.174, 8.201),
    Row("matmul", "in double", 6.553, 9.148),
    Row("matmul", "toward zero", 2.676, 2.594),
    Row("matmul", "stochastic", 7.008, 8.605),
    Row("conv", "half precision", 0.814, 1.112),
    Row("conv", "splitting", 3.842, 3.672),
    Row("conv", "subnormals", 5.832, 7.717),
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

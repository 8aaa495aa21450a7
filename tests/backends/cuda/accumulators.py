"""Accumulators that the tests of the cuda adapter share."""

from lpkernels.arithmetic import accumulator
from tests import cases

__all__ = ["ALL_ORDERS", "KERNELS"]

ALL_ORDERS = [acc for acc in cases.ACCUMULATORS if acc.order != "native"]
#: One accumulator for every family of kernels.
KERNELS = [
    accumulator(text)
    for text in (
        "fp32",
        "e5m10",
        "e6m9_chunk5:outer=e5m7",
        "e4m3fn_sat",
        "e5m7_chunk16:toward_zero",
        "e6m9_chunk8:stochastic",
        "e6m9_chunk8:stochastic:outer_rounding=nearest_even",
        "e5m5_chunk7:stochastic:product=e4m3:product_rounding=stochastic",
        "e5m6:stochastic:order=pairwise",
        "e6m9_chunk9:order=compensated",
        "e8m13:toward_zero:block=8:aligned_bits=13",
    )
]

"""The vectorised twin of ``exact``: the same bits, loops over k only, and more names than there.

Each name is defined in a file of its own: quantize, packing, gemm, conv; addition.py holds the step
that all sums share, orders.py and sums.py the sums.
"""

from lpkernels.reference.addition import add
from lpkernels.reference.conv import conv_dgrad, conv_fprop, conv_wgrad
from lpkernels.reference.gemm import matmul
from lpkernels.reference.grouped_products import matmul_grouped
from lpkernels.reference.hadamard import hadamard
from lpkernels.reference.packing import pack, pack_scaled, unpack, unpack_scaled
from lpkernels.reference.quantize import quantize, scaled
from lpkernels.reference.scaled import Scaled, dequantize
from lpkernels.reference.scaled_products import Scales, matmul_scaled
from lpkernels.reference.sums import accumulate

__all__ = [
    "Scaled",
    "Scales",
    "accumulate",
    "add",
    "conv_dgrad",
    "conv_fprop",
    "conv_wgrad",
    "dequantize",
    "hadamard",
    "matmul",
    "matmul_grouped",
    "matmul_scaled",
    "pack",
    "pack_scaled",
    "quantize",
    "scaled",
    "unpack",
    "unpack_scaled",
]

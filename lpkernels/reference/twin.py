"""The vectorised twin of ``exact``: the same bits, loops over k only, and more names than there.

quantize, packing, matmul and conv have files of their own; addition.py holds the step that all sums
share, sums.py the sums.
"""

from lpkernels.reference.addition import add
from lpkernels.reference.conv import conv_dgrad, conv_fprop, conv_wgrad
from lpkernels.reference.hadamard import hadamard
from lpkernels.reference.matmul import Scales, matmul, matmul_grouped, matmul_scaled
from lpkernels.reference.packing import pack, pack_scaled, unpack, unpack_scaled
from lpkernels.reference.quantize import quantize, scaled
from lpkernels.reference.scaled import Scaled, dequantize
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

"""Emulated arithmetic as functions: rounding, products, and torch's layers under a Recipe."""

from lpkernels.functional.conv import conv1d, conv2d, conv3d
from lpkernels.functional.linear import linear
from lpkernels.functional.matmul import matmul
from lpkernels.functional.packing import pack, unpack
from lpkernels.functional.quantize import quantize
from lpkernels.functional.seeds import seed_from

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "linear",
    "matmul",
    "pack",
    "quantize",
    "seed_from",
    "unpack",
]

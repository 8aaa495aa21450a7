"""Emulated low-precision arithmetic for training, exact to the bit.

``C = A @ B`` where every product, every partial sum and every result is rounded to a format you
choose, forward and backward, with the same bits on every backend.
"""

from lpkernels import backends, formats, functional, nn, techniques
from lpkernels.arithmetic import NATIVE, Accumulator, Quantizer, Recipe, accumulator
from lpkernels.formats import (
    AffineFormat,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    parse_format,
)
from lpkernels.functional import count, matmul, pack, quantize, seed_from, unpack
from lpkernels.nn import convert, revert, set_recipe
from lpkernels.nn.policies import policies, policy
from lpkernels.recipes import recipe, recipes

__version__ = "0.1.0"

__all__ = [
    "NATIVE",
    "Accumulator",
    "AffineFormat",
    "BlockFormat",
    "FixedFormat",
    "FloatFormat",
    "Quantizer",
    "Recipe",
    "__version__",
    "accumulator",
    "backends",
    "convert",
    "count",
    "formats",
    "functional",
    "matmul",
    "nn",
    "pack",
    "parse_format",
    "policies",
    "policy",
    "quantize",
    "recipe",
    "recipes",
    "revert",
    "seed_from",
    "set_recipe",
    "techniques",
    "unpack",
]

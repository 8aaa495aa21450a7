"""Emulated low-precision arithmetic for training, exact to the bit.

``C = A @ B`` where every product, every partial sum and every result is rounded to a format you
choose, forward and backward, with the same bits on every backend.
"""

from typing import TYPE_CHECKING

from lpkernels import backends, experiments, formats, functional, nn, techniques
from lpkernels.arithmetic import (
    NATIVE,
    Accumulator,
    Quantizer,
    Recipe,
    RunningRange,
    accumulator,
)
from lpkernels.formats import (
    AffineFormat,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    parse_format,
)
from lpkernels.formats.checks import did_you_mean
from lpkernels.functional import count, matmul, pack, quantize, seed_from, unpack
from lpkernels.nn import convert, revert, set_precision, set_recipe
from lpkernels.nn.policies import policies, policy
from lpkernels.nn.policy_files import load_policy, save_policy
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
    "RunningRange",
    "__version__",
    "accumulator",
    "backends",
    "convert",
    "count",
    "experiments",
    "formats",
    "functional",
    "load_policy",
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
    "save_policy",
    "seed_from",
    "set_precision",
    "set_recipe",
    "techniques",
    "unpack",
]

# A type checker, which would take it for the promise of any attribute, does not see it.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Answers a name that is not here with the place where it is, or with names near it."""
        homes = [
            nn,
            functional,
            formats,
            *(getattr(techniques, each) for each in techniques.__all__),
        ]
        places = [f"{home.__name__}.{name}" for home in homes if name in home.__all__]
        where = f"; it is {' or '.join(places)}" if places else did_you_mean(name, __all__)
        raise AttributeError(f"module 'lpkernels' has no attribute {name!r}{where}")

"""Emulated low-precision arithmetic for training, exact to the bit.

``C = A @ B`` where every product, every partial sum and every result is rounded to a format you
choose, forward and backward, with the same bits on every backend.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from lpkernels import _build, backends, formats, functional, nn, techniques
from lpkernels._first_use import on_first_use
from lpkernels.arithmetic import (
    NATIVE,
    Accumulator,
    DelayedScaling,
    FixedAxisWarning,
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
    TableFormat,
    parse_format,
)
from lpkernels.formats.elsewhere import nearest
from lpkernels.functional import (
    Scaled,
    count,
    matmul,
    pack,
    quantize,
    scaled,
    seed_from,
    unpack,
)
from lpkernels.nn import convert, revert, set_precision, set_recipe
from lpkernels.nn.policies import load_policy, policies, policy, save_policy
from lpkernels.recipes import recipe, recipes

__version__ = _build.version()

__all__ = [
    "NATIVE",
    "Accumulator",
    "AffineFormat",
    "BlockFormat",
    "DelayedScaling",
    "FixedAxisWarning",
    "FixedFormat",
    "FloatFormat",
    "Quantizer",
    "Recipe",
    "RunningRange",
    "Scaled",
    "TableFormat",
    "__version__",
    "accumulator",
    "backends",
    "convert",
    "count",
    "experiments",
    "formats",
    "functional",
    "load_policy",
    "logarithmic",
    "matmul",
    "nn",
    "pack",
    "parse_format",
    "policies",
    "policy",
    "posit",
    "quantize",
    "recipe",
    "recipes",
    "revert",
    "save_policy",
    "scaled",
    "seed_from",
    "set_precision",
    "set_recipe",
    "supernormal",
    "techniques",
    "unpack",
]

if TYPE_CHECKING:
    from lpkernels import experiments as experiments
    from lpkernels import reference as reference
    from lpkernels.formats.named_tables import logarithmic, posit, supernormal
else:
    _LATE = ("experiments", "reference")
    _FUNCTIONS = dict.fromkeys(("logarithmic", "posit", "supernormal"), "formats.named_tables")
    _load, __dir__ = on_first_use(__name__, _LATE, _FUNCTIONS)

    def __getattr__(name: str) -> object:
        """Answers a name that is not here with the place where it is, or with names near it."""
        # Python and its tools ask every module for private names.
        if name in _LATE or name in _FUNCTIONS or name.startswith("_"):
            return _load(name)
        if find_spec(f"{__name__}.{name}"):
            # Python imports it now, where `from lpkernels import` asked. A search among the
            # techniques would import them, and one of them may be on its way in.
            raise AttributeError(f"module {__name__!r}: import {__name__}.{name} first")
        homes = [
            nn,
            functional,
            formats,
            *(getattr(techniques, each) for each in techniques.__all__),
        ]
        places = [f"{home.__name__}.{name}" for home in homes if name in home.__all__]
        known = {each: f"{home.__name__}.{each}" for home in homes[::-1] for each in home.__all__}
        known |= {each: f"{__name__}.{each}" for each in __all__}
        lists = "dir(lpkernels) and dir(lpkernels.nn) list all"
        near = nearest(name, known, lists, shown=known.__getitem__)
        where = f"; it is {' or '.join(places)}" if places else f"; expected one of {near}"
        raise AttributeError(f"module 'lpkernels' has no attribute {name!r}{where}")

"""Quantizer, Accumulator and Recipe: the arithmetic of an operation as plain, frozen descriptions.

Each Quantizer and Accumulator has a text form: ``str(x)`` goes through :func:`as_quantizer` or
:func:`as_accumulator` into an equal object. No torch here.
"""

from lpkernels.arithmetic._accumulator import (
    ORDERS,
    Accumulator,
    accumulator_from_ints,
)
from lpkernels.arithmetic._named_accumulators import (
    MODELS,
    NAMED_ACCUMULATORS,
    NATIVE,
    UNITS,
    Unit,
    accumulator,
    as_accumulator,
)
from lpkernels.arithmetic._quantizer import Quantizer, as_quantizer, check_mode, quantizer_from_ints
from lpkernels.arithmetic._ranks import ANY_RANK, NO_PRODUCT, Axis, Ranks, axes, check_axes
from lpkernels.arithmetic._recipe import PRODUCTS, QUANTIZERS, TORCH, FixedAxisWarning, Recipe
from lpkernels.arithmetic._scaling import (
    SCALED_ROLES,
    DelayedScaling,
    RunningRange,
)
from lpkernels.arithmetic._sum_bounds import bits_without_overflow
from lpkernels.arithmetic.precisions import (
    Precision,
    checked_formats,
    precision,
    with_accumulators,
    with_precision,
)
from lpkernels.arithmetic.updates import (
    Adam,
    Keyed,
    Sgd,
    Step,
    UpdateRounding,
    step_from_numbers,
    update_rounding_from_ints,
)

__all__ = [
    "MODELS",
    "NATIVE",
    "ORDERS",
    "PRODUCTS",
    "QUANTIZERS",
    "TORCH",
    "UNITS",
    "Accumulator",
    "DelayedScaling",
    "FixedAxisWarning",
    "Quantizer",
    "Recipe",
    "RunningRange",
    "accumulator",
    "as_quantizer",
    "bits_without_overflow",
]

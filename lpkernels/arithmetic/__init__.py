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
    as_running_range,
    as_scaling,
    check_scaling,
)
from lpkernels.arithmetic._sum_bounds import bits_without_overflow, max_l1_norm, never_overflows
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
    "ANY_RANK",
    "MODELS",
    "NAMED_ACCUMULATORS",
    "NATIVE",
    "NO_PRODUCT",
    "ORDERS",
    "PRODUCTS",
    "QUANTIZERS",
    "SCALED_ROLES",
    "TORCH",
    "UNITS",
    "Accumulator",
    "Adam",
    "Axis",
    "DelayedScaling",
    "FixedAxisWarning",
    "Keyed",
    "Precision",
    "Quantizer",
    "Ranks",
    "Recipe",
    "RunningRange",
    "Sgd",
    "Step",
    "Unit",
    "UpdateRounding",
    "accumulator",
    "accumulator_from_ints",
    "as_accumulator",
    "as_quantizer",
    "as_running_range",
    "as_scaling",
    "axes",
    "bits_without_overflow",
    "check_axes",
    "check_mode",
    "check_scaling",
    "checked_formats",
    "max_l1_norm",
    "never_overflows",
    "precision",
    "quantizer_from_ints",
    "step_from_numbers",
    "update_rounding_from_ints",
    "with_accumulators",
    "with_precision",
]

"""How narrow may the accumulator be: theory, a plan for a model, and the measurement.

Source of the theory: Sakr et al. 2019, "Accumulation bit-width scaling for ultra-low precision
training of deep networks", arXiv 1901.06588.
"""

from lpkernels.arithmetic import bits_without_overflow, max_l1_norm, never_overflows
from lpkernels.techniques.accumulation._rows import AccumulatorPlan, PlanRow, accumulator_of
from lpkernels.techniques.accumulation.measuring import Measurement, knee, measure
from lpkernels.techniques.accumulation.planning import plan
from lpkernels.techniques.accumulation.theory import (
    ModelWarning,
    log_variance_lost,
    min_mantissa_bits,
    nmse,
    vrr,
)

__all__ = [
    "AccumulatorPlan",
    "Measurement",
    "ModelWarning",
    "PlanRow",
    "accumulator_of",
    "bits_without_overflow",
    "knee",
    "log_variance_lost",
    "max_l1_norm",
    "measure",
    "min_mantissa_bits",
    "never_overflows",
    "nmse",
    "plan",
    "vrr",
]

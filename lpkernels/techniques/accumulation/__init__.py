"""How narrow may the accumulator be: theory, a plan for a model, and the measurement.

Source of the theory: Sakr et al. 2019, "Accumulation bit-width scaling for ultra-low precision
training of deep networks", arXiv 1901.06588.
"""

from lpkernels.techniques.accumulation.measuring import measure
from lpkernels.techniques.accumulation.planning import AccumulatorPlan, accumulator_of, plan
from lpkernels.techniques.accumulation.theory import ModelWarning, min_mantissa_bits, nmse, vrr

__all__ = [
    "AccumulatorPlan",
    "ModelWarning",
    "accumulator_of",
    "measure",
    "min_mantissa_bits",
    "nmse",
    "plan",
    "vrr",
]

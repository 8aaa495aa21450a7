"""Underflow and overflow in a model, tensor by tensor; the scale and the formats that follow.

Source: Micikevicius et al. 2017, "Mixed precision training", arXiv 1710.03740, section 3.2.
"""

from lpkernels.techniques.loss_scaling.diagnosis.advice import (
    FormatAdvice,
    Recommendation,
    ScaleAdvice,
)
from lpkernels.techniques.loss_scaling.diagnosis.histograms import Histogram
from lpkernels.techniques.loss_scaling.diagnosis.report import Diagnosis, Report, diagnose
from lpkernels.techniques.loss_scaling.diagnosis.rows import TensorRow, formats_by_kind

__all__ = [
    "Diagnosis",
    "FormatAdvice",
    "Histogram",
    "Recommendation",
    "Report",
    "ScaleAdvice",
    "TensorRow",
    "diagnose",
    "formats_by_kind",
]

"""Precision as a schedule: cyclic precision training, and its successors.

Sources: Fu et al. 2021, "CPT: Efficient deep neural network training via cyclic precision", arXiv
2101.09868; Fu et al. 2020, "FracTrain", NeurIPS 2020.
"""

from lpkernels.techniques.cpt.pfq import PFQ
from lpkernels.techniques.cpt.range_test import precision_range_test
from lpkernels.techniques.cpt.schedule import NAMED, PROFILES, Schedule, bitops, bits_at
from lpkernels.techniques.cpt.scheduler import PrecisionScheduler, recalibrate
from lpkernels.techniques.cpt.text import parse_schedule

__all__ = [
    "NAMED",
    "PFQ",
    "PROFILES",
    "PrecisionScheduler",
    "Schedule",
    "bitops",
    "bits_at",
    "parse_schedule",
    "precision_range_test",
    "recalibrate",
]

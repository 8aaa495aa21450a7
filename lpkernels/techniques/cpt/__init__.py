"""Precision as a schedule: cyclic precision training, and its successors.

Sources: Fu et al. 2021, "CPT: Efficient deep neural network training via cyclic precision", arXiv
2101.09868; Fu et al. 2020, "FracTrain", NeurIPS 2020.
"""

from lpkernels.techniques.cpt.pfq import PFQ
from lpkernels.techniques.cpt.range_test import PrecisionRange, precision_range_test
from lpkernels.techniques.cpt.recalibration import recalibrate, recalibrated
from lpkernels.techniques.cpt.schedule import NAMED, PROFILES, Schedule, bits_at, named_schedule
from lpkernels.techniques.cpt.scheduler import PrecisionScheduler
from lpkernels.techniques.cpt.targets import TABLES
from lpkernels.techniques.cpt.text import OpenLoop, StagedLoop, parse_schedule
from lpkernels.techniques.cpt.tracks import Precision, adder_bits, bitops, occupancy, saving

__all__ = [
    "NAMED",
    "PFQ",
    "PROFILES",
    "TABLES",
    "OpenLoop",
    "Precision",
    "PrecisionRange",
    "PrecisionScheduler",
    "Schedule",
    "StagedLoop",
    "adder_bits",
    "bitops",
    "bits_at",
    "named_schedule",
    "occupancy",
    "parse_schedule",
    "precision_range_test",
    "recalibrate",
    "recalibrated",
    "saving",
]

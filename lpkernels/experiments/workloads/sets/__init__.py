"""Data sets by name: each file of this folder registers some, and nothing else lists them."""

import importlib
import pkgutil

from lpkernels.experiments.workloads.sets.dataset import DATASETS, LABELLED, DataSet, dataset

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["DATASETS", "LABELLED", "DataSet", "dataset"]

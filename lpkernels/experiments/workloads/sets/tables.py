"""Small tables of numbers with classes, as scikit-learn brings them: iris, wine, breast_cancer."""

import numpy as np
import torch
from torch import Tensor

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.sets.dataset import LABELLED, dataset
from lpkernels.experiments.workloads.supervised import classification
from lpkernels.experiments.workloads.workload import Workload

Labelled = tuple[Tensor, Tensor]


@dataset("iris", model="mlp2", settings=LABELLED)
@dataset("wine", model="mlp2", settings=LABELLED)
@dataset("breast_cancer", model="mlp2", settings=LABELLED)
def _table(config: WorkloadConfig) -> Workload:
    train, test = rows(config.data)
    return classification(config.data, train=train, test=test, config=config)


def rows(name: str) -> tuple[Labelled, Labelled]:
    """The rows (N, F) float32 to train on and those to test on, and their labels (N,).

    Every third row of a class, in the order of the file, is for the test: these sets are small.
    Each column has mean 0 and deviation 1 over the rows to train on, computed in float64.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(
            f'the table {name} comes with scikit-learn: pip install "lpkernels[lab]"'
        ) from error
    bunch = getattr(datasets, f"load_{name}")()
    x, y = np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target, dtype=np.int64)
    test = np.zeros(len(y), dtype=bool)
    for label in range(int(y.max()) + 1):
        test[np.flatnonzero(y == label)[2::3]] = True
    x = (x - x[~test].mean(axis=0)) / x[~test].std(axis=0)
    train, tested = (
        (torch.from_numpy(x[part]).float(), torch.from_numpy(y[part])) for part in (~test, test)
    )
    return train, tested

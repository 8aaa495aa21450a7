"""Small labelled data that packages bring: scikit-learn's tables iris, wine and breast_cancer, and
MNIST-1D, signals of 40 values in ten classes, made by a formula.

Reference: Greydanus and Kobak 2024, arXiv 2011.14439; the package mnist1d, its defaults.
"""

import random
from functools import cache

import numpy as np
import torch

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.supervised import Labelled, classification, every_nth
from lpkernels.experiments.workloads.workload import Workload


def table(config: WorkloadConfig) -> Workload:
    train, test = rows(config.data)
    return classification(config.data, train=train, test=test, config=config)


def mnist1d(config: WorkloadConfig) -> Workload:
    train, test = signals()
    return classification("mnist1d", train=train, test=test, config=config)


def rows(name: str) -> tuple[Labelled, Labelled]:
    """The rows (N, F) float32 to train on and those to test on, and their labels (N,).

    Every third row of a class, in the order of the file, is for the test: these sets are small.
    Each column has mean 0 and deviation 1 over the rows to train on, computed in float64.
    """
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    x, y = np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target, dtype=np.int64)
    test = every_nth(3, torch.from_numpy(y)).numpy()
    x = (x - x[~test].mean(axis=0)) / x[~test].std(axis=0)
    return _tensors(x[~test], y[~test]), _tensors(x[test], y[test])


@cache
def signals() -> tuple[Labelled, Labelled]:
    """4,000 training and 1,000 test signals (N, 1, 40) float32, and their labels (N,).

    The package makes them from its seed 42; nothing is downloaded, and the random state of NumPy
    and of Python, which it uses, is as before afterwards.
    """
    from mnist1d.data import make_dataset

    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        data = make_dataset()
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
    train, test = ((data[f"x{name}"][:, None], data[f"y{name}"]) for name in ("", "_test"))
    return _tensors(*train), _tensors(*test)


def _tensors(x: np.ndarray, y: np.ndarray) -> Labelled:
    return torch.from_numpy(x).float(), torch.from_numpy(y).long()

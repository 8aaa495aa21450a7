"""MNIST-1D: signals of 40 values in ten classes, made by a formula.

Reference: Greydanus and Kobak 2024, arXiv 2011.14439; the package mnist1d, its defaults.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from torch import Tensor

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.sets.dataset import LABELLED, dataset
from lpkernels.experiments.workloads.supervised import classification
from lpkernels.experiments.workloads.workload import Workload

Labelled = tuple[Tensor, Tensor]


@dataset("mnist1d", model="cnn3", settings=LABELLED)
def _mnist1d(config: WorkloadConfig) -> Workload:
    train, test = signals()
    return classification("mnist1d", train=train, test=test, config=config)


@cache
def signals() -> tuple[Labelled, Labelled]:
    """4,000 training and 1,000 test signals (N, 1, 40) float32, and their labels (N,).

    The package makes them from its seed 42; nothing is downloaded, and the random state of NumPy
    and of Python, which it uses, is as before afterwards.
    """
    try:
        from mnist1d.data import make_dataset
    except ImportError as error:
        raise ImportError(
            'the signals of MNIST-1D come with mnist1d: pip install "lpkernels[lab]"'
        ) from error
    with _random_state_kept():
        made = make_dataset()
    train, test = ((made[f"x{part}"], made[f"y{part}"]) for part in ("", "_test"))
    return _tensors(*train), _tensors(*test)


def _tensors(x: "np.ndarray", y: "np.ndarray") -> Labelled:
    return torch.from_numpy(x).float().unsqueeze(1), torch.from_numpy(y).long()


@contextmanager
def _random_state_kept() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002

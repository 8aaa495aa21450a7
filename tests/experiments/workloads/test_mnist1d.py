"""MNIST-1D as its package makes it."""

import random

import numpy as np
import pytest
import torch

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.sets.mnist1d import signals


def test_4000_signals_to_train_and_1000_to_test() -> None:
    work = find(WorkloadConfig(data="mnist1d"))
    assert len(work.train) == 4000
    x, y = work.train.plan(0, 0).batch(0, 64)
    assert (x.shape, x.dtype, y.dtype) == ((64, 1, 40), torch.float32, torch.int64)
    assert [len(y) for _, y in work.test] == [256, 256, 256, 232]
    assert work.model().head.out_features == 10


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes fifty signals instead of the 5,000, which take a second."""
    from mnist1d import data

    arguments = data.get_dataset_args()
    arguments.num_samples = 50
    monkeypatch.setattr(data, "get_dataset_args", lambda: arguments)


@pytest.mark.usefixtures("fewer", "no_network")
def test_nothing_is_fetched_and_random_states_stay_and_do_not_matter() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    def seed(number: int) -> None:
        random.seed(number)
        np.random.seed(number)  # noqa: NPY002
        torch.manual_seed(number)

    seed(5)
    expected = draws()
    seed(5)
    (x, y), _ = signals.__wrapped__()
    assert draws() == expected
    assert len(x) == 40
    seed(6)
    (again, labels), _ = signals.__wrapped__()
    assert torch.equal(x, again)
    assert torch.equal(y, labels)


def test_the_signals_are_those_of_the_package() -> None:
    (x, y), (test_x, _) = signals()
    both = torch.cat([x, test_x]).double()
    # The package centres and scales all of them together.
    assert abs(float(both.mean())) < 1e-6
    assert abs(float(both.std(correction=0)) - 1) < 1e-6
    assert torch.bincount(y).sum() == 4000
    assert (torch.bincount(y) - 400).abs().max() < 60


def test_options() -> None:
    work = find(WorkloadConfig(data="mnist1d", classes=4, train_size=40, label_noise=0.5))
    assert len(work.train) == 40
    assert work.model().head.out_features == 4

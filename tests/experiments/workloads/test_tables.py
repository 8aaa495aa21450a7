"""The tables that scikit-learn brings."""

import pytest
import torch

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.sets.tables import rows
from tests.loops import each

# Rows to train on and to test on, columns, classes.
SIZES = {"iris": (102, 48, 4, 3), "wine": (120, 58, 13, 3), "breast_cancer": (380, 189, 30, 2)}


@pytest.mark.usefixtures("no_network")
@each("name", SIZES)
def test_rows_columns_and_classes_are_normalised_by_the_rows_to_train_on(name: str) -> None:
    (x, y), (tested, answers) = rows(name)
    train, test, columns, classes = SIZES[name]
    assert (x.shape, tested.shape) == ((train, columns), (test, columns))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert set(y.tolist()) == set(answers.tolist()) == set(range(classes))
    assert find(WorkloadConfig(data=name)).model().head.out_features == classes
    mean, deviation = x.double().mean(dim=0), x.double().std(dim=0, unbiased=False)
    assert mean.abs().max() < 1e-6 and (deviation - 1).abs().max() < 1e-6


def test_each_third_row_of_a_class_is_for_the_test() -> None:
    """iris has its classes in order, 50 rows each; rows 2, 5, ... of each are for the test."""
    from sklearn.datasets import load_iris

    data = torch.from_numpy(load_iris().data)
    mask = torch.zeros(150, dtype=torch.bool)
    for first in (0, 50, 100):
        mask[first + 2 : first + 50 : 3] = True
    train = data[~mask]
    expected = (data[mask] - train.mean(dim=0)) / train.std(dim=0, unbiased=False)
    assert torch.allclose(rows("iris")[1][0].double(), expected, atol=1e-6)


def test_settings_of_labelled_data_apply() -> None:
    config = WorkloadConfig(data="wine", train_size=30, label_noise=0.5, classes=2)
    assert len(find(config).train) == 30
    assert find(config).model().head.out_features == 2

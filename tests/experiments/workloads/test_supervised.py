"""A workload of the user's own examples."""

import numpy as np
import pytest
import torch
from torch import nn

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.supervised import classification
from lpkernels.experiments.workloads.workload import Workload
from tests.loops import each

Pair = tuple[torch.Tensor, torch.Tensor]
X, Y = torch.arange(60.0).reshape(20, 3), torch.arange(20) % 2


def workload(**settings: object) -> Workload:
    config = WorkloadConfig(**{"model": "mlp1", **settings})  # type: ignore[arg-type]
    return classification("ramp", train=(X, Y), test=(X[:4], Y[:4]), config=config)


def test_each_epoch_feeds_every_example_once_and_x_and_y_stay_together() -> None:
    train = workload().train
    one, two = (torch.cat([train.plan(0, e).batch(s, 8)[0] for s in range(3)]) for e in (0, 1))
    assert not torch.equal(one, two)
    assert torch.equal(one.sort(dim=0).values, X)
    assert torch.equal(train.plan(0, 1).batch(1, 8)[0], two[8:16])
    x, y = train.plan(1, 0).batch(0, 20)
    assert torch.equal(y, (x[:, 0] / 3).long() % 2)


def test_the_network_fits_the_examples() -> None:
    model = workload(width=5).model()
    assert (model.stem.in_features, model.stem.out_features, model.head.out_features) == (3, 5, 2)
    own = classification("own", train=(X, Y), test=(X, Y), model=lambda: nn.Linear(3, 2))
    assert isinstance(own.model(), nn.Linear)


def test_arrays_become_float32_and_int64() -> None:
    x, y = X.double().numpy(), Y.numpy().astype(np.uint8)
    work = classification("arrays", train=(x, y), test=(x, y), model="mlp1")
    batch = work.train.plan(0, 0).batch(0, 4)
    assert [tensor.dtype for tensor in batch] == [torch.float32, torch.int64]


def test_settings_are_followed() -> None:
    work = workload(train_size=6, label_noise=1.0)
    assert len(work.train) == 6
    assert not torch.equal(
        work.train.plan(0, 0).batch(0, 6)[1], workload(train_size=6).train.plan(0, 0).batch(0, 6)[1]
    )


@each(
    "train, test, match",
    [
        ((X, Y[:4]), (X, Y), r"train: expected examples .* shapes \(20, 3\) and \(4,\)"),
        ((X, Y), (X[:, :2], Y), r"test: expected examples of shape \(3,\).*got \(2,\)"),
        ((X, Y.float()), (X, Y), r"labels that are whole numbers from 0, got torch\.float32"),
        ((X, Y - 1), (X, Y), "labels that are whole numbers from 0, got .* from -1"),
    ],
)
def test_examples_that_do_not_fit_are_refused(train: Pair, test: Pair, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        classification("x", train=train, test=test, model="mlp1")


def test_what_has_no_network_or_augmentation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"examples of shape \(3,\) have no usual network"):
        classification("x", train=(X, Y), test=(X, Y))
    with pytest.raises(ValueError, match="augment: ramp has no augmentation"):
        workload(augment=True)

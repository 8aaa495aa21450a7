"""Examples with labels: a user's own, fewer classes, fewer examples, wrong labels."""

import numpy as np
import pytest
import torch
from torch import nn

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.supervised import Choice, choose, classification
from lpkernels.experiments.workloads.workload import Workload
from tests.loops import each
from tests.support.refusals import rejects

X, Y = torch.arange(60.0).reshape(20, 3), torch.arange(20) % 2


def workload(**settings: object) -> Workload:
    config = WorkloadConfig(**{"model": "mlp1", **settings})
    return classification("ramp", train=(X, Y), test=(X[:4], Y[:4]), config=config)


def test_each_epoch_feeds_every_example_once_and_x_and_y_stay_together() -> None:
    train = workload().train
    one, two = (torch.cat([train.plan(0, e).batch(s, 8)[0] for s in range(3)]) for e in (0, 1))
    assert not torch.equal(one, two)
    assert torch.equal(one.sort(dim=0).values, X)
    x, y = train.plan(1, 0).batch(0, 20)
    assert torch.equal(y, (x[:, 0] / 3).long() % 2)


def test_networks_fit_the_examples_settings_are_followed_and_arrays_converted() -> None:
    model = workload(width=5).model()
    assert (model.stem.in_features, model.stem.out_features, model.head.out_features) == (3, 5, 2)
    own = classification("own", train=(X, Y), test=(X, Y), model=lambda: nn.Linear(3, 2))
    assert isinstance(own.model(), nn.Linear)
    x, y = X.double().numpy(), Y.numpy().astype(np.uint8)
    work = classification("arrays", train=(x, y), test=(x, y), model="mlp1")
    batch = work.train.plan(0, 0).batch(0, 4)
    assert [tensor.dtype for tensor in batch] == [torch.float32, torch.int64]
    plans = [workload(train_size=6, label_noise=share).train for share in (0.0, 1.0)]
    right, wrong = (train.plan(0, 0).batch(0, 6)[1] for train in plans)
    assert [len(train) for train in plans] == [6, 6] and not torch.equal(right, wrong)


test_examples_that_do_not_fit_are_refused = rejects(
    lambda pairs: classification("x", train=pairs[0], test=pairs[1], model="mlp1"),
    [
        (((X, Y[:4]), (X, Y)), r"train: expected examples .* shapes \(20, 3\) and \(4,\)"),
        (((X, Y), (X[:, :2], Y)), r"test: expected examples of shape \(3,\).*got \(2,\)"),
        (((X, Y.float()), (X, Y)), r"labels that are whole numbers from 0, got torch\.float32"),
        (((X, Y - 1), (X, Y)), "labels that are whole numbers from 0, got .* from -1"),
    ],
)


def test_what_has_no_network_or_augmentation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"examples of shape \(3,\) have no usual network"):
        classification("x", train=(X, Y), test=(X, Y))
    with pytest.raises(ValueError, match="augment: ramp has no augmentation"):
        workload(augment=True)


TRAIN = torch.tensor([0, 1, 2, 3] * 50 + [0] * 40)
TEST = torch.tensor([3, 2, 1, 0] * 5)


def made(**settings: float) -> Choice:
    return choose(WorkloadConfig(**settings), TRAIN, TEST, 4)


def test_classes_keeps_the_first_and_defaults_all() -> None:
    choice = made(classes=2)
    assert choice.classes == 2
    assert torch.equal(choice.train, (TRAIN < 2).nonzero().flatten())
    assert torch.equal(choice.train_labels, TRAIN[TRAIN < 2])
    assert choice.test_labels.tolist() == [1, 0] * 5
    assert torch.equal(TEST[choice.test], choice.test_labels)
    assert torch.equal(made().train_labels, TRAIN) and torch.equal(made().test_labels, TEST)


@each(
    "size, counts",
    [(4, [1, 1, 1, 1]), (42, [11, 11, 10, 10]), (220, [70, 50, 50, 50]), (240, [90, 50, 50, 50])],
)
def test_train_size_takes_as_many_of_each_class_as_can_be(size: int, counts: list[int]) -> None:
    choice = made(train_size=size)
    assert torch.bincount(choice.train_labels).tolist() == counts
    assert torch.equal(choice.train, choice.train.unique())
    assert torch.equal(TRAIN[choice.train], choice.train_labels)
    assert len(choice.test) == len(TEST)
    # A larger size keeps the examples of a smaller one.
    assert set(choice.train.tolist()) <= set(made(train_size=240).train.tolist())


def test_label_noise_draws_from_all_classes_and_more_of_it_leaves_wrong_what_less_does() -> None:
    choice = made(label_noise=0.5)
    wrong = choice.train_labels != TRAIN
    # 120 labels are drawn, and a quarter of them are right: 90 are wrong, and 3 sigma are 14.
    assert abs(int(wrong.sum()) - 90) < 15
    assert set(choice.train_labels[wrong].tolist()) == {0, 1, 2, 3}
    assert torch.equal(choice.test_labels, TEST)
    assert torch.equal(made(label_noise=0.5).train_labels, choice.train_labels)
    few, more = (made(label_noise=share).train_labels for share in (0.1, 0.4))
    changed = few != TRAIN
    assert torch.equal(few[changed], more[changed])
    assert int(changed.sum()) <= 24
    choice = made(label_noise=1.0, classes=3, train_size=60)
    assert set(choice.train_labels.tolist()) == {0, 1, 2}
    assert not torch.equal(choice.train_labels, TRAIN[choice.train])


test_impossible_values_are_refused = rejects(
    lambda settings: made(**settings),
    [
        ({"classes": 5}, "classes: expected 2 to 4, which is all.*got 5"),
        ({"train_size": 241}, "train_size: expected 4, one of each class, to 240.*241"),
        ({"classes": 2, "train_size": 1},
         "train_size: expected 2, one of each class, to 140.*got 1"),
        ({"label_noise": 1.5}, r"label_noise: expected less .* 1, got 1\.5"),
        ({"label_noise": -0.5}, "label_noise: expected greater than"),
        ({"classes": 1}, "classes: expected at least 2, or 0 for all, got 1"),
        ({"norm": "group"}, "norm: expected .*'none', got 'group'"),
    ],
)  # fmt: skip

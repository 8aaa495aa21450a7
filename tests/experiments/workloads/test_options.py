"""Fewer classes, fewer examples, wrong labels."""

from typing import Any

import pytest
import torch

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.options import Choice, choose
from tests.loops import each

TRAIN = torch.tensor([0, 1, 2, 3] * 50 + [0] * 40)
TEST = torch.tensor([3, 2, 1, 0] * 5)


def made(**settings: float) -> Choice:
    choice = choose(WorkloadConfig(**settings), TRAIN, TEST, 4)  # type: ignore[arg-type]
    assert choice is not None
    return choice


def test_defaults_change_nothing() -> None:
    assert choose(WorkloadConfig(), TRAIN, TEST, 4) is None


def test_classes_keeps_the_first() -> None:
    choice = made(classes=2)
    assert choice.classes == 2
    assert torch.equal(choice.train, (TRAIN < 2).nonzero().flatten())
    assert torch.equal(choice.train_labels, TRAIN[TRAIN < 2])
    assert choice.test_labels.tolist() == [1, 0] * 5
    assert torch.equal(TEST[choice.test], choice.test_labels)


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
    # A larger size keeps what a smaller one does.
    assert set(choice.train.tolist()) <= set(made(train_size=240).train.tolist())


def test_label_noise_draws_from_all_classes() -> None:
    choice = made(label_noise=0.5)
    wrong = choice.train_labels != TRAIN
    # 120 labels are drawn, and a quarter of them are right: 90 are wrong, and 3 sigma are 14.
    assert abs(int(wrong.sum()) - 90) < 15
    assert set(choice.train_labels[wrong].tolist()) == {0, 1, 2, 3}
    assert torch.equal(choice.test_labels, TEST)
    assert torch.equal(made(label_noise=0.5).train_labels, choice.train_labels)


def test_more_label_noise_leaves_wrong_what_less_does_within_the_classes_kept() -> None:
    few, more = (made(label_noise=share).train_labels for share in (0.1, 0.4))
    changed = few != TRAIN
    assert torch.equal(few[changed], more[changed])
    assert int(changed.sum()) <= 24
    choice = made(label_noise=1.0, classes=3, train_size=60)
    assert set(choice.train_labels.tolist()) == {0, 1, 2}
    assert not torch.equal(choice.train_labels, TRAIN[choice.train])


@each(
    "settings, match",
    [
        ({"classes": 5}, "classes: expected 2 to 4, which is all.*got 5"),
        ({"train_size": 241}, "train_size: expected 4, one of each class, to 240.*241"),
        (
            {"classes": 2, "train_size": 1},
            "train_size: expected 2, one of each class, to 140.*got 1",
        ),
        ({"label_noise": 1.5}, r"label_noise: expected a share of 0 to 1, got 1\.5"),
        ({"label_noise": -0.5}, "label_noise must be at least 0"),
        ({"classes": 1}, "classes: expected at least 2, or 0 for all, got 1"),
        ({"norm": "group"}, "norm: expected one of batch, layer, none, got 'group'"),
    ],
)
def test_impossible_values_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        made(**settings)

"""Fewer classes, fewer examples, wrong labels."""

import pytest
import torch

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.options import Choice, choose

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


@pytest.mark.parametrize(
    ("size", "counts"),
    [(4, [1, 1, 1, 1]), (42, [11, 11, 10, 10]), (220, [70, 50, 50, 50]), (240, [90, 50, 50, 50])],
)
def test_train_size_takes_as_many_of_each_class_as_can_be(size: int, counts: list[int]) -> None:
    choice = made(train_size=size)
    assert torch.bincount(choice.train_labels).tolist() == counts
    assert torch.equal(choice.train, choice.train.unique())
    assert torch.equal(TRAIN[choice.train], choice.train_labels)
    assert len(choice.test) == len(TEST)


def test_a_larger_train_size_keeps_what_a_smaller_one_does() -> None:
    few, more = (set(made(train_size=size).train.tolist()) for size in (30, 90))
    assert few < more
    assert len(few) == 30


def test_label_noise_draws_from_all_classes() -> None:
    choice = made(label_noise=0.5)
    wrong = choice.train_labels != TRAIN
    # 120 labels are drawn, and a quarter of them are right: 90 are wrong, and 3 sigma are 14.
    assert abs(int(wrong.sum()) - 90) < 15
    assert set(choice.train_labels[wrong].tolist()) == {0, 1, 2, 3}
    assert torch.equal(choice.test_labels, TEST)
    assert torch.equal(made(label_noise=0.5).train_labels, choice.train_labels)


def test_more_label_noise_leaves_wrong_what_less_does() -> None:
    few, more = (made(label_noise=share).train_labels for share in (0.1, 0.4))
    changed = few != TRAIN
    assert torch.equal(few[changed], more[changed])
    assert int((made(label_noise=0.1).train_labels != TRAIN).sum()) <= 24


def test_label_noise_stays_within_the_classes_kept() -> None:
    choice = made(label_noise=1.0, classes=3, train_size=60)
    assert set(choice.train_labels.tolist()) == {0, 1, 2}
    assert not torch.equal(choice.train_labels, TRAIN[choice.train])


def test_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match=r"classes: expected 2 to 4, which is all.*got 5"):
        made(classes=5)
    with pytest.raises(ValueError, match=r"train_size: expected 4, one of each class, to 240.*241"):
        made(train_size=241)
    with pytest.raises(
        ValueError, match=r"train_size: expected 2, one of each class, to 140.*got 1"
    ):
        made(classes=2, train_size=1)


def test_impossible_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"label_noise: expected a share of 0 to 1, got 1\.5"):
        WorkloadConfig(label_noise=1.5)
    with pytest.raises(ValueError, match="label_noise must be at least 0"):
        WorkloadConfig(label_noise=-0.5)
    with pytest.raises(ValueError, match="classes: expected at least 2, or 0 for all, got 1"):
        WorkloadConfig(classes=1)
    with pytest.raises(ValueError, match="norm: expected one of batch, layer, none, got 'group'"):
        WorkloadConfig(norm="group")

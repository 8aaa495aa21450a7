"""Workloads of images: the batches that an epoch feeds are pinned, to the bit."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.workload import ACCURACY
from tests.experiments.tiny import tiny_workload
from tests.experiments.workloads.digest import digest
from tests.loops import each
from tests.support.cifar import write_cifar

# A change here changes the figures of every run.
TRAIN = {
    ("digits", False): "67349d85765091ba",
    ("digits", True): "ca53eade919564e1",
    ("digits32", False): "9f48453cc6eec38b",
    ("digits32", True): "2ae343865d67f54e",
}
TEST = {"digits": "b2a92070be2dfaa8", "digits32": "79b7a92d6e9bdafa"}


@each("data, augment", TRAIN)
def test_training_batches_are_pinned(data: str, augment: bool) -> None:
    train = find(WorkloadConfig(data=data, augment=augment)).train
    plan = train.plan(3, 2)
    batches = [plan.batch(step, 64) for step in range(23)]
    assert sum(len(batch[0]) for batch in batches) == len(train) == 1442
    assert digest(*[tensor for batch in batches for tensor in batch]) == TRAIN[data, augment]


@each("data", TEST)
def test_test_batches_are_pinned(data: str) -> None:
    test = find(WorkloadConfig(data=data)).test
    assert [len(labels) for _, labels in test] == [256, 99]
    assert digest(*[tensor for batch in test for tensor in batch]) == TEST[data]


def test_a_test_set_is_a_sequence() -> None:
    test = tiny_workload(WorkloadConfig(), test=300).test
    assert [len(x) for x, _ in test[::-1]] == [44, 256]
    assert torch.equal(test[-1][0], test[1][0])
    with pytest.raises(IndexError):
        test[2]


def test_loss_and_accuracy() -> None:
    work = tiny_workload(WorkloadConfig(model="cnn1", width=2))
    torch.manual_seed(0)
    model = work.model()
    images, labels = work.train.plan(0, 0).batch(0, 9)
    output = model(images)
    (turn,) = work.turns
    outcome = turn.loss(model, (images, labels))
    assert torch.equal(outcome.losses, cross_entropy(output, labels, reduction="none"))
    assert int(outcome.sums["accuracy"]) == int((output.argmax(1) == labels).sum())
    with torch.no_grad():
        sums = work.measure(model.eval(), (images, labels))
        assert torch.equal(sums["loss"], cross_entropy(model(images), labels, reduction="sum"))
    assert work.score({"loss": torch.tensor(3.0), "accuracy": torch.tensor(6.0)}, 12) == {
        "test_loss": 0.25,
        "test_accuracy": 0.5,
    }
    assert (work.name, work.metric, work.spreads) == ("tiny", ACCURACY, True)


def test_the_last_batch_may_be_short_and_none_repeats() -> None:
    work = tiny_workload(WorkloadConfig(augment=True))
    plan = work.train.plan(0, 1)
    assert [len(plan.batch(step, 8)[1]) for step in range(4)] == [8, 8, 8, 6]
    again = work.train.plan(0, 1)
    assert digest(*plan.batch(2, 8)) == digest(*again.batch(2, 8))
    assert digest(*plan.batch(2, 8)) != digest(*work.train.plan(0, 2).batch(2, 8))


def test_the_usual_model_is_resnet8_and_fewer_classes_have_smaller_networks() -> None:
    model = find(WorkloadConfig(width=2)).model()
    assert type(model).__name__ == "ResNet"
    assert (model.stem.out_channels, model.head.out_features) == (2, 10)
    work = find(WorkloadConfig(classes=3, train_size=31, model="cnn1"))
    assert work.model().head.out_features == 3
    labels = work.train.plan(0, 0).batch(0, 100)[1]
    assert torch.bincount(labels).tolist() == [11, 10, 10]
    assert max(int(labels.max()) for _, labels in work.test) == 2
    # Fewer images are normalised alike.
    whole, part = (find(WorkloadConfig(train_size=n)).test for n in (0, 20))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole, part, strict=True))


def test_cifar_comes_from_its_folder(tmp_path: Path) -> None:
    write_cifar(tmp_path, "cifar10")
    work = find(WorkloadConfig(data="cifar10", data_dir=str(tmp_path), width=2))
    images, _ = work.train.plan(0, 0).batch(0, 4)
    assert work.model().eval()(images).shape == (4, 10)
    with pytest.raises(ValueError, match=r"classes: expected 2 to 10, which is all.*got 11"):
        find(WorkloadConfig(data="cifar10", data_dir=str(tmp_path), classes=11))

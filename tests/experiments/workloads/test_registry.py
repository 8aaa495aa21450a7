"""Workloads by name, functions of the user's, and examples with labels."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.registry import DATASETS, find
from lpkernels.experiments.workloads.supervised import choose, classification
from lpkernels.experiments.workloads.workload import Batch, Outcome, Workload
from tests.experiments.tiny import tiny_workload
from tests.support.refusals import rejects

NAMES = (
    "breast_cancer cifar10 cifar100 digits digits32 fashion-denoise fashion-mnist iris mnist1d "
    "text wine"
).split()

# A file beside the user's.
OWN = """
import torch
from lpkernels.experiments.workloads.supervised import classification

def rings(config):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 2, generator=generator)
    y = (x.square().sum(dim=1) > 1.4).long()
    return classification(
        "rings", train=(x[:500], y[:500]), test=(x[500:], y[500:]),
        model=config.model or "mlp2", config=config,
    )

def make():
    from lpkernels.experiments.workloads.config import WorkloadConfig
    return rings(WorkloadConfig())

def number():
    return 3

constant = 3
"""


@pytest.fixture(autouse=True)
def own_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_workload.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_workload", raising=False)


def test_a_users_function_gets_the_settings() -> None:
    work = find(WorkloadConfig(data="own_workload:rings", model="mlp1", width=3, train_size=10))
    assert work.model().stem.out_features == 3
    assert len(work.train) == 10
    assert find(WorkloadConfig(data="own_workload:make")).name == "rings"
    assert sorted(DATASETS) == NAMES


test_what_makes_no_workload_is_refused = rejects(
    lambda settings: find(WorkloadConfig(**settings)),
    [
        ({"data": "mnist"}, r"data: expected one of .*digits.*, got 'mnist'; or module:function"),
        ({"data": "mnist1d", "augment": True}, "^augment: means nothing for mnist1d, which has mo"),
        ({"data": "text", "label_noise": 0.1, "classes": 3}, "^classes, label_noise: means noth"),
        ({"data": "own_workload:make", "model": "mlp1", "width": 3},
         "model, width: the function 'own_workload:make' takes no WorkloadConfig"),
        ({"data": "nowhere:f"}, "data: 'nowhere:f' cannot be .* No module.*PYTHONPATH=. lpkernels"),
        ({"data": "own_workload:f"}, "data: 'own_workload:f' cannot be called: .*attribute"),
        ({"data": "own_workload:constant"}, "data: 'own_workload:constant' cannot be called"),
        ({"data": "own_workload:number"}, "data: 'own_workload:number' must return a Workload, go"),
    ],
)  # fmt: skip


@pytest.mark.parametrize("data", ["digits", "text"])
def test_the_loss_of_an_output_is_that_of_the_workload(data: str) -> None:
    workload = find(WorkloadConfig(data=data, width=8))
    batch = workload.train.plan(0, 0)(0, 6)
    model = workload.model().eval()
    expected = workload.loss(model, batch)
    loss = workload.output_loss(batch)
    outcome = loss(model(batch[0]), batch)
    assert torch.equal(outcome.losses, expected.losses)
    assert torch.equal(outcome.sums["accuracy"], expected.sums["accuracy"])
    assert torch.equal(workload.mean_loss(batch)(model(batch[0]), batch), expected.losses.mean())


@pytest.mark.parametrize(
    "inputs", [lambda x: [x * 2], lambda x: [x, x], lambda x: []], ids=["other", "two", "none"]
)
def test_a_loss_that_calls_the_model_otherwise_is_refused(inputs: Any) -> None:
    def loss(model: nn.Module, batch: Batch) -> Outcome:
        losses: Tensor = model(*inputs(batch[0]))
        return Outcome(losses, {})

    tiny = tiny_workload(WorkloadConfig())
    workload = Workload("own", tiny.model, tiny.train, tiny.test, loss, tiny.measure)
    with pytest.raises(ValueError, match="loss of own must call the model with the first"):
        workload.output_loss(tiny.test[0])


X, Y = torch.arange(60.0).reshape(20, 3), torch.arange(20) % 2


def workload(**settings: object) -> Workload:
    config = WorkloadConfig(**{"model": "mlp1", **settings})
    return classification("ramp", train=(X, Y), test=(X[:4], Y[:4]), config=config)


def test_each_epoch_feeds_every_example_once_and_x_and_y_stay_together() -> None:
    train = workload().train
    one, two = (torch.cat([train.plan(0, e)(s, 8)[0] for s in range(3)]) for e in (0, 1))
    assert not torch.equal(one, two)
    assert torch.equal(one.sort(dim=0).values, X)
    x, y = train.plan(1, 0)(0, 20)
    assert torch.equal(y, (x[:, 0] / 3).long() % 2)


def test_networks_fit_the_examples_settings_are_followed_and_arrays_converted() -> None:
    model = workload(width=5).model()
    assert (model.stem.in_features, model.stem.out_features, model.head.out_features) == (3, 5, 2)
    own = classification("own", train=(X, Y), test=(X, Y), model=lambda: nn.Linear(3, 2))
    assert isinstance(own.model(), nn.Linear)
    x, y = X.double().numpy(), Y.numpy().astype(np.uint8)
    work = classification("arrays", train=(x, y), test=(x, y), model="mlp1", classes=7)
    batch = work.train.plan(0, 0)(0, 4)
    assert [tensor.dtype for tensor in batch] == [torch.float32, torch.int64]
    assert work.model().head.out_features == 7
    plans = [workload(train_size=6, label_noise=share).train for share in (0.0, 1.0)]
    right, wrong = (train.plan(0, 0)(0, 6)[1] for train in plans)
    assert [len(train) for train in plans] == [6, 6] and not torch.equal(right, wrong)


test_examples_that_do_not_fit_are_refused = rejects(
    lambda given: classification("x", train=given[0], test=given[1], config=given[2]),
    [
        ((*pairs, WorkloadConfig(**{"model": "mlp1", **settings})), message)
        for *pairs, settings, message in (
            ((X, Y[:4]), (X, Y), {}, r"train: expected examples .* shapes \(20, 3\) and \(4,\)"),
            ((X, Y), (X[:, :2], Y), {}, r"test: expected examples of shape \(3,\).*got \(2,\)"),
            ((X, Y.float()), (X, Y), {}, r"labels that are whole numbers from 0, got torch\.fl"),
            ((X, Y - 1), (X, Y), {}, "labels that are whole numbers from 0, got .* from -1"),
            ((X, Y), (X, Y), {"model": ""}, r"examples of shape \(3,\) have no usual network"),
            ((X, Y), (X, Y), {"augment": True}, "augment: x has no augmentation"),
        )
    ],
)


TRAIN = torch.tensor([0, 1, 2, 3] * 50 + [0] * 40)
TEST = torch.tensor([3, 2, 1, 0] * 5)
Chosen = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def chosen(**settings: float) -> Chosen:
    """The examples and labels that are kept, where examples are their places in the data."""
    pairs = [(torch.arange(len(labels)), labels) for labels in (TRAIN, TEST)]
    return choose(WorkloadConfig(**settings), *pairs, 4)


def test_classes_keeps_the_first_and_defaults_to_all() -> None:
    (places, labels), (test_places, test_labels) = chosen(classes=2)
    assert torch.equal(places, (TRAIN < 2).nonzero().flatten())
    assert torch.equal(labels, TRAIN[TRAIN < 2])
    assert test_labels.tolist() == [1, 0] * 5
    assert torch.equal(TEST[test_places], test_labels)
    for (_, labels), expected in zip(chosen(), (TRAIN, TEST), strict=True):
        assert torch.equal(labels, expected)


@pytest.mark.parametrize(
    "size, counts",
    [(4, [1, 1, 1, 1]), (42, [11, 11, 10, 10]), (220, [70, 50, 50, 50]), (240, [90, 50, 50, 50])],
)
def test_train_size_takes_as_many_of_each_class_as_can_be(size: int, counts: list[int]) -> None:
    (places, labels), (test_places, _) = chosen(train_size=size)
    assert torch.bincount(labels).tolist() == counts
    assert torch.equal(places, places.unique())
    assert torch.equal(TRAIN[places], labels)
    assert len(test_places) == len(TEST)
    # A larger size keeps the examples of a smaller one.
    assert set(places.tolist()) <= set(chosen(train_size=min(size + 20, 240))[0][0].tolist())


def test_label_noise_draws_from_all_classes_and_more_of_it_leaves_wrong_what_less_does() -> None:
    (_, labels), (_, test_labels) = chosen(label_noise=0.5)
    wrong = labels != TRAIN
    # 120 labels are drawn, and a quarter of them are right: 90 are wrong, and 3 sigma are 14.
    assert abs(int(wrong.sum()) - 90) < 15
    assert set(labels[wrong].tolist()) == {0, 1, 2, 3}
    assert torch.equal(test_labels, TEST)
    few, more = (chosen(label_noise=share)[0][1] for share in (0.1, 0.4))
    changed = few != TRAIN
    assert torch.equal(few[changed], more[changed])
    assert int(changed.sum()) <= 24
    places, labels = chosen(label_noise=1.0, classes=3, train_size=60)[0]
    assert set(labels.tolist()) == {0, 1, 2}
    assert not torch.equal(labels, TRAIN[places])


test_impossible_values_are_refused = rejects(
    lambda settings: chosen(**settings),
    [
        ({"classes": 5}, "classes: expected 2 to 4, which is all.*got 5"),
        ({"classes": 1}, "classes: expected 2 to 4, which is all, or 0 for all, got 1"),
        ({"train_size": 241}, "train_size: expected 4, one of each class, to 240.*241"),
        ({"classes": 2, "train_size": 1},
         "train_size: expected 2, one of each class, to 140.*got 1"),
    ],
)  # fmt: skip

"""Workloads by name, functions of the user's, and examples with labels."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.registry import DATASETS, dataset, find
from lpkernels.experiments.workloads.supervised import Choice, choose, classification
from lpkernels.experiments.workloads.traced import mean_loss, output_loss
from lpkernels.experiments.workloads.workload import Batch, Outcome, Workload
from tests.experiments.tiny import tiny_workload
from tests.loops import each, rows
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


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_workload.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_workload", raising=False)
    return "own_workload"


def test_data_are_one_function_and_all_names_are_known() -> None:
    with pytest.raises(ValueError, match=r"data: expected one of .*digits.*, got 'mnist'; or mod"):
        find(WorkloadConfig(data="mnist"))
    assert sorted(DATASETS) == NAMES
    try:

        @dataset("tiny", model="cnn1", settings=("augment",))
        def _tiny(config: WorkloadConfig) -> Workload:
            return tiny_workload(config)

        assert type(find(WorkloadConfig(data="tiny")).model()).__name__ == "PlainCNN"
        with pytest.raises(ValueError, match="dataset: one called 'tiny' exists already"):
            dataset("tiny", model="cnn1")(lambda config: tiny_workload(config))
    finally:
        DATASETS.pop("tiny", None)


def test_a_users_function_gets_the_settings_and_a_name_has_one_depth(own: str) -> None:
    work = find(WorkloadConfig(data=f"{own}:rings", model="mlp1", width=3, train_size=10))
    assert work.model().stem.out_features == 3
    assert len(work.train) == 10
    assert find(WorkloadConfig(data="tests.experiments.tiny:tiny_workload")).name == "tiny"
    with pytest.raises(ValueError, match="depth: mlp3 has depth 3, got 2"):
        find(WorkloadConfig(data="digits", model="mlp3", depth=2))


def test_a_function_without_parameter_takes_no_settings_and_others_are_refused(own: str) -> None:
    assert find(WorkloadConfig(data=f"{own}:make")).name == "rings"
    message = "model, width: the function 'own_workload:make' takes no WorkloadConfig"
    with pytest.raises(ValueError, match=message):
        find(WorkloadConfig(data=f"{own}:make", model="mlp1", width=3))
    for name, message in (
        ("nowhere:f", "'nowhere:f' cannot be called: No module.*PYTHONPATH=. lpkernels"),
        (f"{own}:f", "'own_workload:f' cannot be called: .*attribute"),
        (f"{own}:constant", "'own_workload:constant' cannot be called"),
        (f"{own}:number", "'own_workload:number' must return a Workload, got int"),
    ):
        with pytest.raises(ValueError, match=f"data: {message}"):
            find(WorkloadConfig(data=name))


test_settings_that_mean_nothing_are_refused = rejects(
    lambda settings: find(WorkloadConfig(**settings)),
    [
        ({"data": data, **settings}, f"^{names}: means nothing for {data}, which has model")
        for data, settings, names in (
            ("mnist1d", {"augment": True}, "augment"),
            ("text", {"label_noise": 0.1, "classes": 3}, "classes, label_noise"),
        )
    ],
)


@rows(
    "given, usual, name",
    ({}, "resnet8", "resnet8"), ({"depth": 14}, "resnet8", "resnet14"),
    ({"model": "cnn", "depth": 2}, "resnet8", "cnn2"),
    ({"model": "mlp3"}, "resnet8", "mlp3"),
    ({"depth": 2}, "", ""),
)  # fmt: skip
def test_depth_is_part_of_the_models_name(given: dict[str, Any], usual: str, name: str) -> None:
    assert WorkloadConfig(**given).network(usual) == name


@pytest.mark.parametrize("data", ["digits", "text"])
def test_the_loss_of_an_output_is_that_of_the_workload(data: str) -> None:
    workload = find(WorkloadConfig(data=data, width=8))
    batch = workload.train.plan(0, 0).batch(0, 6)
    model = workload.model().eval()
    expected = workload.loss(model, batch)
    loss = output_loss(workload, batch)
    found = loss(model(batch[0]), batch)
    assert torch.equal(found.losses, expected.losses)
    assert torch.equal(found.sums["accuracy"], expected.sums["accuracy"])
    assert torch.equal(mean_loss(loss)(model(batch[0]), batch), expected.losses.mean())


def test_other_workloads_are_refused() -> None:
    digits = find(WorkloadConfig(data="digits"))
    batch = digits.train.plan(0, 0).batch(0, 4)

    def twice(model: nn.Module, batch: Batch) -> Outcome:
        losses: Tensor = model(batch[0] * 2).sum(dim=1)
        return Outcome(losses, {})

    with pytest.raises(ValueError, match="loss of digits must call the model with the first"):
        output_loss(dataclasses.replace(digits, loss=twice), batch)


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
        ({"classes": 1}, "classes: expected at least 2, or 0 for all, got 1"),
    ],
)  # fmt: skip

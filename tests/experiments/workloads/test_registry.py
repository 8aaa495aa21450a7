"""Workloads by name, functions of the user's, and a loss apart from its model."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.registry import DATASETS, dataset, find
from lpkernels.experiments.workloads.traced import mean_loss, output_loss
from lpkernels.experiments.workloads.workload import Batch, Outcome, Workload
from tests.experiments.tiny import tiny_workload
from tests.loops import rows
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


@pytest.mark.parametrize("name", ["digits", "mnist1d", "text"])
def test_the_usual_model_trains(name: str) -> None:
    work = find(WorkloadConfig(data=name))
    model = work.model()
    losses = work.loss(model, work.train.plan(0, 0).batch(0, 4)).losses
    assert work.name == name and losses.shape == (4,)
    losses.sum().backward()
    with torch.no_grad():
        sums = work.measure(model.eval(), work.test[0])
    figures = work.score({k: v.double() for k, v in sums.items()}, len(work.test[0][0]))
    assert {"test_loss", work.metric.field} <= figures.keys()


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

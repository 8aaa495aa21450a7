"""The bundled networks are those of their papers: parameters, shapes, and they can be planned."""

from __future__ import annotations

import pytest
import torch

from lpkernels.experiments.workloads.bundled import BUNDLED, usual_batch, workload
from lpkernels.experiments.workloads.models.transformer import GPT
from lpkernels.techniques.accumulation import plan

# Parameters of the published networks; the ResNet-32 here has 1x1 convolutions on its shortcuts.
PARAMETERS = {
    "resnet32-cifar": 466906,
    "resnet18-imagenet": 11689512,
    "alexnet-imagenet": 61100840,
    "mobilenetv2": 3504872,
    "mobilenetv2-imagenet": 3504872,
    "resnet20-cifar": 272474,
    "tiny-gpt": 875264,
    "tiny-lstm": 197888,
}


def test_parameters() -> None:
    def count(name: str) -> int:
        model = workload(name, batch=1, device="meta").model
        return sum(p.numel() for p in model.parameters())

    assert {name: count(name) for name in BUNDLED} == PARAMETERS


def test_a_workload_is_the_same_each_time() -> None:
    first, again = (workload("tiny-gpt", batch=2) for _ in range(2))
    assert torch.equal(first.sample, again.sample)
    assert torch.equal(first.loss(first.model(first.sample)), again.loss(again.model(again.sample)))


def test_gpt_rows() -> None:
    torch.manual_seed(0)
    model, tokens = GPT(width=32, depth=1, heads=2), torch.randint(256, (2, 16))
    rows = plan(model, tokens, loss=lambda y: y.square().mean() * 1024, operand="e5m2").rows
    lengths: dict[str, list[int]] = {}
    for row in rows:
        lengths.setdefault(row.layer, []).append(row.length)
    assert lengths == {
        "blocks.0.qkv": [32, 96, 32],
        "blocks.0.scores": [16, 16, 16],
        "blocks.0.values": [16, 16, 16],
        "blocks.0.proj": [32, 32, 32],
        "blocks.0.up": [32, 128, 32],
        "blocks.0.down": [128, 32, 32],
        "head": [32, 256, 32],
    }


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one of resnet20-cifar.*got 'vgg'"):
        workload("vgg")


def test_on_the_meta_device_a_workload_has_sizes_alone() -> None:
    work = workload("resnet18-imagenet", batch=64, device="meta")
    assert {p.device.type for p in work.model.parameters()} == {"meta"}
    assert work.sample.is_meta and work.sample.shape == (64, 3, 224, 224)


def test_usual_batches() -> None:
    names = ("resnet20-cifar", "mobilenetv2", "tiny-gpt")
    assert [usual_batch(name) for name in names] == [128, 64, 32]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BUNDLED if name != "tiny-gpt"])
def test_the_large_ones_can_be_planned(name: str) -> None:
    work = workload(name, batch=2)
    rows = plan(work.model, work.sample, loss=work.loss, operand="e5m2").rows
    assert {row.gemm for row in rows} == {"fprop", "dgrad", "wgrad"}

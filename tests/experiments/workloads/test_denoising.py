"""Fashion-MNIST under noise, and the network that takes the noise away."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.images import load
from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.workload import Workload
from tests.experiments.image_files import write_fashion


def denoising(folder: Path, **settings: object) -> Workload:
    write_fashion(folder)
    return find(WorkloadConfig(data="fashion-denoise", data_dir=str(folder), **settings))


def test_noise_depends_on_seed_epoch_and_step(tmp_path: Path) -> None:
    work = denoising(tmp_path)
    clean = load("fashion-mnist", tmp_path).train[0].float() / 255
    (noisy, target), again = (work.train.plan(3, 1)(0, 8) for _ in range(2))
    assert torch.equal(noisy, again[0]) and noisy.dtype == torch.float32
    assert all(any(torch.equal(image, each_one) for each_one in clean) for image in target)
    assert float((noisy - target).std()) == pytest.approx(0.05, rel=0.05)
    for place in ((3, 1, 1), (3, 2, 0), (4, 1, 0)):
        other = work.train.plan(*place[:2])(place[2], 8)
        assert not torch.equal(other[0] - other[1], noisy - target)
    # The test's noise is the same for all runs.
    some = denoising(tmp_path, train_size=10)
    assert len(some.train) == 10 and torch.equal(some.test[0][0], work.test[0][0])
    with pytest.raises(ValueError, match="classes: means nothing for fashion-denoise"):
        denoising(tmp_path, classes=3)


def test_the_network_begins_as_the_identity_and_its_figure_is_the_psnr(tmp_path: Path) -> None:
    work = denoising(tmp_path)
    model = work.model()
    noisy, clean = work.test[0]
    with torch.no_grad():
        assert torch.equal(model(noisy), noisy)
        loss = work.measure(model, work.test[0])["loss"].item()
        figures = work.score({"loss": loss}, len(clean))
    error = np.mean((noisy.numpy().astype(np.float64) - clean.numpy()) ** 2)
    assert figures["test_loss"] == pytest.approx(error, rel=1e-5)
    assert figures["test_psnr"] == pytest.approx(10 * math.log10(1 / error), rel=1e-5)
    assert work.score({"loss": 0.0}, 1)["test_psnr"] == math.inf


def test_the_network_has_the_levels_of_a_u_net() -> None:
    task = Task("denoising", (1, 28, 28), 1)
    model = build_model("unet", task)
    shapes = [tuple(m.weight.shape[:2]) for m in model.modules() if isinstance(m, nn.Conv2d)]
    down = [(8, 1), (8, 8), (16, 8), (16, 16), (32, 16), (32, 32)]
    assert shapes == [*down, (8, 24), (8, 8), (16, 48), (16, 16), (1, 8)]
    x = torch.randn(2, 1, 28, 28)
    nn.init.normal_(model.head.weight)
    with torch.no_grad():
        # By hand, level by level.
        pool, relu = nn.MaxPool2d(2), torch.relu
        one = relu(model.first(relu(model.stem(x))))
        two = model.down[0](pool(one))
        three = model.down[1](pool(two))
        twice = lambda y: y.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)  # noqa: E731
        two = model.up[1](torch.cat([twice(three), two], dim=1))
        one = model.up[0](torch.cat([twice(two), one], dim=1))
        assert torch.equal(model(x), x + model.head(one))
    assert build_model("unet1", task, width=3)(x).shape == x.shape
    with pytest.raises(ValueError, match=r"2\^\(depth - 1\) must divide the sides 28 x 28"):
        build_model("unet4", task)

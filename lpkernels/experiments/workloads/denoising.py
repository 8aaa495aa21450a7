"""Fashion-MNIST under noise, to be freed of it.

Denoising is a dense task, whose loss is a mean over all pixels: the gradient of a pixel is small,
about 2 * 0.05 / (pixels of a batch), so that narrow formats lose it without a scale of the loss.
"""

import math
from collections.abc import Mapping

import torch
from torch import Generator, Tensor, nn

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.images import load
from lpkernels.experiments.workloads.models import Task
from lpkernels.experiments.workloads.models.family import model_builder
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.supervised import balanced
from lpkernels.experiments.workloads.workload import (
    Batch,
    Change,
    Metric,
    Outcome,
    TensorSet,
    Workload,
    batches,
    measured_on_cpu,
)

PSNR = Metric(field="test_psnr", label="test PSNR (dB)", higher=True, percent=False)
#: The deviation of the normal noise on pixels of 0..1: the noisy images have 26.02 dB.
NOISE = 0.05


def workload(config: WorkloadConfig) -> Workload:
    data = load("fashion-mnist", config.data_dir)
    images, labels = data.train
    images, clean = images[balanced(config.train_size, labels, 10)], pixels(data.test[0])
    task = Task("denoising", tuple(images.shape[1:]), images.shape[1])
    return Workload(
        "fashion-denoise",
        model_builder(config.model, task, width=config.width, norm=config.norm),
        TensorSet((images,), _noisy),
        batches(clean + noise(clean.shape, 0, "test"), clean),
        pixel_losses,
        measured_on_cpu(pixel_losses),
        PSNR,
        psnr,
    )


def _noisy(count: int, generator: Generator, seed: int, epoch: int) -> Change:
    """Noisy and clean images (n, 1, H, W) float32 of 0..1, the noisy ones not clipped; the noise is
    drawn for each step anew."""

    def batch(step: int, places: slice, images: Tensor) -> Batch:
        clean = pixels(images)
        return clean + noise(clean.shape, seed, epoch, step), clean

    return batch


def pixels(images: Tensor) -> Tensor:
    """uint8 -> float32 of 0..1."""
    return images.float() / 255


def noise(shape: torch.Size, seed: int, *stream: str | int) -> Tensor:
    """Normal noise of deviation `NOISE`, float32, the same for the same arguments."""
    generator = torch.Generator().manual_seed(stream_seed(seed, "noise", *stream))
    return NOISE * torch.randn(shape, generator=generator)


def pixel_losses(model: nn.Module, batch: Batch) -> Outcome:
    """The mean squared error over the pixels of each image."""
    noisy, clean = batch
    return Outcome((model(noisy) - clean).square().flatten(1).mean(dim=1), {})


def psnr(sums: Mapping[str, float], count: int) -> dict[str, float]:
    """The mean squared error over all pixels, and the peak signal-to-noise ratio in dB, which is
    10 log10(1 / mean squared error) for pixels of 0..1; infinite where the error is 0."""
    loss = sums["loss"] / count
    return {"test_loss": loss, PSNR.field: -10 * math.log10(loss) if loss else math.inf}

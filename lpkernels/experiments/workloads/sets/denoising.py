"""Fashion-MNIST under noise: a dense task, whose loss is a mean over all pixels.

The gradient of a pixel is small, about 2 * 0.05 / (pixels of a batch), so that narrow formats lose
it without a scale of the loss.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.fashion import CLASSES, load_fashion
from lpkernels.experiments.workloads.models import Task, model_builder
from lpkernels.experiments.workloads.options import choose
from lpkernels.experiments.workloads.sets.dataset import dataset
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.tensors import TensorBatches
from lpkernels.experiments.workloads.workload import Batch, Metric, Outcome, Workload

PSNR = Metric(field="test_psnr", label="test PSNR (dB)", higher=True, percent=False)
#: The deviation of the normal noise on pixels of 0..1: the noisy images have 26.02 dB.
NOISE = 0.05


@dataclass(frozen=True, eq=False)
class NoisyPlan:
    """The images (N, 1, H, W) uint8 of an epoch, in its order, with noise for each batch."""

    images: Tensor
    order: Tensor
    seed: int
    epoch: int

    def batch(self, step: int, size: int) -> Batch:
        """Noisy and clean images (n, 1, H, W) float32 of 0..1, the noisy ones not clipped."""
        clean = pixels(self.images[self.order[step * size : (step + 1) * size]])
        return clean + noise(clean.shape, self.seed, self.epoch, step), clean


@dataclass(frozen=True, eq=False)
class NoisyImages:
    """Images whose order and noise are drawn from (seed, epoch), the noise for each step anew."""

    images: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def plan(self, seed: int, epoch: int) -> NoisyPlan:
        """The plan of an epoch."""
        generator = torch.Generator().manual_seed(stream_seed(seed, "epoch", epoch))
        return NoisyPlan(self.images, torch.randperm(len(self), generator=generator), seed, epoch)


@dataset("fashion-denoise", model="unet", settings=("train_size",))
def _denoise(config: WorkloadConfig) -> Workload:
    data = load_fashion(config.data_dir)
    images = data.train_images
    choice = choose(config, data.train_labels, data.test_labels, CLASSES)
    images = images if choice is None else images[choice.train]
    clean = pixels(data.test_images)
    task = Task("denoising", tuple(images.shape[1:]), images.shape[1])
    return Workload(
        "fashion-denoise",
        model_builder(config.network(), task, width=config.width, norm=config.norm),
        NoisyImages(images),
        TensorBatches(clean + noise(clean.shape, 0, "test"), clean),
        pixel_losses,
        measure_pixels,
        PSNR,
        psnr,
    )


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


def measure_pixels(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """The sum of the images' mean squared errors, computed on the CPU."""
    noisy, clean = batch
    error = model(noisy).cpu() - clean.cpu()
    return {"loss": error.square().flatten(1).mean(dim=1).sum()}


def psnr(sums: Mapping[str, Tensor], count: int) -> dict[str, float]:
    """The mean squared error over all pixels, and the peak signal-to-noise ratio in dB, which is
    10 log10(1 / mean squared error) for pixels of 0..1; infinite where the error is 0."""
    loss = float(sums["loss"]) / count
    return {"test_loss": loss, PSNR.field: -10 * math.log10(loss) if loss else math.inf}

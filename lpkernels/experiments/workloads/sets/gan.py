"""A generator of digits of 8 x 8 against a discriminator, in two turns."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.frechet import frechet_distance, moment_sums
from lpkernels.experiments.workloads.images import load
from lpkernels.experiments.workloads.models import Task, model_builder
from lpkernels.experiments.workloads.sets.dataset import dataset
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.tensors import TensorBatches, TensorPlan, TensorSet
from lpkernels.experiments.workloads.workload import Batch, Metric, Outcome, Turn, Workload

DISTANCE = Metric(
    field="test_frechet_distance", label="Fréchet distance", higher=False, percent=False
)
#: An image is made of so many numbers of noise.
NOISE = 16
# scikit-learn's digits have the grey levels 0..16.
_HALF = 8.0


@dataclass(frozen=True, eq=False)
class NoisySet:
    """Images, each with noise of its own in each epoch, drawn from (seed, epoch)."""

    images: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def plan(self, seed: int, epoch: int) -> TensorPlan:
        """The order of the epoch; an image keeps its noise, whatever the size of a batch."""
        noise = _noise(len(self), seed, "noise", epoch)
        order = TensorSet((self.images,)).plan(seed, epoch).order
        return TensorPlan((self.images, noise), order)


@dataset("gan", model="gan", settings=("norm",))
def _gan(config: WorkloadConfig) -> Workload:
    data = load("digits")
    train, test = (images.float() / _HALF - 1 for images in (data.train_images, data.test_images))
    task = Task("generation", data.shape, NOISE)
    return Workload(
        "gan",
        model_builder(config.network(), task, width=config.width, norm=config.norm),
        NoisySet(train),
        TensorBatches(test, _noise(len(test), 0, "noise", "test")),
        (
            Turn(discriminator_losses, "discriminator", ("discriminator.*",)),
            Turn(generator_losses, "generator", ("generator.*",)),
        ),
        measure_images,
        DISTANCE,
        image_scores,
    )


def _noise(count: int, seed: int, *stream: str | int) -> Tensor:
    generator = torch.Generator().manual_seed(stream_seed(seed, *stream))
    return torch.randn(count, NOISE, generator=generator)


def discriminator_losses(model: nn.Module, batch: Batch) -> Outcome:
    """The cross entropy of telling an image from a generated one, the sum of both kinds.

    Reference: Goodfellow et al. 2014, arXiv 1406.2661, equation 1.
    """
    real, fake = model(*batch, "discriminator")
    return Outcome(softplus(-real) + softplus(fake), {})


def generator_losses(model: nn.Module, batch: Batch) -> Outcome:
    """-log D(G(z)), the loss that does not saturate (the same paper, section 3)."""
    (fake,) = model(*batch, "generator")
    return Outcome(softplus(-fake), {})


def measure_images(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """The discriminator's loss, how often it is right, and the moments of the pixels, which are
    within -1..1, of the images and of as many generated ones."""
    real, fake, made = (tensor.cpu() for tensor in model(*batch, "test"))
    right = (real > 0).sum() + (fake < 0).sum()
    return {
        "loss": (softplus(-real) + softplus(fake)).sum(),
        "discriminator_accuracy": right / 2,
        **moment_sums("real", batch[0].cpu().flatten(1)),
        **moment_sums("made", made.flatten(1)),
    }


def image_scores(sums: Mapping[str, Tensor], count: int) -> dict[str, float]:
    """The discriminator's mean loss and accuracy, and the Fréchet distance of the pixels."""
    return {
        "test_loss": float(sums["loss"]) / count,
        "test_discriminator_accuracy": float(sums["discriminator_accuracy"]) / count,
        DISTANCE.field: frechet_distance(sums, "real", "made", count),
    }

"""A data set of a few images that no file holds, and its workload."""

import torch

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.images import ImageData
from lpkernels.experiments.workloads.pictures import image_workload
from lpkernels.experiments.workloads.workload import Workload


def tiny_data(*, train: int = 30, test: int = 8) -> ImageData:
    """Images of 6 x 6 in three classes, which a bright pixel tells apart."""
    count = train + test
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    images = torch.randint(0, 8, (count, 1, 6, 6), generator=generator, dtype=torch.uint8)
    images[torch.arange(count), 0, labels * 2] += 8
    mean, std = torch.full((1, 1, 1, 1), 5.0), torch.full((1, 1, 1, 1), 4.0)
    return ImageData(
        "tiny",
        3,
        images[:train],
        labels[:train],
        images[train:],
        labels[train:],
        mean,
        std,
        max_shift=1,
        flip=True,
    )


def tiny_workload(config: WorkloadConfig, *, train: int = 30, test: int = 8) -> Workload:
    """`tiny_data` with the settings of a run, by name "tests.experiments.tiny:tiny_workload"."""
    return image_workload(tiny_data(train=train, test=test), config)

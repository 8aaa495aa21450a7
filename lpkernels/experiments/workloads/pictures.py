"""Workloads of image data: the images that an epoch feeds, and the settings that change them."""

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.images import EpochPlan, ImageData, plan_epoch
from lpkernels.experiments.workloads.models import Task, model_builder
from lpkernels.experiments.workloads.options import choose
from lpkernels.experiments.workloads.supervised import class_workload
from lpkernels.experiments.workloads.tensors import TensorBatches
from lpkernels.experiments.workloads.workload import Batch, Workload


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Training images, in an order and with shifts and flips drawn from (seed, epoch)."""

    data: ImageData
    augment: bool

    def __len__(self) -> int:
        return len(self.data.train_labels)

    def plan(self, seed: int, epoch: int) -> EpochPlan:
        """The plan of an epoch."""
        return plan_epoch(self.data, seed, epoch, self.augment)


def image_workload(data: ImageData, config: WorkloadConfig) -> Workload:
    """The classification of `data`, as the settings say; model "" is resnet8.

    However many images the settings keep, all are normalised by the moments of the whole training
    set, so that the test images of all runs are the same numbers.

    Raises: ValueError: a model that is unknown or for other data, or a setting that asks for more
        than there is.
    """
    choice = choose(config, data.train_labels, data.test_labels, data.classes)
    if choice is not None:
        data = dataclasses.replace(
            data,
            classes=choice.classes,
            train_images=data.train_images[choice.train],
            train_labels=choice.train_labels,
            test_images=data.test_images[choice.test],
            test_labels=choice.test_labels,
        )

    def normalised(images: Tensor, labels: Tensor) -> Batch:
        return data.normalise(images), labels

    task = Task("images", data.shape, data.classes)
    model = model_builder(config.network("resnet8"), task, width=config.width, norm=config.norm)
    test = TensorBatches(data.test_images, data.test_labels, make=normalised)
    return class_workload(data.name, ImageSet(data, config.augment), test, model)

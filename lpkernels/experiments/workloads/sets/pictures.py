"""Small images to classify: scikit-learn's digits, Fashion-MNIST and CIFAR."""

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.images import load
from lpkernels.experiments.workloads.pictures import image_workload
from lpkernels.experiments.workloads.sets.dataset import LABELLED, dataset
from lpkernels.experiments.workloads.workload import Workload


@dataset("digits", model="resnet8", settings=("augment", *LABELLED))
@dataset("digits32", model="resnet8", settings=("augment", *LABELLED))
@dataset("fashion-mnist", model="resnet8", settings=("augment", *LABELLED))
@dataset("cifar10", model="resnet8", settings=("augment", *LABELLED))
@dataset("cifar100", model="resnet8", settings=("augment", *LABELLED))
def _images(config: WorkloadConfig) -> Workload:
    return image_workload(load(config.data, config.data_dir), config)

"""Examples with labels: their loss, the settings that change them, and a workload in one call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.models import Task
from lpkernels.experiments.workloads.models.family import model_builder
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.workload import (
    Batch,
    Outcome,
    TensorBatches,
    TensorSet,
    TrainingSet,
    Workload,
)

__all__ = ["classification"]


def class_losses(model: nn.Module, batch: Batch) -> Outcome:
    """Softmax cross entropy of each example, and how many were right."""
    inputs, labels = batch
    output = model(inputs)
    losses = cross_entropy(output, labels, reduction="none")
    return Outcome(losses, {"accuracy": (output.argmax(dim=1) == labels).sum()})


def measure_classes(model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """The sum of the cross entropies, computed on the CPU, and how many were right."""
    inputs, labels = batch
    output, labels = model(inputs).cpu(), labels.cpu()
    loss = cross_entropy(output, labels, reduction="sum")
    return {"loss": loss, "accuracy": (output.argmax(dim=1) == labels).sum()}


def class_workload(
    name: str, train: TrainingSet, test: Sequence[Batch], model: Callable[[], nn.Module]
) -> Workload:
    """The workload of batches (inputs, labels), by cross entropy and accuracy."""
    return Workload(name, model, train, test, class_losses, measure_classes)


def classification(
    name: str,
    *,
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    model: str | Callable[[], nn.Module] = "",
    config: WorkloadConfig | None = None,
) -> Workload:
    """A workload of your own labelled examples, in an order drawn from (seed, epoch).

    Args:
        name: of the data, for tables.
        train, test: (x, y), tensors or arrays: x (N, ...) of any shape, float32 (other floats are
            rounded to it once) or integers; y (N,) whole numbers from 0.
        model: a function that makes the network, or its name as `--model` has it: for x (N, F), (N,
            C, L) or (N, C, H, W).
        config: settings to follow: model, where none is given here, width, norm, classes,
            train_size and label_noise.
    Raises: ValueError: x and y do not fit together, the model is unknown or for other data, or a
        setting asks for more than there is.
    """
    config = config or WorkloadConfig()
    if config.augment:
        raise ValueError(
            f"augment: {name} has no augmentation; leave it out, or change the examples yourself"
        )
    (x, y), (test_x, test_y) = _examples("train", train), _examples("test", test)
    if x.shape[1:] != test_x.shape[1:]:
        raise ValueError(
            f"test: expected examples of shape {tuple(x.shape[1:])}, as in train, "
            f"got {tuple(test_x.shape[1:])}"
        )
    choice = choose(config, y, test_y, int(torch.cat([y, test_y]).max()) + 1)
    training = TensorSet((x[choice.train], choice.train_labels))
    tests = TensorBatches(test_x[choice.test], choice.test_labels)
    build = _builder(model or config.network(), tuple(x.shape[1:]), choice.classes, config)
    return class_workload(name, training, tests, build)


def _examples(which: str, pair: tuple[Any, Any]) -> Batch:
    x, y = (torch.as_tensor(values) for values in pair)
    if x.dim() < 1 or y.shape != x.shape[:1] or not len(y):
        raise ValueError(
            f"{which}: expected examples (N, ...) and labels (N,), N at least 1, got shapes "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
        )
    if y.is_floating_point() or y.is_complex() or int(y.min()) < 0:
        raise ValueError(
            f"{which}: expected labels that are whole numbers from 0, got {y.dtype} from {y.min()}"
        )
    return x.float() if x.is_floating_point() else x, y.long()


def _builder(
    model: str | Callable[[], nn.Module],
    shape: tuple[int, ...],
    classes: int,
    config: WorkloadConfig,
) -> Callable[[], nn.Module]:
    if not isinstance(model, str):
        return model
    kinds: Any = {1: "vectors", 2: "signals", 3: "images"}
    if not model or len(shape) not in kinds:
        raise ValueError(
            f"model: examples of shape {shape} have no usual network; give model= a function "
            "that makes one"
        )
    task = Task(kinds[len(shape)], shape, classes)
    return model_builder(model, task, width=config.width, norm=config.norm)


class Choice(NamedTuple):
    """The examples that the settings keep, in the order of the data set, and their labels.

    train, test: (n,) int64 indices.  train_labels, test_labels: (n,) int64.
    """

    classes: int
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


def choose(
    config: WorkloadConfig, train_labels: Tensor, test_labels: Tensor, classes: int
) -> Choice:
    """The examples that `classes`, `train_size` and `label_noise` leave of labelled data.

    The choice depends on nothing else: runs of all seeds train on the same examples with the same
    labels, a larger train_size keeps the examples of a smaller one, and labels that are wrong with
    some label_noise are wrong with more of it too. Test labels stay clean.

    Args:
        config: the settings.
        train_labels, test_labels: (N,) int64, below `classes`.
        classes: how many the data have.
    Raises: ValueError: a setting asks for more than there is.
    """
    if config.classes and not 2 <= config.classes <= classes:
        raise ValueError(
            f"classes: expected 2 to {classes}, which is all, or 0 for all, got {config.classes}"
        )
    classes = config.classes or classes
    test = (test_labels < classes).nonzero().flatten()
    train = (train_labels < classes).nonzero().flatten()
    train = _balanced(config.train_size, train, train_labels, classes)
    labels = _noisy(config.label_noise, train_labels[train], classes)
    return Choice(classes, train, labels, test, test_labels[test])


def _balanced(size: int, train: Tensor, labels: Tensor, classes: int) -> Tensor:
    """`size` of the indices `train`, 0 for all, as many of each class as can be."""
    if not size:
        return train
    if not classes <= size <= len(train):
        raise ValueError(
            f"train_size: expected {classes}, one of each class, to {len(train)}, which is all, or "
            f"0 for all, got {size}"
        )
    generator = torch.Generator().manual_seed(stream_seed(0, "train_size"))
    mixed = train[torch.randperm(len(train), generator=generator)]
    # An example's rank is the number of earlier examples of its class; the smallest ranks stay.
    rank = torch.empty_like(mixed)
    for label in range(classes):
        own = (labels[mixed] == label).nonzero().flatten()
        rank[own] = torch.arange(len(own))
    first = torch.sort(rank * classes + labels[mixed]).indices[:size]
    return mixed[first].sort().values


def _noisy(share: float, labels: Tensor, classes: int) -> Tensor:
    """A share of the labels replaced by a class drawn from all, the right one included."""
    generator = torch.Generator().manual_seed(stream_seed(0, "label_noise"))
    order = torch.randperm(len(labels), generator=generator)
    drawn = torch.randint(classes, (len(labels),), generator=generator)
    places = order[: round(share * len(labels))]
    labels = labels.clone()
    labels[places] = drawn[places]
    return labels

"""Examples with labels: their loss, the settings that change them, and a workload in one call."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.models import Task
from lpkernels.experiments.workloads.models.family import KINDS, model_builder
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.workload import (
    Batch,
    EpochChange,
    Outcome,
    TensorSet,
    Workload,
    batches,
)

__all__ = ["classification"]

#: Examples (N, ...) and their labels (N,) int64.
Labelled = tuple[Tensor, Tensor]


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


def classification(
    name: str,
    *,
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    model: str | Callable[[], nn.Module] = "",
    config: WorkloadConfig | None = None,
    classes: int = 0,
    change: EpochChange | None = None,
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
        classes: their number; 0: one more than the largest label.
        change: of the training batches of an epoch, as `TensorSet` has it, which then follows
            `config.augment`; test examples are fed as they are.
    Raises: ValueError: x and y do not fit together, the model is unknown or for other data, or a
        setting asks for more than there is.
    """
    config = config or WorkloadConfig()
    if config.augment and change is None:
        raise ValueError(
            f"augment: {name} has no augmentation; leave it out, or change the examples yourself"
        )
    trained, tested = _examples("train", train), _examples("test", test)
    shape = tuple(trained[0].shape[1:])
    if shape != tuple(tested[0].shape[1:]):
        raise ValueError(
            f"test: expected examples of shape {shape}, as in train, "
            f"got {tuple(tested[0].shape[1:])}"
        )
    classes = classes or int(torch.cat([trained[1], tested[1]]).max()) + 1
    trained, tested = choose(config, trained, tested, classes)
    classes = config.classes or classes
    model = model or config.model
    if isinstance(model, str):
        if not model or trained[0].dim() not in KINDS:
            raise ValueError(
                f"model: examples of shape {shape} have no usual network; give model= a function "
                "that makes one"
            )
        task = Task(KINDS[trained[0].dim()], shape, classes)
        model = model_builder(model, task, width=config.width, norm=config.norm)
    training = TensorSet(trained, change)
    return Workload(name, model, training, batches(*tested), class_losses, measure_classes)


def _examples(which: str, pair: tuple[Any, Any]) -> Labelled:
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


def every_nth(n: int, labels: Tensor) -> Tensor:
    """Every n-th example of each class, in the order of the data, (N,) bool: a fixed test set."""
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        mask[(labels == label).nonzero().flatten()[n - 1 :: n]] = True
    return mask


def choose(
    config: WorkloadConfig, train: Labelled, test: Labelled, classes: int
) -> tuple[Labelled, Labelled]:
    """The examples that `classes`, `train_size` and `label_noise` leave of labelled data of so many
    classes, to train on and to test on.

    The choice depends on nothing else: runs of all seeds train on the same examples with the same
    labels, in the order of the data; a larger train_size keeps the examples of a smaller one, and
    labels that are wrong with some label_noise are wrong with more of it too. Test labels stay
    clean.

    Raises: ValueError: a setting asks for more than there is.
    """
    if config.classes and not 2 <= config.classes <= classes:
        raise ValueError(
            f"classes: expected 2 to {classes}, which is all, or 0 for all, got {config.classes}"
        )
    classes = config.classes or classes
    (x, y), tested = (
        (examples[labels < classes], labels[labels < classes]) for examples, labels in (train, test)
    )
    places = balanced(config.train_size, y, classes)
    return (x[places], _noisy(config.label_noise, y[places], classes)), tested


def balanced(size: int, labels: Tensor, classes: int) -> Tensor:
    """The places of `size` examples, 0 for all, as many of each class as can be, ascending.

    Raises: ValueError: a size below the number of classes or above that of the examples.
    """
    if not size:
        return torch.arange(len(labels))
    if not classes <= size <= len(labels):
        raise ValueError(
            f"train_size: expected {classes}, one of each class, to {len(labels)}, which is all, "
            f"or 0 for all, got {size}"
        )
    generator = torch.Generator().manual_seed(stream_seed(0, "train_size"))
    mixed = torch.randperm(len(labels), generator=generator)
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

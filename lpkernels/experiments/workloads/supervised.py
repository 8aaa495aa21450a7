"""Examples with labels: their loss, their metric, and a workload of one's own in one call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.models import Task, model_builder
from lpkernels.experiments.workloads.options import choose
from lpkernels.experiments.workloads.tensors import TensorBatches, TensorSet
from lpkernels.experiments.workloads.workload import (
    Batch,
    Outcome,
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
    classes = int(torch.cat([y, test_y]).max()) + 1
    choice = choose(config, y, test_y, classes)
    if choice is not None:
        x, y, classes = x[choice.train], choice.train_labels, choice.classes
        test_x, test_y = test_x[choice.test], choice.test_labels
    build = _builder(model or config.network(), tuple(x.shape[1:]), classes, config)
    return class_workload(name, TensorSet((x, y)), TensorBatches(test_x, test_y), build)


def _examples(which: str, pair: tuple[Any, Any]) -> Batch:
    x, y = (torch.as_tensor(part) for part in pair)
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
    kinds = {1: "vectors", 2: "signals", 3: "images"}
    if not model or len(shape) not in kinds:
        raise ValueError(
            f"model: examples of shape {shape} have no usual network; give model= a function "
            "that makes one"
        )
    task = Task(kinds[len(shape)], shape, classes)  # type: ignore[arg-type]
    return model_builder(model, task, width=config.width, norm=config.norm)

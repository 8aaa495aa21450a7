"""Fewer classes, fewer training examples, wrong training labels: for any labelled data."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.streams import stream_seed


@dataclass(frozen=True, eq=False)
class Choice:
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
) -> Choice | None:
    """The examples that `classes`, `train_size` and `label_noise` leave of labelled data; None: no
    change.

    The choice depends on nothing else: runs of all seeds train on the same examples with the same
    labels, a larger train_size keeps the examples of a smaller one, and labels that are wrong with
    some label_noise are wrong with more of it too. Test labels stay clean.

    Args:
        config: the settings.
        train_labels, test_labels: (N,) int64, below `classes`.
        classes: how many the data have.
    Raises: ValueError: a setting asks for more than there is.
    """
    if not (config.classes or config.train_size or config.label_noise):
        return None
    classes = _classes(config, classes)
    test = (test_labels < classes).nonzero().flatten()
    train = (train_labels < classes).nonzero().flatten()
    train = _kept(config, train, train_labels, classes)
    labels = _noisy(config, train_labels[train], classes)
    return Choice(classes, train, labels, test, test_labels[test])


def _classes(config: WorkloadConfig, existing: int) -> int:
    if config.classes and not 2 <= config.classes <= existing:
        raise ValueError(
            f"classes: expected 2 to {existing}, which is all, or 0 for all, got {config.classes}"
        )
    return config.classes or existing


def _kept(config: WorkloadConfig, train: Tensor, labels: Tensor, classes: int) -> Tensor:
    """`train_size` of the indices `train`, as many of each class as can be."""
    size = config.train_size
    if not size:
        return train
    if not classes <= size <= len(train):
        raise ValueError(
            f"train_size: expected {classes}, one of each class, to {len(train)}, which is all, or "
            f"0 for all, got {size}"
        )
    generator = torch.Generator().manual_seed(stream_seed(0, "train_size"))
    mixed = train[torch.randperm(len(train), generator=generator)]
    # How many examples of its class come before each; those of the smallest rank are kept.
    rank = torch.empty_like(mixed)
    for label in range(classes):
        own = (labels[mixed] == label).nonzero().flatten()
        rank[own] = torch.arange(len(own))
    first = torch.sort(rank * classes + labels[mixed]).indices[:size]
    return mixed[first].sort().values


def _noisy(config: WorkloadConfig, labels: Tensor, classes: int) -> Tensor:
    """`label_noise` of the labels replaced by a class drawn from all, the right one included."""
    generator = torch.Generator().manual_seed(stream_seed(0, "label_noise"))
    chosen = torch.randperm(len(labels), generator=generator)
    drawn = torch.randint(classes, (len(labels),), generator=generator)
    chosen = chosen[: round(config.label_noise * len(labels))]
    labels = labels.clone()
    labels[chosen] = drawn[chosen]
    return labels

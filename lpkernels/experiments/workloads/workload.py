"""Data, model, loss and metric as the trainer needs them, and sets of tensors in memory.

A workload is deterministic: the examples that an epoch feeds depend on (seed, epoch) alone, and
those that a test feeds on nothing. The trainer builds the model under the run's own seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, overload

import torch
from torch import Generator, Tensor, nn

from lpkernels.experiments.workloads.streams import stream_seed

#: Tensors that belong together; the first dimension of each counts the examples.
Batch = tuple[Tensor, ...]


class Outcome(NamedTuple):
    """The result of a loss on a batch of n examples.

    losses: (n,) float32, the loss of each example, with its graph.
    sums: 0-d tensors, figures of training summed over the examples, such as how many were right;
        the record of the epoch holds their means as train_<name>.
    """

    losses: Tensor
    sums: Mapping[str, Tensor]


#: loss(model, batch): called with the model in training mode (under DDP its wrapper: call it once)
#: and tensors on its device.
Loss = Callable[[nn.Module, Batch], Outcome]


class Plan(Protocol):
    """The examples that one epoch feeds, drawn up front, so that a run may resume at any step."""

    def batch(self, step: int, size: int) -> Batch:
        """Examples step * size .. of the epoch's order, on the CPU; the last batch may be short."""


class TrainingSet(Protocol):
    """The examples that an epoch goes through once."""

    def __len__(self) -> int:
        """How many examples there are."""

    def plan(self, seed: int, epoch: int) -> Plan:
        """The plan of an epoch: the same for the same arguments, at any time."""


@dataclass(frozen=True)
class Metric:
    """The figure by which runs of a workload are compared.

    field: its name in the epoch's record.  label: its name in tables and on axes.
    higher: whether more is better.  percent: whether it is shown times 100 with a percent sign.
    """

    field: str = "test_accuracy"
    label: str = "test accuracy"
    higher: bool = True
    percent: bool = True


ACCURACY = Metric()


def mean_of_examples(sums: Mapping[str, Tensor], count: int) -> dict[str, float]:
    """The fields test_<name> of every sum: its mean over `count` examples."""
    return {f"test_{name}": float(total) / count for name, total in sums.items()}


@dataclass(frozen=True, eq=False)
class Workload:
    """Data, model, loss and metric.

    name: of the data.
    model: makes the network, with weights from torch's generator. A recipe treats modules named
        `stem` and `head` (first and last layer) apart where the run asks for it.
    train: the training set.
    test: the batches of the test set, at most 256 examples each; an item may be made when asked
        for.
    loss: its mean over a batch is what the optimizer makes small.
    measure(model, batch): 0-d or small tensors that are added over the test batches, in float64;
        called in evaluation mode without gradients.
    score(sums, examples): fields of the epoch's record from the sums over the whole test set;
        test_loss and the metric's field among them.
    metric: the figure that counts.
    """

    name: str
    model: Callable[[], nn.Module]
    train: TrainingSet
    test: Sequence[Batch]
    loss: Loss
    measure: Callable[[nn.Module, Batch], Mapping[str, Tensor]]
    metric: Metric = field(default=ACCURACY)
    score: Callable[[Mapping[str, Tensor], int], dict[str, float]] = mean_of_examples


#: The most examples that a batch of a test set has.
TEST_BATCH = 256

#: change(step, places, *tensors): the batch that is fed, from the examples that stand in `places`
#: of an epoch's order.
Change = Callable[..., Batch]


@dataclass(frozen=True, eq=False)
class TensorSet:
    """Examples in memory, each epoch in an order of its own, drawn from (seed, epoch).

    tensors: the first dimension of each counts the examples.
    change(generator, seed, epoch): the change of an epoch's batches, as noise or shifts, which may
        draw from the generator after the order; None: examples are fed as they are.
    """

    tensors: Batch
    change: Callable[[Generator, int, int], Change] | None = None

    def __len__(self) -> int:
        return len(self.tensors[0])

    def plan(self, seed: int, epoch: int) -> "TensorPlan":
        """The examples in the order of the epoch."""
        generator = torch.Generator().manual_seed(stream_seed(seed, "epoch", epoch))
        order = torch.randperm(len(self), generator=generator)
        change = None if self.change is None else self.change(generator, seed, epoch)
        return TensorPlan(self.tensors, order, change)


@dataclass(frozen=True, eq=False)
class TensorPlan:
    """The examples of `tensors` in an order: (N,) int64; `change` as in TensorSet."""

    tensors: Batch
    order: Tensor
    change: Change | None = None

    def batch(self, step: int, size: int) -> Batch:
        """Examples step * size .. of the order; the last batch may be short."""
        places = slice(step * size, (step + 1) * size)
        batch = tuple(tensor[self.order[places]] for tensor in self.tensors)
        return batch if self.change is None else self.change(step, places, *batch)


class TensorBatches(Sequence[Batch]):
    """Tensors in batches of up to 256 examples, in order, each made when it is asked for.

    Args:
        tensors: the first dimension of each counts the examples.
        make: makes a batch from its slices.
    """

    def __init__(self, *tensors: Tensor, make: Callable[..., Batch] | None = None) -> None:
        self._tensors, self._make = tensors, make

    def __len__(self) -> int:
        return -(-len(self._tensors[0]) // TEST_BATCH)

    @overload
    def __getitem__(self, number: int) -> Batch: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Batch]: ...
    def __getitem__(self, number: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        # The range raises the IndexError that ends a loop over the batches.
        first = range(len(self))[number] * TEST_BATCH
        batch = tuple(tensor[first : first + TEST_BATCH] for tensor in self._tensors)
        return batch if self._make is None else self._make(*batch)

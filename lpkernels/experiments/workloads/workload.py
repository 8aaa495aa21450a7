"""Data, model, loss and metric as the trainer needs them, and sets of tensors in memory.

A workload is deterministic: the examples that an epoch feeds depend on (seed, epoch) alone, and
those that a test feeds on nothing. The trainer builds the model under the run's own seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

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
#: From the model's output and a batch to the outcome.
OutputLoss = Callable[[Any, Batch], Outcome]
#: measure(model, batch): 0-d tensors, as `Workload` says.
Measure = Callable[[nn.Module, Batch], Mapping[str, Tensor]]


#: plan(step, size): examples step * size .. of an epoch's order, on the CPU; the last batch may be
#: short. The epoch is drawn up front, so that a run may resume at any step.
Plan = Callable[[int, int], Batch]


class TrainingSet(Protocol):
    """The examples that an epoch goes through once, as many as its length.

    plan(seed, epoch): the same for the same arguments, at any time.
    """

    def __len__(self) -> int: ...
    def plan(self, seed: int, epoch: int) -> Plan: ...


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


def mean_of_examples(sums: Mapping[str, float], count: int) -> dict[str, float]:
    """The fields test_<name> of every sum: its mean over `count` examples."""
    return {f"test_{name}": total / count for name, total in sums.items()}


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
    measure(model, batch): 0-d tensors that are added over the test batches, in float64; called in
        evaluation mode without gradients.
    score(sums, examples): fields of the epoch's record from the sums over the whole test set;
        test_loss and the metric's field among them.
    metric: the figure that counts.
    """

    name: str
    model: Callable[[], nn.Module]
    train: TrainingSet
    test: Sequence[Batch]
    loss: Loss
    measure: Measure
    metric: Metric = ACCURACY
    score: Callable[[Mapping[str, float], int], dict[str, float]] = mean_of_examples

    def network(self, seed: int) -> nn.Module:
        """The network of a seed; torch's own generator is as it was afterwards."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.model()

    def first_batch(self, seed: int, size: int) -> Batch:
        """The first examples that a run of this seed feeds, on the CPU; at most all there are."""
        return self.train.plan(seed, 0)(0, size)

    def output_loss(self, batch: Batch) -> OutputLoss:
        """The loss as a function of the model's output, for techniques that follow both.

        batch: shows the input that the loss gives to the model: only the batch's first tensor is
            allowed.
        Raises: ValueError: the model is called with something else.
        """
        inputs: list[Any] = []

        def model(*args: Any, **kwargs: Any) -> NoReturn:
            inputs.extend([*args, *kwargs.values()])
            raise _Called

        try:
            self.loss(model, batch)  # type: ignore[arg-type]
        except _Called:
            pass
        if len(inputs) != 1 or inputs[0] is not batch[0]:
            raise ValueError(
                f"the loss of {self.name} must call the model with the first tensor of a batch and "
                "nothing else; write it so"
            )
        return lambda output, batch: self.loss(lambda _: output, batch)  # type: ignore

    def mean_loss(self, batch: Batch) -> Callable[[Any, Batch], Tensor]:
        """As `output_loss`, the mean over the examples, a scalar."""
        loss = self.output_loss(batch)
        return lambda output, batch: loss(output, batch).losses.mean()


class _Called(Exception):
    """The loss called the model."""


def measured_on_cpu(loss: Loss) -> Measure:
    """The losses of a batch added up, and the sums of `loss`, which the CPU computes from the
    model's output, so that the figures of a test do not depend on the device any further."""

    def measure(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        on_cpu = (batch[0], *(tensor.cpu() for tensor in batch[1:]))
        outcome = loss(lambda x: model(x).cpu(), on_cpu)  # type: ignore[arg-type]
        return {"loss": outcome.losses.sum(), **outcome.sums}

    return measure


#: change(step, places, *tensors): the batch that is fed, from the examples that stand in `places`
#: of an epoch's order.
Change = Callable[..., Batch]
#: From the number of examples, the generator that drew their order, the seed and the epoch.
EpochChange = Callable[[int, Generator, int, int], Change]


@dataclass(frozen=True, eq=False)
class TensorSet:
    """Examples in memory, each epoch in an order of its own, drawn from (seed, epoch).

    tensors: the first dimension of each counts the examples.
    change: the change of an epoch's batches, as noise or shifts, which may draw from the generator
        after the order; None: examples are fed as they are.
    """

    tensors: Batch
    change: EpochChange | None = None

    def __len__(self) -> int:
        return len(self.tensors[0])

    def plan(self, seed: int, epoch: int) -> Plan:
        generator = torch.Generator().manual_seed(stream_seed(seed, "epoch", epoch))
        order = torch.randperm(len(self), generator=generator)
        change = None if self.change is None else self.change(len(self), generator, seed, epoch)

        def batch(step: int, size: int) -> Batch:
            places = slice(step * size, (step + 1) * size)
            examples = tuple(tensor[order[places]] for tensor in self.tensors)
            return examples if change is None else change(step, places, *examples)

        return batch


def batches(*tensors: Tensor) -> list[Batch]:
    """Tensors, whose first dimension counts the examples, in batches of up to 256 in their order:
    the test set of a workload."""
    return list(zip(*(tensor.split(256) for tensor in tensors), strict=True))

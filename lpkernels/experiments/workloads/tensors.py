"""Training and test sets of tensors in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.workload import Batch

#: The most examples that a batch of a test set has.
TEST_BATCH = 256


@dataclass(frozen=True, eq=False)
class TensorPlan:
    """The examples of `tensors` in an order: (N,) int64."""

    tensors: Batch
    order: Tensor

    def batch(self, step: int, size: int) -> Batch:
        """Examples step * size .. of the order; the last batch may be short."""
        index = self.order[step * size : (step + 1) * size]
        return tuple(tensor[index] for tensor in self.tensors)


@dataclass(frozen=True, eq=False)
class TensorSet:
    """Examples fed as they are, each epoch in an order of its own, drawn from (seed, epoch).

    tensors: the first dimension of each counts the examples.
    """

    tensors: Batch

    def __len__(self) -> int:
        return len(self.tensors[0])

    def plan(self, seed: int, epoch: int) -> TensorPlan:
        """The examples in the order of the epoch."""
        generator = torch.Generator().manual_seed(stream_seed(seed, "epoch", epoch))
        return TensorPlan(self.tensors, torch.randperm(len(self), generator=generator))


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

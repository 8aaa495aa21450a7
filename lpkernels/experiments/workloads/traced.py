"""A workload's loss apart from its model, for techniques that follow both."""

from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor

from lpkernels.experiments.workloads.workload import Batch, Outcome, Workload

#: From the model's output and a batch to the outcome.
OutputLoss = Callable[[Any, Batch], Outcome]


class _Called(Exception):
    """The loss called the model."""


def output_loss(workload: Workload, batch: Batch) -> OutputLoss:
    """The workload's loss as a function of the model's output.

    batch: a batch of the workload, which shows the input that the loss gives to the model: only the
        batch's first tensor is allowed.
    Raises: ValueError: the model is called with something else.
    """
    inputs: list[Any] = []

    def model(*args: Any, **kwargs: Any) -> NoReturn:
        inputs.extend([*args, *kwargs.values()])
        raise _Called

    try:
        workload.loss(model, batch)  # type: ignore[arg-type]
    except _Called:
        pass
    if len(inputs) != 1 or inputs[0] is not batch[0]:
        raise ValueError(
            f"the loss of {workload.name} must call the model with the first tensor of a batch and "
            "nothing else; write it so"
        )
    return lambda output, batch: workload.loss(lambda _: output, batch)  # type: ignore


def mean_loss(loss: OutputLoss) -> Callable[[Any, Batch], Tensor]:
    """The mean over the examples, a scalar."""
    return lambda output, batch: loss(output, batch).losses.mean()

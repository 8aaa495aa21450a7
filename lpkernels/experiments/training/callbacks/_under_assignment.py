"""Training under a precision assignment, whoever makes it: the code that such callbacks share."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from torch import Tensor, nn

from lpkernels.experiments.training.callback import Callback, Context
from lpkernels.experiments.workloads.traced import output_loss
from lpkernels.experiments.workloads.workload import Batch, Loss, Outcome
from lpkernels.techniques.assignment import Assignment, assign
from lpkernels.techniques.assignment.request import FanOut

#: From the model's output and a batch to the mean loss.
LossOf = Callable[[Any, Batch], Tensor]


class UnderAssignment(Callback):
    """Computes the loss of every step under an assignment; tests run in the formats of the moment.

    promote, fan_out: as for `assign`; nothing is counted where nothing is promoted.
    """

    #: The name of the setting that asks for it.
    OPTION: ClassVar[str]

    def __init__(self, *, promote: float | None, fan_out: FanOut = "sum") -> None:
        self._promote, self._fan_out = promote, fan_out
        self._sums: Mapping[str, Tensor] = {}

    @abstractmethod
    def made(self, model: nn.Module, loss: LossOf, batch: tuple[Any, Batch]) -> Assignment:
        """The assignment of this model, loss and batch."""

    def prepare(self, context: Context) -> None:
        if context.processes.count > 1:
            raise ValueError(
                f"{self.OPTION}: trains in one process, got {context.processes.count}; start it "
                "without torchrun"
            )
        self._model, sample = context.model, context.sample
        try:
            self._losses = output_loss(context.workload, sample)
            made = self.made(self._model, self._mean, (sample[0], sample))
        except (ValueError, FileNotFoundError, NotImplementedError) as error:
            raise ValueError(f"{self.OPTION}: {error}") from error
        self.assigned = assign(
            self._model, self._mean, made, promote=self._promote, fan_out=self._fan_out
        )
        # A resumed run may begin with a shorter batch than the one it is made of.
        self.assigned.check_batch(sample[0], sample)

    def losses(self, loss: Loss) -> Loss:
        return self._outcome

    def after_step(self, ran: Tensor) -> None:
        self.assigned.step()

    def evaluating(self) -> AbstractContextManager[Any]:
        return self._computing(self._in_formats)

    def in_float32(self) -> AbstractContextManager[Any]:
        """The model computes as it would without an assignment."""
        return self._computing(None)

    def state_dict(self) -> dict[str, Any]:
        return {"assigned": self.assigned.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.assigned.load_state_dict(state["assigned"])

    def _mean(self, output: Any, batch: Batch) -> Tensor:
        found = self._losses(output, batch)
        self._sums = found.sums
        return found.losses.mean()

    def _outcome(self, model: nn.Module, batch: Batch) -> Outcome:
        """One loss that counts for all examples, because their mean is rounded."""
        mean = self.assigned(batch[0], batch)
        return Outcome((mean * len(batch[0])).reshape(1), self._sums)

    @contextmanager
    def _computing(self, forward: Any) -> Iterator[None]:
        """Whoever calls the model calls `forward`; None: the model's own."""
        before = vars(self._model).pop("forward", None)
        if forward is not None:
            vars(self._model)["forward"] = forward
        try:
            yield
        finally:
            vars(self._model).pop("forward", None)
            if before is not None:
                vars(self._model)["forward"] = before

    def _in_formats(self, *args: Tensor) -> Any:
        with self._computing(None):
            return self.assigned.output(args)

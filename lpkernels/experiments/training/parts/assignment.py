"""A precision assignment: the part that hands training under one to the trainer."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lpkernels.experiments.settings import setting
from lpkernels.experiments.training.parts.part import Context, Part, PartConfig, register
from lpkernels.experiments.workloads.traced import output_loss
from lpkernels.experiments.workloads.workload import Batch, Outcome, Turn
from lpkernels.techniques.assignment import assign
from lpkernels.techniques.assignment.asking import Request, parse_assignment
from lpkernels.techniques.assignment.running.checking import check_batch
from lpkernels.techniques.assignment.scoring import requested

#: The file of a run's promotions, without its ending.
PROMOTIONS = "promotions"


@register
@dataclass(frozen=True)
class AssignmentConfig(PartConfig):
    """The settings of training under a precision assignment."""

    TITLE: ClassVar[str] = "Precision assignment"
    NAME: ClassVar[str] = "assignment"
    # It changes what the model computes.
    ORDER: ClassVar[int] = 30

    assignment: str = setting(
        "",
        "Which tensors are in low precision, e.g. ratio=0.6,order=decreasing,promote=0.01, "
        "bits=1000000,order=sensitivity, uniform,promote=none, operator_based,promote=none or "
        "file=assignment.json; `lpkernels assign` shows one.",
        check=parse_assignment,
    )

    def build(self) -> Part:
        return AssignedTraining(parse_assignment(self.assignment))


class AssignedTraining(Part):
    """Computes the loss of every step under the assignment, and promotes after it.

    Tests run in the formats of the moment; the last epoch's has one in float32 as well.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        # Of the steps so far, for the mean that the paper plots as memory.
        self._bit_ratios, self._steps = 0.0, 0
        self._sums: Mapping[str, Tensor] = {}

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, context: Context
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        if context.processes.count > 1:
            raise ValueError(
                f"assignment: trains in one process, got {context.processes.count}; start it "
                "without torchrun"
            )
        self._model, sample = model, context.sample
        try:
            self._losses = output_loss(context.workload, sample)
            lr = optimizer.param_groups[0]["lr"]
            made = requested(self.request, model, self._mean, (sample[0], sample), lr=lr)
        except (ValueError, FileNotFoundError, NotImplementedError) as error:
            raise ValueError(f"assignment: {error}") from error
        self.assigned = assign(
            model, self._mean, made, promote=self.request.promote, fan_out=self.request.fan_out
        )
        # A resumed run may begin with a shorter batch than the one it is made of.
        check_batch(self.assigned, sample[0], sample)
        return model, optimizer

    def turns(self, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        return (Turn(self._outcome),)

    def _mean(self, output: Any, batch: Batch) -> Tensor:
        found = self._losses(output, batch)
        self._sums = found.sums
        return found.losses.mean()

    def _outcome(self, model: nn.Module, batch: Batch) -> Outcome:
        """One loss that counts for all examples, for their mean is what is rounded."""
        mean = self.assigned(batch[0], batch)
        return Outcome((mean * len(batch[0])).reshape(1), self._sums)

    def after_step(self, ran: Tensor) -> None:
        self._bit_ratios += self.assigned.assignment.bit_ratio
        self._steps += 1
        self.assigned.step()

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

    def evaluating(self) -> AbstractContextManager[Any]:
        return self._computing(self._in_formats)

    def further_tests(self) -> Mapping[str, AbstractContextManager[Any]]:
        return {"float32": self._computing(None)}

    def state_dict(self) -> dict[str, Any]:
        state = self.assigned.state_dict()
        return {"assigned": state, "bit_ratios": self._bit_ratios, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.assigned.load_state_dict(state["assigned"])
        self._bit_ratios, self._steps = float(state["bit_ratios"]), int(state["steps"])

    def record(self) -> dict[str, Any]:
        """The ratio now, the mean bit ratio of the steps so far, and the promotions so far."""
        mean = self._bit_ratios / self._steps if self._steps else 0.0
        return {
            "low_ratio": round(self.assigned.assignment.ratio, 6),
            "bit_ratio": round(mean, 6),
            "promotions": len(self.assigned.promotions),
        }

    def files(self) -> dict[str, list[dict[str, Any]]]:
        """What was promoted when, by what."""
        header = {"type": "header", "assignment": str(self.request)}
        events = [{"type": "promotion", **asdict(each)} for each in self.assigned.promotions]
        return {PROMOTIONS: [header, *events]}

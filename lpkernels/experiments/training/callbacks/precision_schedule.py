"""Precision as a schedule: the callback that hands a PrecisionScheduler to the trainer."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lpkernels.experiments.settings import setting
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.experiments.workloads.workload import Batch
from lpkernels.techniques.cpt import (
    PFQ,
    OpenLoop,
    StagedLoop,
    parse_schedule,
    recalibrated,
)
from lpkernels.techniques.cpt.recalibration import with_statistics
from lpkernels.techniques.cpt.setter import PrecisionSetter


@register
@dataclass(frozen=True)
class PrecisionScheduleConfig(CallbackConfig):
    """The settings of a schedule of precisions."""

    TITLE: ClassVar[str] = "Precision schedule"
    NAME: ClassVar[str] = "precision_schedule"
    # It comes before all others, which see the bits of the step.
    ORDER: ClassVar[int] = 10

    schedule: str = setting(
        "",
        "Bits of every step, e.g. cpt:3-8/8,cycles=32, static:4/8, rise:3-8/8, fall:8-3/8, "
        "shuffled:3-8/8, pfq:3-4-6-8/6-6-8-8; `lpkernels schedule` draws it.",
        check=parse_schedule,
    )

    def build(self) -> Callback:
        plan = parse_schedule(self.schedule)
        return OpenSchedule(plan) if isinstance(plan, OpenLoop) else ClosedSchedule(plan)


class _Scheduled(Callback):
    """The tests of both kinds: tests at the highest bits, and two further tests in the end."""

    setter: PrecisionSetter

    def _begin(self, model: nn.Module, context: Context) -> PrecisionSetter:
        raise NotImplementedError

    def prepare(self, context: Context) -> None:
        self._model, self._context = context.model, context
        try:
            self.setter = self._begin(context.model, context)
        except ValueError as error:
            raise ValueError(f"schedule: {error}") from error

    def evaluating(self) -> AbstractContextManager[Any]:
        return self.setter.at()

    def further_tests(self) -> Mapping[str, AbstractContextManager[Any]]:
        """Tests at the bits of the last step, and at the highest bits with statistics gathered at
        the highest bits."""
        tests = {"last_bits": self.setter.as_trained()}
        if any(with_statistics(self._model)):
            redone = recalibrated(self._model, self._batches(), forward=self._forward)
            tests["recalibrated"] = redone
        return tests

    def _batches(self) -> Iterator[Batch]:
        """The batches of the first epoch, whole, on every process."""
        context = self._context
        train = context.workload.train
        plan = train.plan(context.seed, 0)
        # A short last batch would count as much as the others.
        for step in range(max(1, len(train) // context.batch)):
            yield tuple(tensor.to(context.device) for tensor in plan.batch(step, context.batch))

    def _forward(self, model: nn.Module, batch: Batch) -> None:
        self._context.workload.loss(model, batch)

    def record(self) -> dict[str, Any]:
        """Bits of the last step, and the mean cost of the steps so far."""
        found: dict[str, Any] = {}
        now = self.setter.precisions[0]
        if now.forward is not None:
            found |= {"bits": now.forward, "grad_bits": now.backward}
            # Six digits say more than the model of the cost does.
            found["bitops"] = round(self.setter.cost(), 6)
        if now.accumulator is not None:
            found["accumulator_bits"] = now.accumulator
            found["adder_cost"] = round(self.setter.cost("accumulator"), 6)
        return found


class OpenSchedule(_Scheduled):
    """Sets the bits of every step, by its number: alike on all processes and after a resume."""

    def __init__(self, plan: OpenLoop) -> None:
        self.plan = plan

    def _begin(self, model: nn.Module, context: Context) -> PrecisionSetter:
        self.scheduler = self.plan.scheduler(model, context.total_steps, seed=context.seed)
        return self.scheduler

    def before_step(self, step: int) -> None:
        self.scheduler.step(step)

    def state_dict(self) -> dict[str, Any]:
        return {"scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state["scheduler"])


class ClosedSchedule(_Scheduled):
    """Adds up the loss of all processes, and shows the mean of each period to a PFQ."""

    scheduler: PFQ

    def __init__(self, plan: StagedLoop) -> None:
        self.plan = plan

    def _begin(self, model: nn.Module, context: Context) -> PrecisionSetter:
        self.scheduler = self.plan.scheduler(model, context.total_steps)
        self._steps = 0
        # It stays on its device: reading it at every step would wait for the device.
        self._loss = torch.zeros((), dtype=torch.float64, device=context.device)
        return self.scheduler

    def before_step(self, step: int) -> None:
        if self._steps == self.scheduler.period:
            self.scheduler.look(self._sum() / self._steps)
            self._steps = 0
            self._loss.zero_()
        self._steps += 1
        self.scheduler.count(1)

    def scale_loss(self, loss: Tensor) -> Tensor:
        self._loss += loss.detach()
        return loss

    def _sum(self) -> float:
        """The sum of the losses of all processes over the steps since the last look."""
        return self._context.processes.sums([self._loss.item()])[0]

    def state_dict(self) -> dict[str, Any]:
        state = self.scheduler.state_dict()
        return {"scheduler": state, "steps": self._steps, "loss": self._sum()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state["scheduler"])
        self._steps = int(state["steps"])
        # The sum of all processes, as one of them has it from now on.
        self._loss.fill_(self._context.processes.first * float(state["loss"]))

"""Precision as a schedule: the callback that hands a scheduler of precision to the trainer."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from lpkernels.experiments.settings import checked
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.experiments.workloads.workload import Batch
from lpkernels.techniques.cpt import PFQ, parse_schedule
from lpkernels.techniques.cpt.recalibration import recalibrated, with_statistics


@register("precision_schedule", order=10)
class PrecisionScheduleConfig(CallbackConfig):
    """The settings of a schedule of precisions."""

    schedule: Annotated[str, checked(parse_schedule)] = Field(
        "",
        description="Bits of every step, e.g. cpt:3-8/8,cycles=32, static:4/8, rise:3-8/8, "
        "fall:8-3/8, shuffled:3-8/8, pfq:3-4-6-8/6-6-8-8; `lpkernels schedule` draws it.",
    )

    def build(self) -> Callback:
        return PrecisionSchedule(self.schedule)


class PrecisionSchedule(Callback):
    """Sets the bits of every step by its number, or shows PFQ the mean loss of each period.

    It tests at the highest bits, and makes two further tests in the end.
    """

    def __init__(self, schedule: str) -> None:
        self._scheduler_of = parse_schedule(schedule)

    def prepare(self, context: Context) -> None:
        self._model, self._context = context.model, context
        try:
            self.scheduler = self._scheduler_of(self._model, context.total_steps, seed=context.seed)
        except ValueError as error:
            raise ValueError(f"schedule: {error}") from error
        # The steps of this period, and the sum of their losses in this process, which stays on its
        # device: reading it at every step would wait for the device.
        self._steps = 0
        self._loss = torch.zeros((), dtype=torch.float64, device=context.device)

    def before_step(self, step: int) -> None:
        if not isinstance(self.scheduler, PFQ):
            self.scheduler.step(step)
            return
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
        """The sum of the losses of all processes over the steps of this period."""
        return self._context.processes.sums([self._loss.item()])[0]

    def evaluating(self) -> AbstractContextManager[Any]:
        return self.scheduler.at()

    def further_tests(self) -> Mapping[str, AbstractContextManager[Any]]:
        """Tests at the bits of the last step, and at the highest bits with statistics gathered at
        the highest bits."""
        tests = {"last_bits": self.scheduler.as_trained()}
        if any(with_statistics(self._model)):
            loss = self._context.workload.loss
            tests["recalibrated"] = recalibrated(self._model, self._batches(), forward=loss)
        return tests

    def _batches(self) -> Iterator[Batch]:
        """The batches of the first epoch, whole, on every process."""
        context = self._context
        train = context.workload.train
        plan = train.plan(context.seed, 0)
        # A short last batch would count as much as the others.
        for step in range(max(1, len(train) // context.batch)):
            yield tuple(tensor.to(context.device) for tensor in plan.batch(step, context.batch))

    def record(self) -> dict[str, Any]:
        """Bits of the last step, and the mean cost of the steps so far, to six digits."""
        now = self.scheduler.precisions[0]
        values: dict[str, Any] = {}
        if now.forward is not None:
            cost = round(self.scheduler.cost(), 6)
            values |= {"bits": now.forward, "grad_bits": now.backward, "bitops": cost}
        if now.accumulator is not None:
            cost = round(self.scheduler.cost("accumulator"), 6)
            values |= {"accumulator_bits": now.accumulator, "adder_cost": cost}
        return values

    def state_dict(self) -> dict[str, Any]:
        state = self.scheduler.state_dict()
        if not isinstance(self.scheduler, PFQ):
            return {"scheduler": state}
        return {"scheduler": state, "steps": self._steps, "loss": self._sum()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state["scheduler"])
        if isinstance(self.scheduler, PFQ):
            self._steps = int(state["steps"])
            # The sum of all processes, as one of them has it from now on.
            self._loss.fill_(self._context.processes.first * float(state["loss"]))

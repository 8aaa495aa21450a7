"""Precision as a schedule: the callback that hands a scheduler of precision to the trainer."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from lpkernels.experiments.settings import checked
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.techniques.cpt import parse_schedule
from lpkernels.techniques.cpt.scheduler import recalibrated, with_statistics


@register("precision_schedule", order=10)
class PrecisionScheduleConfig(CallbackConfig):
    """The settings of a schedule of precisions."""

    schedule: Annotated[str, checked(parse_schedule)] = Field(
        "",
        description="Bits of every step, e.g. cpt:3-8/8,cycles=32, static:4/8, rise:3-8/8, "
        "fall:8-3/8, shuffled:3-8/8, pfq:3-4-6-8/6-6-8-8; `lpkernels schedule` draws it.",
    )

    def build(self) -> Callback:
        staged = self.schedule.startswith("pfq:")
        return (StagedPrecision if staged else PrecisionSchedule)(self.schedule)


class PrecisionSchedule(Callback):
    """Sets the bits of every step by its number."""

    STATE = "scheduler"

    def __init__(self, schedule: str) -> None:
        self._scheduler_of = parse_schedule(schedule)

    def prepare(self, context: Context) -> None:
        self._context, steps = context, context.total_steps
        try:
            self.scheduler: Any = self._scheduler_of(context.model, steps, seed=context.seed)
        except ValueError as error:
            raise ValueError(f"schedule: {error}") from error

    def before_step(self, step: int) -> None:
        self.scheduler.step(step)

    def evaluating(self) -> AbstractContextManager[Any]:
        return self.scheduler.at()

    def further_tests(self) -> Mapping[str, AbstractContextManager[Any]]:
        """At the bits of the last step, and at the highest bits with statistics of these bits."""
        run, tests = self._context, {"last_bits": self.scheduler.as_trained()}
        if with_statistics(run.model):
            loss = run.workload.loss
            tests["recalibrated"] = recalibrated(run.model, run.batches(), forward=loss)
        return tests

    def record(self) -> dict[str, Any]:
        """Bits of the last step, and the mean cost of the steps so far, to six digits."""
        bits, grad_bits = self.scheduler.precision
        return {"bits": bits, "grad_bits": grad_bits, "bitops": round(self.scheduler.cost(), 6)}


class StagedPrecision(PrecisionSchedule):
    """Shows PFQ the mean loss of each period, over all processes."""

    def before_step(self, step: int) -> None:
        if self.scheduler.is_due:
            losses = self._context.processes.sums([float(self.scheduler.sum)])
            self.scheduler.look(losses[0] / self.scheduler.period)
        self.scheduler.count_step()

    def scale_loss(self, loss: Tensor) -> Tensor:
        # The sum stays on its device: reading it at every step would wait for the device.
        self.scheduler.sum = self.scheduler.sum + loss.detach().double()
        return loss

    def state_dict(self) -> dict[str, Any]:
        state = self.scheduler.state_dict()
        return {"scheduler": {**state, "sum": self._context.processes.sums([state["sum"]])[0]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # The sum of all processes, as one of them has it from now on.
        shared = state["scheduler"]
        own = {**shared, "sum": shared["sum"] * self._context.processes.first}
        self.scheduler.load_state_dict(own)

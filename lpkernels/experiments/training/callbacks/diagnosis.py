"""The diagnosis of underflow and overflow in a run."""

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

from pydantic import Field

from lpkernels.experiments.settings import checked
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.experiments.training.callbacks.loss_scale import ScaledLoss
from lpkernels.techniques.loss_scaling.diagnosis import diagnose, formats_by_kind

#: The name of the file without its ending.
DIAGNOSIS = "diagnosis"


@register("diagnosis", order=95)
class DiagnosisConfig(CallbackConfig):
    """The settings of a diagnosis.

    Raises: ValueError: diagnose_every without diagnose.
    """

    DEPENDENT = ("diagnose", "diagnose_every")

    diagnose: Annotated[str, checked(formats_by_kind)] = Field(
        "",
        description="Count what underflows and overflows in this format, or in those of the "
        "recipe: recipe.",
    )
    diagnose_every: int = Field(
        1, ge=1, description="With --diagnose: count in every so many steps."
    )

    def build(self) -> Callback:
        return Diagnosing(self.diagnose, self.diagnose_every)


class Diagnosing(Callback):
    """Counts the tensors of training steps; its file is the report of all processes."""

    def __init__(self, fmt: str, every: int) -> None:
        self._fmt, self._every = fmt, every

    def prepare(self, context: Context) -> None:
        scaler = next((p.scaler for p in context.callbacks if isinstance(p, ScaledLoss)), None)
        self.report = diagnose(context.model, self._fmt, scaler=scaler)
        self._first = context.processes.first

    def around_step(self, step: int) -> AbstractContextManager[Any]:
        return nullcontext() if step % self._every else self.report

    def state_dict(self) -> dict[str, Any]:
        return self.report.reduce().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # The rows are of all processes together: one process has them from now on.
        if self._first:
            self.report.load_state_dict(state)

    def files(self) -> dict[str, list[dict[str, Any]]]:
        whole = self.report.reduce()
        return {DIAGNOSIS: whole.records()} if whole.rows else {}

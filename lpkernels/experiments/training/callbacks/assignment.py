"""A precision assignment that the user asks for: the callback that trains under it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from lpkernels import schemas
from lpkernels.experiments.settings import checked
from lpkernels.experiments.training.callback import Callback, CallbackConfig, register
from lpkernels.experiments.training.callbacks._under_assignment import LossOf, UnderAssignment
from lpkernels.experiments.workloads.workload import Batch
from lpkernels.techniques.assignment import Assignment, trace
from lpkernels.techniques.assignment.request import Request

#: The file of a run's promotions, without its ending.
PROMOTIONS = "promotions"


@register("assignment", order=30)
class AssignmentConfig(CallbackConfig):
    """The settings of training under a precision assignment."""

    assignment: Annotated[str, checked(Request.parse)] = Field(
        "",
        description="Which tensors are in low precision, e.g. ratio=0.6,order=decreasing,"
        "promote=0.01, bits=1000000,order=increasing, uniform,promote=none, "
        "operator_based,promote=none or file=assignment.json; `lpkernels assign` shows one.",
    )

    def build(self) -> Callback:
        return AssignedTraining(Request.parse(self.assignment))


class AssignedTraining(UnderAssignment):
    """Promotes after every step; the last epoch has a test in float32 as well."""

    OPTION = "assignment"

    def __init__(self, request: Request) -> None:
        super().__init__(promote=request.promote, fan_out=request.fan_out)
        self.request = request
        # The sum over the steps so far, for the mean that the paper plots as memory.
        self._bit_ratios, self._steps = 0.0, 0

    def made(self, model: nn.Module, loss: LossOf, batch: tuple[Any, Batch]) -> Assignment:
        return self.request.assignment(trace(model, loss, batch))

    def after_step(self, ran: Tensor) -> None:
        self._bit_ratios += self.assigned.assignment.bit_ratio
        self._steps += 1
        super().after_step(ran)

    def further_tests(self) -> Mapping[str, AbstractContextManager[Any]]:
        return {"float32": self.in_float32()}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"bit_ratios": self._bit_ratios, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
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
        """The promotions: which tensor, when, and at which overflow ratio."""
        header = {**schemas.header("promotions"), "assignment": str(self.request)}
        events = [{"type": "promotion", **each._asdict()} for each in self.assigned.promotions]
        return {PROMOTIONS: [header, *events]}

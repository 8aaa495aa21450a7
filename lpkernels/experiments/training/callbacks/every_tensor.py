"""Two formats for all tensors of a network, as a configuration of `FormatSpace` trains."""

from typing import Annotated

from pydantic import Field

from lpkernels.arithmetic import as_quantizer
from lpkernels.experiments.settings import checked
from lpkernels.experiments.training.callback import Callback, CallbackConfig, register
from lpkernels.experiments.training.callbacks.assignment import UnderAssignment
from lpkernels.techniques.pareto import TrainingRecipe


@register("every_tensor", order=30)
class EveryTensorConfig(CallbackConfig):
    """The settings of two formats for all tensors (`TrainingRecipe.assignment`); layers keep the
    accumulators of the run's recipe.

    Raises: ValueError: ends without tensors.
    """

    DEPENDENT = ("tensors", "ends")

    tensors: Annotated[str, checked(as_quantizer)] = Field(
        "",
        description="Rounding of every tensor, forward and backward, but of weights' gradients, "
        "which --opt-grad rounds: e4m3_sat:stochastic.",
    )
    ends: Annotated[str, checked(as_quantizer)] = Field(
        "",
        description="With --tensors: rounding of the input and of the logits with their gradient; "
        "default: that of --tensors.",
    )

    def build(self) -> Callback:
        recipe = TrainingRecipe(as_quantizer(self.tensors), as_quantizer(self.ends or self.tensors))
        return UnderAssignment("tensors", recipe.assignment, promote=None)

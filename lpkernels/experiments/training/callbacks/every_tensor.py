"""Two formats for all tensors of a network, as a configuration of `FormatSpace` trains."""

from typing import Annotated

from pydantic import Field

from lpkernels.arithmetic import NATIVE, as_accumulator, as_quantizer
from lpkernels.experiments.settings import checked
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.experiments.training.callbacks.assignment import UnderAssignment
from lpkernels.nn import set_recipe
from lpkernels.techniques.pareto import TrainingRecipe


@register("every_tensor", order=30)
class EveryTensorConfig(CallbackConfig):
    """The settings of two formats for all tensors.

    Raises: ValueError: ends or tensor_sums without tensors.
    """

    DEPENDENT = ("tensors", "ends", "tensor_sums")

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
    tensor_sums: Annotated[str, checked(as_accumulator)] = Field(
        "", description="With --tensors: accumulator of all products."
    )

    def build(self) -> Callback:
        low = as_quantizer(self.tensors)
        high = as_quantizer(self.ends) if self.ends else low
        return EveryTensor(TrainingRecipe(low, high, self.tensor_sums or NATIVE))


class EveryTensor(UnderAssignment):
    """Trains as `TrainingRecipe.assignment` says, over layers with the recipe's accumulator."""

    def __init__(self, recipe: TrainingRecipe) -> None:
        super().__init__("tensors", recipe.assignment, promote=None)
        self.recipe = recipe

    def prepare(self, context: Context) -> None:
        if self.recipe.accumulator != NATIVE:
            set_recipe(context.model, self.recipe.sums)
        super().prepare(context)

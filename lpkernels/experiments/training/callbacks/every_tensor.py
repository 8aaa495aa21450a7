"""Two formats for all tensors of a network, as a configuration of `FormatSpace` trains."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from lpkernels.arithmetic import NATIVE, as_accumulator, as_quantizer
from lpkernels.experiments.settings import setting
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.experiments.training.callbacks._under_assignment import LossOf, UnderAssignment
from lpkernels.experiments.workloads.workload import Batch
from lpkernels.nn import set_recipe
from lpkernels.techniques.assignment import Assignment, trace
from lpkernels.techniques.pareto import TrainingRecipe


@register
@dataclass(frozen=True)
class EveryTensorConfig(CallbackConfig):
    """The settings of two formats for all tensors.

    Raises: ValueError: ends or tensor_sums without tensors.
    """

    TITLE: ClassVar[str] = "Every tensor"
    NAME: ClassVar[str] = "every_tensor"
    ORDER: ClassVar[int] = 30

    tensors: str = setting(
        "",
        "Rounding of every tensor, forward and backward, but of weights' gradients, which "
        "--opt-grad rounds: e4m3_sat:stochastic.",
        check=as_quantizer,
    )
    ends: str = setting(
        "",
        "With --tensors: rounding of the input and of the logits with their gradient; default: "
        "that of --tensors.",
        check=as_quantizer,
    )
    tensor_sums: str = setting(
        "", "With --tensors: accumulator of all products.", check=as_accumulator
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        others = [name for name in ("ends", "tensor_sums") if getattr(self, name)]
        if others and not self.tensors:
            raise ValueError(
                f"EveryTensorConfig: {', '.join(others)}: belongs to tensors, got without; give "
                "tensors a format such as 'e4m3_sat:stochastic'"
            )

    def build(self) -> Callback:
        low = as_quantizer(self.tensors)
        high = as_quantizer(self.ends) if self.ends else low
        return EveryTensor(TrainingRecipe(low, high, self.tensor_sums or NATIVE))


class EveryTensor(UnderAssignment):
    """Trains as `TrainingRecipe.assignment` says, over layers with the recipe's accumulator."""

    OPTION = "tensors"

    def __init__(self, recipe: TrainingRecipe) -> None:
        super().__init__(promote=None)
        self.recipe = recipe

    def prepare(self, context: Context) -> None:
        if self.recipe.accumulator != NATIVE:
            set_recipe(context.model, self.recipe.sums)
        super().prepare(context)

    def made(self, model: nn.Module, loss: LossOf, batch: tuple[Any, Batch]) -> Assignment:
        return self.recipe.assignment(trace(model, loss, batch))

"""Two formats for all tensors of a network: its layers take them from here."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from lpkernels.arithmetic import NATIVE, as_accumulator, as_quantizer
from lpkernels.experiments.settings import setting
from lpkernels.experiments.training.parts.part import Context, Part, PartConfig, register
from lpkernels.nn import convert
from lpkernels.nn.policies import Policy
from lpkernels.techniques.pareto import TrainingRecipe


@register
@dataclass(frozen=True)
class EveryTensorConfig(PartConfig):
    """The settings of two formats for all tensors.

    Raises: ValueError: ends or tensor_sums without tensors.
    """

    TITLE: ClassVar[str] = "Every tensor"
    NAME: ClassVar[str] = "every_tensor"
    ORDER: ClassVar[int] = 30

    tensors: str = setting(
        "",
        "Rounding of what every layer reads and returns, forward and backward, and format of its "
        "weights, in place of --recipe: e4m3_sat:stochastic.",
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

    def build(self) -> Part:
        low = as_quantizer(self.tensors)
        high = as_quantizer(self.ends) if self.ends else low
        return EveryTensor(TrainingRecipe(low, high, self.tensor_sums or NATIVE).policy)


class EveryTensor(Part):
    """Gives the layers of the model their recipes."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, context: Context
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        if context.processes.sharded:
            raise ValueError(
                "tensors: layers whose weights are sharded (--fsdp) keep their classes, and norms "
                "would stay float32; leave --fsdp out"
            )
        # Norms are torch's own until a recipe rounds them: set_recipe would not find them.
        return convert(model, self.policy), optimizer

"""One loss scale for the whole run."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from lpkernels.experiments.settings import positive, setting
from lpkernels.experiments.training.parts.part import Context, Part, PartConfig, register


@register
@dataclass(frozen=True)
class LossScaleConfig(PartConfig):
    """The settings of a static loss scale."""

    TITLE: ClassVar[str] = "Loss scale"
    NAME: ClassVar[str] = "loss_scale"
    ORDER: ClassVar[int] = 50

    loss_scale: float = setting(
        1.0,
        "The loss is multiplied by it and the gradients divided; a power of two is exact.",
        check=positive,
    )

    def build(self) -> Part:
        return StaticLossScale(self.loss_scale)


class StaticLossScale(Part):
    """Multiplies the loss and divides the gradients, in float32."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self._parameters: list[nn.Parameter] = []

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, context: Context
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        self._parameters = list(model.parameters())
        return model, optimizer

    def scale_loss(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    def after_backward(self) -> None:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        torch._foreach_div_(gradients, self.scale)

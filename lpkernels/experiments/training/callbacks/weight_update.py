"""Weights that are rounded after every update."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.experiments.processes.replicas import like, whole
from lpkernels.experiments.settings import checked
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.functional import quantize


@register("weight_update", order=90)
class WeightUpdateConfig(CallbackConfig):
    """The settings of rounded weight updates."""

    weight_update: Annotated[str, checked(as_quantizer)] = Field(
        "",
        description="Rounding of the weights at the start and after every update, e.g. "
        "e6m9:stochastic.",
    )

    def build(self) -> Callback:
        return RoundedWeights(as_quantizer(self.weight_update))


class RoundedWeights(Callback):
    """Rounds every parameter at the start and after every update, in its own element's draw.

    After a skipped update it rounds nothing and draws nothing, which it has to wait for on a GPU.
    """

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer = quantizer

    def prepare(self, context: Context) -> None:
        self._parameters = list(context.model.parameters())
        self._round()

    def after_step(self, ran: Tensor) -> None:
        if bool(ran):
            self._round()

    @torch.no_grad()
    def _round(self) -> None:
        for parameter in self._parameters:
            # A draw belongs to an element of the whole tensor.
            rounded = quantize(whole(parameter.detach()), self.quantizer)
            parameter.copy_(like(rounded, parameter))

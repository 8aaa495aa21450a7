"""A loss scale, constant or dynamic: the callback that hands a LossScaler to the trainer."""

from typing import Any

from pydantic import Field, model_validator
from torch import Tensor
from torch.optim import Optimizer

from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.techniques.loss_scaling import LossScaler


@register("loss_scale", order=75)
class LossScaleConfig(CallbackConfig):
    """The settings of a loss scale.

    Raises: ValueError: settings of the constant scale and of the dynamic one together; a first
        scale below the floor; settings of a hysteresis or a floor without it.
    """

    DEPENDENT = (
        "dynamic_scale", "scale_start", "scale_interval", "scale_floor", "scale_hysteresis",
    )  # fmt: skip

    loss_scale: float = Field(
        1.0,
        gt=0,
        description="The loss is multiplied by it and the gradients divided; a power of two is "
        "exact.",
    )
    dynamic_scale: bool = Field(
        False,
        description="A loss scale that halves where a gradient overflows and doubles after "
        "--scale-interval other updates.",
    )
    scale_start: float = Field(2.0**16, gt=0, description="The first dynamic scale.")
    scale_interval: int = Field(
        2000,
        ge=1,
        description="Updates in a row without overflow after which the dynamic scale doubles.",
    )
    scale_floor: float | None = Field(
        None, gt=0, description="The dynamic scale does not fall below it."
    )
    scale_hysteresis: int = Field(
        1,
        ge=1,
        description="Updates with an overflow that lower the dynamic scale once: all but the last "
        "of them are skipped at the scale as it is.",
    )

    @model_validator(mode="after")
    def _check_kind(self) -> "LossScaleConfig":
        if self.dynamic_scale and self.loss_scale != 1.0:
            raise ValueError(
                f"loss_scale is the constant scale, got {self.loss_scale} with "
                "dynamic_scale; give scale_start, or leave dynamic_scale out"
            )
        try:
            self.scaler()
        except ValueError as error:
            name = "scale_" if self.dynamic_scale else "loss_"
            text = str(error).replace("init_scale:", "start:").replace("static:", "scale:")
            raise ValueError(f"{name}{text}") from error
        return self

    def scaler(self) -> LossScaler:
        """The scaler of these settings."""
        if not self.dynamic_scale:
            return LossScaler(static=self.loss_scale)
        return LossScaler(
            init_scale=self.scale_start,
            growth_interval=self.scale_interval,
            floor=self.scale_floor,
            hysteresis=self.scale_hysteresis,
        )

    def build(self) -> Callback:
        return ScaledLoss(self)


class ScaledLoss(Callback):
    """Scales the loss, unscales the gradients, and takes the step unless one is not finite."""

    STATE = "scaler"

    def __init__(self, config: LossScaleConfig) -> None:
        self._is_dynamic, self.scaler = config.dynamic_scale, config.scaler()

    def prepare(self, context: Context) -> None:
        self._optimizer: Optimizer = context.optimizer

    def scale_loss(self, loss: Tensor) -> Tensor:
        return self.scaler.scale(loss)

    def after_backward(self) -> None:
        self.scaler.unscale_(self._optimizer)

    def step(self, optimizer: Optimizer) -> Tensor | None:
        self.scaler.step(optimizer)
        self.scaler.update()
        return self.scaler.ran

    def record(self) -> dict[str, Any]:
        return {"loss_scale": self.scaler.get_scale()} if self._is_dynamic else {}

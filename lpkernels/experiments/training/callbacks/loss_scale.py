"""A loss scale, constant or dynamic: the callback that hands a LossScaler to the trainer."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from lpkernels.experiments.settings import one_of, positive, setting
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.techniques.loss_scaling import LossScaler


@register
@dataclass(frozen=True)
class LossScaleConfig(CallbackConfig):
    """The settings of a loss scale.

    Raises: ValueError: settings of the constant scale and of the dynamic one together; first scale,
        floor and ceiling that are not in order; settings of a hysteresis or a floor without it.
    """

    TITLE: ClassVar[str] = "Loss scale"
    NAME: ClassVar[str] = "loss_scale"
    # It comes after callbacks that replace the optimizer, which it unscales and steps.
    ORDER: ClassVar[int] = 75

    loss_scale: float = setting(
        1.0,
        "The loss is multiplied by it and the gradients divided; a power of two is exact.",
        check=positive,
    )
    dynamic_scale: bool = setting(
        False,
        "A loss scale that halves where a gradient overflows and doubles after --scale-interval "
        "other updates.",
    )
    scale_start: float = setting(2.0**16, "The first dynamic scale.", check=positive)
    scale_interval: int = setting(
        2000, "Updates in a row without overflow after which the dynamic scale doubles.", least=1
    )
    scale_floor: float | None = setting(
        None, "The dynamic scale does not fall below it.", check=positive
    )
    scale_ceiling: float | None = setting(
        None, "The dynamic scale does not rise above it.", check=positive
    )
    scale_hysteresis: int = setting(
        1,
        "Updates with an overflow that lower the dynamic scale once: all but the last of them are "
        "skipped at the scale as it is.",
        least=1,
    )
    scale_consecutive: bool = setting(
        False,
        "The count of --scale-hysteresis begins anew after every update without overflow; else "
        "when the scale doubles.",
    )
    scale_at_floor: str = setting(
        "stay",
        "stay: updates that overflow at --scale-floor are skipped; raise: one of them ends the run "
        "with an error that names the parameter.",
        check=one_of("stay", "raise"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dynamic_scale and self.loss_scale != 1.0:
            raise ValueError(
                f"LossScaleConfig: loss_scale is the constant scale, got {self.loss_scale} with "
                "dynamic_scale; give scale_start, or leave dynamic_scale out"
            )
        others = {f.name: f.default for f in dataclasses.fields(self) if f.name[:6] == "scale_"}
        given = [name for name, default in others.items() if getattr(self, name) != default]
        if given and not self.dynamic_scale:
            raise ValueError(
                f"LossScaleConfig: {', '.join(given)}: of a dynamic scale, got without; add "
                "dynamic_scale"
            )
        try:
            self.scaler()
        except ValueError as error:
            name = "scale_" if self.dynamic_scale else "loss_"
            text = str(error).replace("init_scale:", "start:").replace("static:", "scale:")
            raise ValueError(f"LossScaleConfig: {name}{text}") from error

    def scaler(self, named_parameters: Iterable[tuple[str, Tensor]] = ()) -> LossScaler:
        """The scaler of these settings; its errors name the parameters."""
        if not self.dynamic_scale:
            return LossScaler(static=self.loss_scale)
        return LossScaler(
            init_scale=self.scale_start,
            growth_interval=self.scale_interval,
            floor=self.scale_floor,
            ceiling=self.scale_ceiling,
            hysteresis=self.scale_hysteresis,
            consecutive=self.scale_consecutive,
            at_floor=self.scale_at_floor,
            named_parameters=named_parameters,
        )

    def build(self) -> Callback:
        return ScaledLoss(self)


class ScaledLoss(Callback):
    """Scales the loss, unscales the gradients, and takes the step unless one is not finite."""

    def __init__(self, config: LossScaleConfig) -> None:
        self._config, self.scaler = config, config.scaler()
        self._optimizer: Optimizer | None = None

    def prepare(self, context: Context) -> None:
        self._optimizer = context.optimizer
        self.scaler = self._config.scaler(context.model.named_parameters())

    def scale_loss(self, loss: Tensor) -> Tensor:
        return self.scaler.scale(loss)

    def after_backward(self) -> None:
        assert self._optimizer is not None
        self.scaler.unscale_(self._optimizer)

    def step(self, optimizer: Optimizer) -> Tensor | None:
        self.scaler.step(optimizer)
        self.scaler.update()
        return self.scaler.ran

    def state_dict(self) -> dict[str, Any]:
        return {"scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # A constant scale had no state in earlier checkpoints.
        if state:
            self.scaler.load_state_dict(state["scaler"])

    def record(self) -> dict[str, Any]:
        return {"loss_scale": self.scaler.get_scale()} if self._config.dynamic_scale else {}

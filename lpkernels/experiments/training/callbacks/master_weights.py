"""Masters of the weights, on which the optimizer steps."""

from typing import Annotated, Any, Literal

from pydantic import Field

from lpkernels.arithmetic import as_quantizer
from lpkernels.experiments.settings import Option, checked
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.techniques.loss_scaling import MasterWeights


def _states(text: str) -> str | dict[str, str]:
    """ "fp16", or "exp_avg=bf16,exp_avg_sq=fp32" by the state's name.

    Raises: ValueError: no such format.
    """
    if "=" not in text:
        as_quantizer(text)
        return text
    pairs = [part.partition("=") for part in text.split(",")]
    for name, equals, fmt in pairs:
        if not (name and equals and fmt):
            raise ValueError(f"expected <format> or <state>=<format>,..., got {text!r}")
        as_quantizer(fmt)
    return {name: fmt for name, _, fmt in pairs}


@register("master_weights", order=70)
class MasterWeightsConfig(CallbackConfig):
    """The settings of masters; "" is fp32, of gradients none."""

    master: Annotated[str, checked(as_quantizer), Option("--masters")] = Field(
        "", description="Format of the masters; its rounding rounds updates: e6m9:stochastic."
    )
    working: Annotated[str, checked(as_quantizer)] = Field(
        "", description="Format of the model's weights, rounded from the masters."
    )
    opt_state: Annotated[str, checked(_states)] = Field(
        "",
        description="Format of the optimizer's states, e.g. bf16 or "
        "exp_avg=e4m3fn,exp_avg_sq=bf16.",
    )
    opt_grad: Annotated[str, checked(as_quantizer)] = Field(
        "", description="Format of the gradients as they enter the optimizer."
    )
    opt_pass: Literal["fused", "general"] = Field(
        "fused",
        description="fused: updates in one pass over each parameter, where possible; general: the "
        "optimizer's own step, whose last bits differ, as in records without this setting.",
    )

    def build(self) -> Callback:
        return Masters(
            fused=None if self.opt_pass == "fused" else False,
            weight=self.working or "fp32",
            master=self.master or "fp32",
            state=_states(self.opt_state) if self.opt_state else "fp32",
            grad=self.opt_grad or None,
        )


class Masters(Callback):
    """Wraps the optimizer. Masters and states belong to the new optimizer and are saved with it.

    Its record is the share of the updates since the last one that changed nothing.
    """

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments

    def prepare(self, context: Context) -> None:
        self._optimizer = MasterWeights(context.optimizer, **self._arguments)
        context.optimizer = self._optimizer

    def record(self) -> dict[str, Any]:
        counts = self._optimizer.stagnation().values()
        self._optimizer.reset_stagnation()
        updates = sum(count.asked for count in counts)
        unchanged = sum(count.unchanged for count in counts)
        return {"stagnation": unchanged / updates if updates else 0.0}

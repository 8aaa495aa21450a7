"""torch's optimizers by name, and the learning rate of a step."""

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from lpkernels.experiments.settings import Settings

# The arguments that have an option, with their defaults: SGD's are those of residual networks (He
# et al. 2016, arXiv 1512.03385, section 4.2), the others are torch's own.
_ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
_SGD = {"lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 1e-4}
_OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, _SGD),
    "adam": (torch.optim.Adam, {**_ADAM, "weight_decay": 0.0}),
    "adamw": (torch.optim.AdamW, {**_ADAM, "weight_decay": 1e-2}),
}


class OptimizerConfig(Settings):
    """The optimizer of a run and its learning rate. None is the optimizer's own default.

    Raises: ValueError: an argument that the optimizer does not take.
    """

    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        "sgd", description="sgd, adam or adamw, torch's own."
    )
    lr: float | None = Field(
        None, gt=0, description="Peak learning rate; default: 0.1 for sgd, 0.001 for the others."
    )
    momentum: float | None = Field(None, ge=0, description="Momentum of sgd; default 0.9.")
    nesterov: bool | None = Field(None, description="Nesterov's momentum, of sgd.")
    beta1: float | None = Field(None, ge=0, description="beta1 of adam and adamw; default 0.9.")
    beta2: float | None = Field(None, ge=0, description="beta2 of adam and adamw; default 0.999.")
    eps: float | None = Field(None, gt=0, description="eps of adam and adamw; default 1e-8.")
    weight_decay: float | None = Field(
        None,
        ge=0,
        description="Weight decay; default: 1e-4 of sgd, 0 of adam, 0.01 of adamw.",
    )
    lr_schedule: Literal["cosine", "cycles", "constant"] = Field(
        "cosine",
        description="Learning rate: cosine to 0, cycles (--lr-cycles times from the peak to 0), "
        "constant.",
    )
    warmup: int = Field(
        0,
        ge=0,
        description="Steps in which the learning rate rises to its peak before the schedule.",
    )
    lr_cycles: int = Field(8, ge=1, description="Number of cycles, each half a cosine.")

    @model_validator(mode="after")
    def _check_arguments(self) -> "OptimizerConfig":
        own = _OPTIMIZERS[self.optimizer][1]
        for name in sorted({**_SGD, **_ADAM}.keys() - own.keys()):
            if getattr(self, name) is not None:
                owners = " and ".join(kind for kind, (_, has) in _OPTIMIZERS.items() if name in has)
                raise ValueError(
                    f"{name} is an argument of {owners}, got it with {self.optimizer}; leave it out"
                )
        return self

    def arguments(self) -> dict[str, Any]:
        """The arguments of the optimizer's constructor."""
        arguments = {
            name: default if getattr(self, name) is None else getattr(self, name)
            for name, default in _OPTIMIZERS[self.optimizer][1].items()
        }
        if "beta1" in arguments:
            arguments["betas"] = (arguments.pop("beta1"), arguments.pop("beta2"))
        return arguments


def build_optimizer(
    config: OptimizerConfig,
    parameters: Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]],
    *,
    device: str,
    sharded: bool = False,
) -> torch.optim.Optimizer:
    """The optimizer of a run. On CUDA it is torch's fused one, which skips an update on the device
    and waits for nothing; but not for sharded parameters, which torch 2.13's fused SGD does not
    take.
    """
    arguments = config.arguments()
    if torch.device(device).type == "cuda" and not sharded:
        # Naming the argument at all turns torch's own choice off.
        arguments["fused"] = True
    return _OPTIMIZERS[config.optimizer][0](parameters, **arguments)


def learning_rate(config: OptimizerConfig, step: int, total: int) -> float:
    """The learning rate of step number `step`, from 0, of `total`.

    It rises linearly over the steps of the warm-up to the peak at the last one; the schedule takes
    the steps after it.
    """
    peak = float(config.arguments()["lr"])
    if step < config.warmup:
        return peak * (step + 1) / config.warmup
    step, total = step - config.warmup, max(1, total - config.warmup)
    if config.lr_schedule == "cosine":
        return cosine_lr(peak, step, total)
    if config.lr_schedule == "cycles":
        # In integers: a cycle begins with the peak, whatever the length of the run.
        return cosine_lr(peak, step * config.lr_cycles % total, total)
    return peak


def cosine_lr(peak: float, step: int, total: int) -> float:
    """Half a cosine from `peak` at step 0 to 0 at step `total`."""
    return peak * 0.5 * (1 + math.cos(math.pi * step / total))

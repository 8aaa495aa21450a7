"""What one training run is, as plain values: hashable, written to records and read back."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunConfig:
    """One training run. Equal configurations on one machine type give the same figures.

    name: what tables and plots call the run.
    data, data_dir: see `data.load`.  model, width: see `models.build_model`.
    recipe: name of the recipe of every linear and convolution layer.
    edge: format of the first layer's input and of all operands of the last layer, "" for the
        recipe's own.
    layer_accs: (layer, fprop, dgrad, wgrad) for layers with accumulators of their own, by name.
    acc: format that replaces all three accumulators of the recipe, "" for the recipe's own.
    chunk: length of the inner sums of `acc`; 0 is none.  acc_rounding: the rounding of `acc`.
    weight_update: "<format>:<rounding>" applied to the weights at the start and after every
        optimizer step, "" none.
    loss_scale: the loss is multiplied by it and the gradients divided; a power of two keeps both
        exact.
    lr: peak learning rate of a cosine schedule over all steps, with SGD, `momentum` and
        `weight_decay`.
    augment: shifts (and for CIFAR flips) of the training images.
    threads: torch's thread count during the run, 0 leaves it; fixed because torch's float32 sums
        depend on it.
    """

    name: str = "run"
    data: str = "digits"
    data_dir: str = ""
    model: str = "resnet8"
    width: int = 16
    recipe: str = "fp32"
    edge: str = ""
    acc: str = ""
    chunk: int = 0
    acc_rounding: str = "nearest_even"
    weight_update: str = ""
    loss_scale: float = 1.0
    epochs: int = 10
    batch: int = 64
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    augment: bool = False
    seed: int = 0
    device: str = "cpu"
    threads: int = 2
    layer_accs: tuple[tuple[str, str, str, str], ...] = ()

    def __post_init__(self) -> None:
        at_least = {"width": 1, "epochs": 1, "batch": 1, "chunk": 0, "seed": 0, "threads": 0}
        for field, least in at_least.items():
            value = getattr(self, field)
            if value < least:
                raise ValueError(f"RunConfig: {field} must be at least {least}, got {value}")
        if not (self.lr > 0 and self.loss_scale > 0):
            raise ValueError(
                f"RunConfig: lr and loss_scale must be positive, got lr={self.lr} and "
                f"loss_scale={self.loss_scale}"
            )
        if not self.acc and (self.chunk or self.acc_rounding != "nearest_even"):
            raise ValueError(
                "RunConfig: chunk and acc_rounding belong to acc; give acc a format such as 'e6m9'"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON and checkpoints hold them."""
        accs = [list(row) for row in self.layer_accs]
        return {**dataclasses.asdict(self), "layer_accs": accs}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "RunConfig":
        """The inverse of `to_dict`; a field this version does not know is a ValueError."""
        known = {field.name for field in dataclasses.fields(RunConfig)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(
                f"RunConfig: unknown field {', '.join(unknown)}; written by another version of "
                "lpkernels?"
            )
        accs = tuple(tuple(row) for row in values.get("layer_accs", ()))
        return RunConfig(**{**values, "layer_accs": accs})

"""The settings of a run's workload: data, model, and how many of the data."""

import re
from typing import Annotated, Literal

from pydantic import Field

from lpkernels.experiments.settings import Settings, checked


def _classes(value: int) -> None:
    if value == 1:
        raise ValueError(f"expected at least 2, or 0 for all, got {value}")


class WorkloadConfig(Settings):
    """The workload of a run; `workloads.find` makes it."""

    data: str = Field(
        "digits",
        description="digits, digits32, mnist1d, iris, wine, breast_cancer, fashion-mnist, "
        "fashion-denoise, cifar10, cifar100, text, or module:function, which returns a Workload.",
    )
    data_dir: str = Field(
        "",
        description="Folder of CIFAR's extracted binary files, or of Fashion-MNIST's four files, "
        'plain or .gz; "": Fashion-MNIST as Debian\'s package dataset-fashion-mnist installs it.',
    )
    model: str = Field(
        "",
        description="A name and its depth: resnet8, cnn3, mlp2, lstm1, gpt2, or unet3; "
        '"": the one that the data is usually trained with.',
    )
    depth: int = Field(0, ge=0, description="Depth of the model; 0: that of its name.")
    width: int = Field(
        0,
        ge=0,
        description="Channels of the first layer (of lee-... percent); 0: the model's default.",
    )
    norm: Literal["", "batch", "layer", "none"] = Field(
        "",
        description='Normalisation: batch, layer or none; "": the usual one of the model.',
    )
    augment: bool = Field(
        False, description="Shift (CIFAR, Fashion-MNIST: and flip) the training images."
    )
    label_noise: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the training labels replaced by a class drawn from all.",
    )
    train_size: int = Field(
        0,
        ge=0,
        description="Training examples kept, as many of each class as can be, of text evenly; 0: "
        "all.",
    )
    classes: Annotated[int, checked(_classes)] = Field(
        0, ge=0, description="Classes kept, the first so many; 0: all."
    )

    def network(self, usual: str = "") -> str:
        """The model's name with its depth; `usual` is the name where the run has none.

        Raises: ValueError: `depth` is another than the name's own.
        """
        name = self.model or usual
        match = re.fullmatch(r"([a-z]+)(\d*)", name)
        if not self.depth or match is None:
            return name
        if self.model and match[2] not in ("", str(self.depth)):
            raise ValueError(f"depth: {self.model} has depth {match[2]}, got {self.depth}")
        return f"{match[1]}{self.depth}"
